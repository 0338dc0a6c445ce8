"""What suggests changes. A proposer is a module with `directions(ctx)` and `propose(ctx)`; it never types a number that
the decision reads. A new one is one module and one line here."""

from __future__ import annotations

from typing import Protocol, cast

from turbo_optimize.core.models import Proposal
from turbo_optimize.proposers import manual, patches, search
from turbo_optimize.proposers.context import Context, Ranked


class Proposer(Protocol):
    def directions(self, ctx: Context) -> tuple[Ranked, ...]:
        """Eligible directions, best first; none ends the campaign (T6)."""
        ...

    def propose(self, ctx: Context) -> Proposal | None:
        """One hypothesis and its change; None waits for a person (manual)."""
        ...

    def repair(self, ctx: Context, failure: str) -> Proposal | None:
        """Another try at the same hypothesis after a failed build or check; None gives it up."""
        ...


PROPOSERS: dict[str, Proposer] = {
    "search": cast(Proposer, search),
    "patches": cast(Proposer, patches),
    "manual": cast(Proposer, manual),
}
