"""What comes next, and what ends a campaign."""

from __future__ import annotations

import pytest

from tests.factory import make_events
from turbo_optimize.core import events as ev
from turbo_optimize.core.machine import REVIEWS, next_phase, review, termination
from turbo_optimize.core.models import GateResult, Policy
from turbo_optimize.core.state import State, fold

P = Policy()


def running(n: int = 4, seed: int = 1, **more: object) -> State:
    """A campaign with n closed rounds and nothing ended."""
    ended = (ev.Terminated, ev.Compared, ev.FinalAccepted, ev.Tipped, ev.Reported)
    events = [e for e in make_events(n, seed) if not isinstance(e, ended)]
    return fold(events).model_copy(update={"max_rounds": 50, "max_duration_s": None} | more)


def test_phases_in_order() -> None:
    events = make_events(3, 1)
    seen = []
    for i in range(len(events) + 1):
        phase = next_phase(fold(events[:i]), P)
        if not seen or seen[-1] != phase:
            seen.append(phase)
    assert seen[0] == ev.Phase.DEFINE_TARGET
    order = [ev.Phase.PREPARE_ENVIRONMENT, ev.Phase.BASELINE, ev.Phase.ANALYZE]
    assert seen[1:4] == order
    assert ev.Phase.WAIT not in seen
    assert next_phase(fold(events), P) == ev.Phase.DONE


def test_between_rounds_analyze_then_optimize_then_validate() -> None:
    s = running()
    assert next_phase(s, P) == ev.Phase.ANALYZE
    n = len(s.rounds) + 1
    s = fold([ev.Analyzed(round=n, bottleneck="latency_bound", evidence="")], s)
    assert next_phase(s, P) == ev.Phase.OPTIMIZE
    proposal = next(r.proposal for r in s.rounds if r.proposal)
    s = fold([ev.Proposed(round=n, proposal=proposal)], s)
    assert next_phase(s, P) == ev.Phase.OPTIMIZE
    s = fold([ev.Patched(round=n, commit="c" * 40, parent="p" * 40, files=("k.py",))], s)
    assert next_phase(s, P) == ev.Phase.VALIDATE


def test_repair_until_the_retries_are_spent() -> None:
    s = running()
    n = len(s.rounds) + 1
    proposal = next(r.proposal for r in s.rounds if r.proposal)
    bad = (GateResult(code="G03", ok=False, detail="no such name"),)
    s = fold([ev.Analyzed(round=n, bottleneck="", evidence="")], s)
    for attempt in range(1, P.debug_retry + 2):
        s = fold(
            [
                ev.Proposed(round=n, attempt=attempt, proposal=proposal),
                ev.Patched(round=n, attempt=attempt, commit="c" * 40, parent="p" * 40, files=()),
                ev.Gated(round=n, attempt=attempt, gates=bad, repairable=True),
            ],
            s,
        )
        want = ev.Phase.OPTIMIZE if attempt <= P.debug_retry else ev.Phase.VALIDATE
        assert next_phase(s, P) == want
    unrepairable = fold([ev.Gated(round=n, attempt=1, gates=bad, repairable=False)], s)
    assert next_phase(unrepairable, P) == ev.Phase.VALIDATE


def test_manual_waits_for_a_person() -> None:
    s = running()
    assert s.manifest
    s = s.model_copy(update={"manifest": s.manifest.model_copy(update={"proposer": "manual"})})
    s = fold([ev.Analyzed(round=len(s.rounds) + 1, bottleneck="", evidence="")], s)
    assert next_phase(s, P) == ev.Phase.WAIT


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"max_rounds": 2}, "T3"),
        ({"max_duration_s": 0.001, "elapsed_s": 5.0}, "T5"),
        ({"stop_asked": "^C"}, "T4"),
        ({}, None),
    ],
)
def test_terminations(change: dict[str, object], code: str | None) -> None:
    found = termination(running(**change), P)
    assert (found.code if found else None) == code


def test_target_and_efficiency() -> None:
    s = running()
    assert s.manifest
    easy = s.manifest.model_copy(update={"performance_target": ">0.000001 TFLOPS", "target_gpu": "sm_90"})
    found = termination(s.model_copy(update={"manifest": easy}), P)
    assert found
    assert found.code == "T1"
    hard = s.manifest.model_copy(update={"performance_target": ">99% peak", "target_gpu": "sm_90"})
    assert termination(s.model_copy(update={"manifest": hard}), P) is None
    low_bar = P.model_copy(update={"efficiency_pct": 1e-6})
    plain = s.model_copy(update={"manifest": hard.model_copy(update={"performance_target": None})})
    found = termination(plain, low_bar)
    assert found
    assert found.code == "T2"


def test_only_a_stop_ends_within_a_round() -> None:
    s = running(max_rounds=2)
    s = fold([ev.Analyzed(round=len(s.rounds) + 1, bottleneck="", evidence="")], s)
    assert termination(s, P) is None
    found = termination(s.model_copy(update={"stop_asked": "^C"}), P)
    assert found
    assert found.code == "T4"


def test_rollbacks_escalate_and_never_end() -> None:
    s = running(8, seed=2)
    gone = tuple(r for r in s.rounds if not (r.decision and r.decision.accepted))
    for n in range(5):
        few = s.model_copy(update={"rounds": gone[: 1 + n]})
        assert review(few) == ("" if n == 0 else REVIEWS[min(n, 4)])
        assert termination(few, P) is None
