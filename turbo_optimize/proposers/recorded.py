"""The proposals of a recorded campaign, in its order: with a ReplayBench the same engine runs again without a device."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from turbo_optimize.core.models import Proposal
from turbo_optimize.proposers.context import Context, Ranked


class Record(Protocol):
    def proposals(self) -> dict[int, list[Proposal]]: ...


@dataclass(frozen=True)
class Recorded:
    """A proposer over a record; after its last round no direction is left."""

    record: Record

    def directions(self, ctx: Context) -> tuple[Ranked, ...]:
        found = self.record.proposals().get(ctx.round)
        if not found:
            return ()
        p = found[0]
        return (
            Ranked(
                name=p.direction, bottleneck=p.bottleneck, change=p.change, risk=p.risk, signal=p.signal, bucket=p.bucket,
                expected_gain_pct=p.expected_gain_pct or 0.0, category=p.category,
            ),
        )  # fmt: skip

    def propose(self, ctx: Context) -> Proposal | None:
        return self.record.proposals()[ctx.round][0]

    def repair(self, ctx: Context, failure: str) -> Proposal | None:
        current = ctx.state.current
        attempts = self.record.proposals()[ctx.round]
        done = current.attempt if current else 1
        return attempts[done] if done < len(attempts) else None
