"""decide: total over its inputs, and each rule where it should speak."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from turbo_optimize.core.models import (
    POLICIES,
    CheckRow,
    Decision,
    Evidence,
    GateResult,
    NeedMore,
    Policy,
    Session,
    Verdict,
)
from turbo_optimize.core.rules import RULES, decide

P = Policy()
SHAPES = ("s1", "s2")


def session(level: str, index: int, **gains_pct: float) -> Session:
    """Eight quads a shape, tightly around the given gains."""
    wiggle = (-0.05, 0.05, -0.03, 0.03, -0.01, 0.01, -0.02, 0.02)
    quads = {s: tuple(math.log1p((g + w) / 100) for w in wiggle) for s, g in gains_pct.items()}
    return Session(level=level, index=index, quads=quads)  # type: ignore[arg-type]


def evidence(*sessions: Session, **more: object) -> Evidence:
    base: dict[str, object] = {"sessions": sessions, "core_shapes": SHAPES, "sigma_aa": 0.001, "full_is_quick": True}
    return Evidence(**(base | more))  # type: ignore[arg-type]


def confirmed(gain: float, other: float | None = None, n: int = 3) -> tuple[Session, ...]:
    g2 = gain if other is None else other
    return (session("screen", 1, s1=gain, s2=g2), *(session("confirm", i + 1, s1=gain, s2=g2) for i in range(n)))


def test_first_a_screen() -> None:
    assert decide(evidence(), P) == NeedMore(level="screen", sessions=1, why="no session yet")


@pytest.mark.parametrize("code", ["G01", "G02", "G03", "G05", "G06", "G07"])
def test_a_failed_gate_rolls_back_whatever_was_measured(code: str) -> None:
    d = decide(evidence(*confirmed(50), gates=(GateResult(code=code, ok=False, detail="why"),)), P)
    assert isinstance(d, Decision)
    assert (d.verdict, d.code, d.reason) == (Verdict.ROLLBACK, code, "why")


def test_a_fail_or_error_shape_rolls_back() -> None:
    for check in ("FAIL", "ERROR"):
        d = decide(evidence(*confirmed(50), checks=(CheckRow(shape="s1", check=check, detail="zeroed row"),)), P)
        assert isinstance(d, Decision)
        assert d.code == "G04"
        assert "zeroed row" in d.reason


def test_a_clear_gain_is_confirmed_then_accepted() -> None:
    assert decide(evidence(session("screen", 1, s1=8, s2=8)), P) == NeedMore(
        level="confirm", sessions=3, why="the screen looks good"
    )
    d = decide(evidence(*confirmed(8)), P)
    assert isinstance(d, Decision)
    assert d.accepted
    assert d.code == "D00"
    assert d.gain_pct == pytest.approx(8, abs=0.05)
    assert d.low_pct is not None
    assert 0 < d.low_pct < d.gain_pct


def test_the_screen_is_excluded_from_the_estimate() -> None:
    d = decide(evidence(session("screen", 1, s1=90, s2=90), *confirmed(6)[1:]), P)
    assert isinstance(d, Decision)
    assert d.gain_pct == pytest.approx(6, abs=0.05)


def test_no_gain_and_small_screen_roll_back() -> None:
    for gain in (-3.0, -0.1, 0.3):
        d = decide(evidence(session("screen", 1, s1=gain, s2=gain)), P)
        assert isinstance(d, Decision)
        assert (d.verdict, d.code) == (Verdict.ROLLBACK, "D03")


def test_core_shape_veto_and_not_for_launch_bound_ones() -> None:
    screen = session("screen", 1, s1=-6, s2=30)
    d = decide(evidence(screen), P)
    assert isinstance(d, Decision)
    assert d.code == "D02"
    assert isinstance(decide(evidence(screen, core_shapes=("s2",)), P), NeedMore)


def test_a_straddling_veto_is_measured_once_more() -> None:
    noisy = tuple(math.log1p(x / 100) for x in (-9, -1, -8, -2, -10, -3, -7, -2.5))
    one = Session(level="screen", index=1, quads={"s1": noisy, "s2": (0.3,) * 8})
    again = decide(evidence(one), P)
    assert isinstance(again, NeedMore)
    assert again.level == "screen"
    two = one.model_copy(update={"index": 2})
    d = decide(evidence(one, two), P)
    assert isinstance(d, Decision)
    assert d.code == "D02"


def test_small_gain_needs_its_bar_and_steadiness() -> None:
    steady = decide(evidence(*confirmed(1.5)), P)
    assert isinstance(steady, Decision)
    assert steady.accepted
    swinging = [session("screen", 1, s1=1.6, s2=1.6)] + [
        session("confirm", i, s1=g, s2=g) for i, g in enumerate((0.2, 3.2, 0.3, 3.0, 0.2, 2.9), start=1)
    ]
    d = decide(evidence(*swinging), P)
    assert isinstance(d, Decision)
    assert (d.verdict, d.code) in {(Verdict.ROLLBACK, "D04"), (Verdict.INCONCLUSIVE, "D06")}


def test_undecided_asks_once_more_then_is_inconclusive() -> None:
    wide = {"sigma_aa": 0.02}
    first = decide(evidence(*confirmed(2.5), **wide), P)
    assert isinstance(first, NeedMore)
    assert (first.level, first.sessions) == ("confirm", 3)
    d = decide(evidence(*confirmed(2.2, n=6), **wide), P)
    assert isinstance(d, Decision)
    assert (d.verdict, d.code) == (Verdict.INCONCLUSIVE, "D06")


def test_below_five_percent_or_high_risk_all_targets_decide() -> None:
    for gain, risk in ((3.0, False), (20.0, True)):
        e = evidence(*confirmed(gain), full_is_quick=False, high_risk=risk)
        need = decide(e, P)
        assert isinstance(need, NeedMore)
        assert need.level == "full"
        good = e.model_copy(update={"sessions": (*e.sessions, session("full", 1, s1=gain, s2=gain, s3=gain))})
        d = decide(good, P)
        assert isinstance(d, Decision)
        assert d.accepted
        bad = e.model_copy(update={"sessions": (*e.sessions, session("full", 1, s1=gain, s2=-9, s3=gain))})
        d = decide(bad, P)
        assert isinstance(d, Decision)
        assert d.code == "D05"


def test_trade_off_is_accepted_and_named() -> None:
    d = decide(evidence(*confirmed(12, -3)), P)
    assert isinstance(d, Decision)
    assert d.accepted
    assert d.code == "D07"
    assert d.trade_off
    assert "s2 -3" in d.reason


def test_precise_takes_what_the_interval_proves() -> None:
    small = evidence(*confirmed(0.6), sigma_aa=0.0005)
    standard = decide(small, P)
    precise = decide(small, POLICIES["precise"])
    assert isinstance(standard, Decision)
    assert not standard.accepted
    assert isinstance(precise, Decision)
    assert precise.accepted


logs = st.floats(-1.5, 1.5, allow_nan=False)
sessions = st.builds(
    Session,
    level=st.sampled_from(["screen", "confirm", "full"]),
    index=st.integers(1, 9),
    quads=st.dictionaries(
        st.sampled_from(["s1", "s2", "s3"]), st.lists(logs, min_size=1, max_size=9).map(tuple), min_size=1
    ),
)
evidences = st.builds(
    Evidence,
    gates=st.lists(st.builds(GateResult, code=st.sampled_from(["G01", "G03"]), ok=st.booleans()), max_size=2).map(
        tuple
    ),
    checks=st.lists(st.builds(CheckRow, shape=st.just("s1"), check=st.sampled_from(["FAIL", "ERROR"])), max_size=1).map(
        tuple
    ),
    sessions=st.lists(sessions, max_size=8).map(tuple),
    core_shapes=st.sampled_from([(), ("s1",), ("s1", "s2")]),
    sigma_aa=st.floats(0, 0.1),
    high_risk=st.booleans(),
    full_is_quick=st.booleans(),
)


@settings(max_examples=150, deadline=None)
@given(evidences, st.sampled_from(list(POLICIES.values())))
def test_decide_is_total_and_deterministic(e: Evidence, policy: Policy) -> None:
    first = decide(e, policy)
    assert first == decide(e, policy)
    if isinstance(first, Decision):
        assert first.code in RULES
        assert first.reason
        if first.accepted:  # never without proof
            assert first.low_pct is not None
            assert first.low_pct > 0
    else:
        assert sum(s.level == first.level for s in e.sessions) < policy.confirm_sessions + policy.extra_sessions + 2
