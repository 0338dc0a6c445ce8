"""PREPARE_ENVIRONMENT: prerequisites, branch, worktree, the rendered bench, the tips of the same target."""

from __future__ import annotations

from collections.abc import Iterator

from turbo_optimize.campaign import Campaign
from turbo_optimize.core.errors import ConfigError
from turbo_optimize.core.events import Event, Prepared
from turbo_optimize.core.models import GateResult
from turbo_optimize.effects.store import disk_errors
from turbo_optimize.phases.shared.harness import render_harness
from turbo_optimize.phases.shared.tips import read_tips


def run(c: Campaign) -> Iterator[Event]:
    prerequisites = _prerequisites(c)
    missing = [p for p in prerequisites if not p.ok]
    if missing:
        raise ConfigError(f"{c.manifest.project_file}: {missing[0].detail}", "mend the project file or commit the file")
    render_harness(c, shapes=(), representative=())
    branch = f"refs/heads/{c.manifest.git_branch}" if c.manifest.git_branch else None
    head_ref = branch or c.ref("head")
    c.repo.move_ref(c.ref("round-1"), c.base, None)
    c.repo.move_ref(head_ref, c.base, None)
    c.say("adding the worktree")
    with disk_errors(c.layout.worktree):
        c.repo.add_worktree(c.layout.worktree, branch, c.base)
    yield Prepared(
        branch=c.manifest.git_branch, head_ref=head_ref, worktree=c.layout.worktree.name,
        harness_sha256=c.harness_sha256(c.tree(c.base).path), prerequisites=prerequisites, tips=read_tips(c),
    )  # fmt: skip


def _prerequisites(c: Campaign) -> tuple[GateResult, ...]:
    files = set(c.repo.files(c.base))
    needed = {
        "kernel source": c.manifest.kernel_source,
        "adapter": (c.op.adapter,),
        "harness": c.op.frozen,
        "launch configuration": (c.backend.space.file.format(gpu=c.manifest.target_gpu),) if c.backend.space else (),
    }
    gates = [
        GateResult(code="G01", ok=path in files, detail=f"{what} {path} is not in commit {c.base[:12]}")
        for what, paths in needed.items()
        for path in paths
        if "*" not in path
    ]
    commands = {"test_command": c.manifest.test_command, "benchmark_command": c.manifest.benchmark_command}
    gates += [GateResult(code="G03", ok=bool(v.strip()), detail=f"{k} is empty") for k, v in commands.items()]
    return tuple(gates)
