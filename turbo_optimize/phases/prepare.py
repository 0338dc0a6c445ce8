"""PREPARE_ENVIRONMENT: prerequisites, branch, worktree, the rendered bench, tips of the same target; the gate self-test."""

from __future__ import annotations

from collections.abc import Iterator

from turbo_optimize.campaign import Campaign
from turbo_optimize.core.errors import TurboOptError, WorkerError
from turbo_optimize.core.events import Event, Learned, Prepared
from turbo_optimize.effects.bench import add_parts, timed
from turbo_optimize.effects.layout import key_of
from turbo_optimize.effects.store import disk_errors
from turbo_optimize.phases.shared.harness import render_harness
from turbo_optimize.phases.shared.prerequisites import require
from turbo_optimize.phases.shared.tips import read_tips


def run(c: Campaign) -> Iterator[Event]:
    """First the places, then what the base commit reaches and whether the gates find planted faults."""
    if c.state.prepared is None:
        yield _places(c)
        return
    yield from _learn(c)


def _places(c: Campaign) -> Prepared:
    prerequisites = require(c.repo, c.manifest, c.op, c.backend)
    render_harness(c, shapes=(), representative=())
    branch = f"refs/heads/{c.manifest.git_branch}" if c.manifest.git_branch else None
    head_ref = branch or c.ref("head")
    c.repo.move_ref(c.ref("round-1"), c.base, None)
    c.repo.move_ref(head_ref, c.base, None)
    c.say("adding the worktree")
    with disk_errors(c.layout.worktree):
        c.repo.add_worktree(c.layout.worktree, branch, c.base)
    return Prepared(
        branch=c.manifest.git_branch, head_ref=head_ref, worktree=c.layout.worktree.name,
        harness_sha256=c.harness_sha256(c.tree(c.base).path), prerequisites=prerequisites, tips=read_tips(c),
    )  # fmt: skip


def _learn(c: Campaign) -> Iterator[Event]:
    """The base under every check, and the gate self-test: a campaign whose gates pass a planted fault doesn't begin."""
    key, tree, shapes = key_of(1), c.tree(c.base), c.manifest.target_shapes
    parts: dict[str, float] = {}
    try:
        learned = c.bench.learn(key, tree, shapes)
    except WorkerError as e:
        raise TurboOptError(f"the baseline doesn't run: {e.message}", "mend the kernel, commit, start again") from e
    bad = [r for r in learned.checks if r.check != "PASS"]
    if bad:
        raise TurboOptError(
            f"the baseline is wrong on {bad[0].shape}: {bad[0].detail}", "mend the kernel, commit, start again"
        )
    assert learned.norms is not None
    with timed(parts, "self-test"):
        tested = c.bench.self_test(key, tree, shapes, learned.norms)
    passed = [t for t in tested if not t.ok]
    if passed:
        raise TurboOptError(
            f"gate self-test: a planted fault was not found: {passed[0].detail}",
            "tighten the project's check (docs/projects.md), commit, start again",
        )
    add_parts(parts, learned.parts)
    yield c.spent(1, parts)
    yield Learned(
        norms=learned.norms, checks=learned.checks, self_test=tested, binary_sha256=learned.binary_sha256,
        versions=learned.environment,
    )  # fmt: skip
