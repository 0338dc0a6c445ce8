"""What a proposer is given. Shared by ANALYZE and OPTIMIZE."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from turbo_optimize.campaign import Campaign
from turbo_optimize.core.errors import UsageError
from turbo_optimize.effects.bench import Refine
from turbo_optimize.effects.layout import key_of
from turbo_optimize.proposers import PROPOSERS, Proposer
from turbo_optimize.proposers.context import Context


def proposer(c: Campaign) -> Proposer:
    return c.proposer_override or PROPOSERS[c.manifest.proposer]  # type: ignore[return-value]


def context(c: Campaign, bottleneck: str, parts: dict[str, float] | None = None) -> Context:
    """A read-only view; `parts` collects what sweeps cost."""

    def sweep(
        section: str, configs: Sequence[Mapping[str, Any]], refine: Refine | None = None
    ) -> tuple[dict[str, Any], ...]:
        key = key_of(len(c.state.rounds))
        out = c.bench.sweep(key, c.sweep_tree(c.incumbent), c.representative, section, configs, refine)
        for name, seconds in out.parts.items():
            if parts is not None:
                parts[name] = parts.get(name, 0.0) + seconds
        return out.hints

    return Context(
        state=c.state, manifest=c.manifest, policy=c.policy, backend=c.backend, bottleneck=bottleneck,
        read=lambda path: c.repo.show(c.incumbent, path), sweep=sweep, patch_of=lambda ref: _patches(c, ref),
    )  # fmt: skip


def _patches(c: Campaign, ref: str) -> tuple[tuple[str, str, str], ...]:
    head = c.repo.resolve(ref)
    if not head:
        raise UsageError(
            f"--patches {ref}: neither a folder nor a branch", "name a folder of *.patch files or a branch"
        )
    commits = c.repo.lineage(c.base, head)
    return tuple((x, c.repo.message(x).split("\n")[0], c.repo.diff(f"{x}^", x)) for x in commits)
