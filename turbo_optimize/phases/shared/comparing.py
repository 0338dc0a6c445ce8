"""Baseline against head, interleaved, on all target shapes: the published number, and its checkpoints on the way."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Literal

from turbo_optimize.campaign import Campaign
from turbo_optimize.core import stats
from turbo_optimize.core.events import Compared, Event
from turbo_optimize.core.models import Sample, Session, Shape
from turbo_optimize.effects.bench import Tree, add_parts


def sessions(
    c: Campaign, key: str, before: Tree, after: Tree, count: int, shapes: Sequence[Shape]
) -> tuple[list[Session], list[Sample], dict[str, float]]:
    """`count` sessions of two trees, their blocks (saved under `key`) and where the time went."""
    found: list[Session] = []
    samples: list[Sample] = []
    parts: dict[str, float] = {}
    for index in range(1, count + 1):
        session, out = c.measure(key, "full", index, before, after, shapes)
        found.append(session)
        samples += out.samples
        add_parts(parts, out.parts)
    c.save_samples(key, samples)
    return found, samples, parts


def base_against_head(
    c: Campaign, key: str, what: Literal["final", "checkpoint"], number: int | None, count: int
) -> Iterator[Event]:
    b = c.state.baseline
    assert b is not None
    shapes = c.manifest.target_shapes
    measured, samples, parts = sessions(c, key, c.tree(c.base), c.tree(c.incumbent), count, shapes)
    est = stats.combine(measured, c.policy, b.sigma_aa)
    yield c.spent(number or 1, parts)
    yield Compared(
        what=what, round=number, gain_pct=stats.pct(est.mean), low_pct=stats.pct(est.mean - c.policy.z_full * est.se),
        high_pct=stats.pct(est.mean + c.policy.z_full * est.se),
        shapes={d.shape: d.gain_pct for d in stats.shape_deltas(measured, c.policy)},
        before=c.score_of(shapes, [s for s in samples if s.role == "A"], b.checks),
        after=c.score_of(shapes, [s for s in samples if s.role == "B"], b.checks),
        note=f"{est.n} session{'s' if est.n > 1 else ''} of fresh processes, {len(shapes)} shapes",
    )  # fmt: skip


def checkpoint_due(c: Campaign) -> int | None:
    """The accepted round after which base and head are due to be measured: every `checkpoint_every` accepts."""
    kept = c.state.accepted
    if not kept or len(kept) % c.policy.checkpoint_every:
        return None
    done = {x.round for x in c.state.compared if x.what == "checkpoint"}
    return None if kept[-1].number in done else kept[-1].number
