"""What a proposer may see: read-only, and one hint-giver whose timings no decision reads."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from turbo_optimize.core.models import Backend, Manifest, Policy
from turbo_optimize.core.state import State


class Sweep(Protocol):
    def __call__(
        self,
        section: str,
        configs: Sequence[Mapping[str, Any]],
        refine: Callable[[Sequence[dict[str, Any]]], Sequence[Mapping[str, Any]]] | None = None,
    ) -> tuple[dict[str, Any], ...]: ...


@dataclass(frozen=True)
class Ranked:
    """A direction offered for the next round."""

    name: str  # identity for "was tried"
    bottleneck: str
    change: str
    expected_gain_pct: float
    risk: str
    signal: str
    bucket: str
    category: str

    def as_dict(self) -> dict[str, Any]:
        return dict(self.__dict__)


@dataclass(frozen=True)
class Context:
    state: State
    manifest: Manifest
    policy: Policy
    backend: Backend
    bottleneck: str
    read: Callable[[str], str | None]  # a file of the incumbent, by path
    sweep: Sweep  # unpaired hints
    patch_of: Callable[[str], tuple[tuple[str, str, str], ...]]  # a branch: (commit, subject, diff), oldest first

    @property
    def round(self) -> int:
        current = self.state.current
        return current.number if current else len(self.state.rounds) + 1

    @property
    def args(self) -> Mapping[str, str]:
        return self.manifest.proposer_args

    def tried(self) -> set[str]:
        """Directions of closed rounds."""
        return {r.proposal.direction for r in self.state.closed if r.proposal}

    def tried_since_gain(self) -> set[str]:
        """Directions tried since the incumbent last changed: an accepted change makes old ones worth another look."""
        tried: set[str] = set()
        for r in reversed(self.state.closed):
            if r.proposal:
                tried.add(r.proposal.direction)
            if r.decision and r.decision.accepted:
                break
        return tried
