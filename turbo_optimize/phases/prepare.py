"""PREPARE_ENVIRONMENT: prerequisites, branch, worktree, the rendered bench, the tips of the same target."""

from __future__ import annotations

from collections.abc import Iterator

from turbo_optimize.campaign import Campaign
from turbo_optimize.core.events import Event, Prepared
from turbo_optimize.effects.store import disk_errors
from turbo_optimize.phases.shared.harness import render_harness
from turbo_optimize.phases.shared.prerequisites import require
from turbo_optimize.phases.shared.tips import read_tips


def run(c: Campaign) -> Iterator[Event]:
    prerequisites = require(c.repo, c.manifest, c.op, c.backend)
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
