"""A person, or an agent outside: edits the worktree, then `turbo-opt validate --round N`."""

from __future__ import annotations

from turbo_optimize.core.models import Proposal
from turbo_optimize.proposers.context import Context, Ranked


def directions(ctx: Context) -> tuple[Ranked, ...]:
    return (
        Ranked(
            name=f"manual/round-{ctx.round}", bottleneck=ctx.bottleneck, change="whatever stands in the worktree",
            expected_gain_pct=0.0, risk="high", signal="", bucket="K1", category="manual",
        ),
    )  # fmt: skip


def propose(ctx: Context) -> Proposal | None:
    return None


def repair(ctx: Context, failure: str) -> Proposal | None:
    return None
