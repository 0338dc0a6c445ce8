"""ANALYZE: what bounds the kernel, and the eligible directions ranked. None left ends the campaign (T6)."""

from __future__ import annotations

from collections.abc import Iterator

from turbo_optimize.campaign import Campaign
from turbo_optimize.core.analysis import classify
from turbo_optimize.core.events import Analyzed, Event, Terminated
from turbo_optimize.core.machine import incumbent_score, review
from turbo_optimize.phases.shared.comparing import base_against_head, checkpoint_due
from turbo_optimize.phases.shared.proposing import context, proposer

ELIGIBLE = ("K1", "K2", "K3", "K4", "W1")  # SPEC §5; W2 and W3 are dropped here
TOP = 6  # directions written down a round


def run(c: Campaign) -> Iterator[Event]:
    due = checkpoint_due(c)
    if due:
        yield from base_against_head(c, f"checkpoint-{due}", "checkpoint", due, 1)
    bottleneck, evidence = _classify(c)
    ranked = [d for d in proposer(c).directions(context(c, bottleneck)) if d.bucket in ELIGIBLE]
    if not ranked:
        yield Terminated(code="T6", why="every direction that the proposer offers was tried since the last gain")
        return
    number = len(c.state.rounds) + 1
    yield Analyzed(
        round=number, bottleneck=bottleneck, evidence=evidence, review=review(c.state),
        directions=tuple(d.as_dict() for d in ranked[:TOP]),
    )  # fmt: skip


def _classify(c: Campaign) -> tuple[str, str]:
    score = incumbent_score(c.state)
    if score is None:
        return "unknown", "nothing measured yet"
    step_ms = {}
    for label, rate in score.per_shape.items():
        work = sum(c.schema.work_of(p, c.manifest.shape(label).dims) for p in c.schema.passes)
        per_ms = 1e9 if score.unit == "TFLOPS" else 1e6  # work units in one millisecond at rate 1
        step_ms[label] = work / (rate * per_ms)
    return classify(c.manifest, score, step_ms, c.op.peak)
