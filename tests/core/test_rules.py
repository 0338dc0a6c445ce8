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
from turbo_optimize.core.rules import catalog, decide

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


def test_the_check_that_objects_names_the_decision() -> None:
    passed = CheckRow(shape="s1", check="PASS", metrics={"out_snr": 44.0})
    failed = CheckRow(shape="s2", check="FAIL", detail="3 of 1024 integer results are wrong", code="K03")
    d = decide(evidence(*confirmed(50), checks=(passed, failed)), P)
    assert isinstance(d, Decision)
    assert (d.verdict, d.code) == (Verdict.ROLLBACK, "K03")
    assert "s2 FAIL: 3 of 1024" in d.reason
    assert "s1" not in d.reason


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


PRECISE = POLICIES["precise"]


def fulls(gain: float) -> list[Session]:
    return [session("full", i, s1=gain, s2=gain) for i in (1, 2)]


def test_precise_takes_what_the_interval_proves() -> None:
    small = evidence(*confirmed(0.6), sigma_aa=0.0005)
    standard = decide(small, P)
    assert isinstance(standard, Decision)
    assert not standard.accepted
    for measured in range(2):  # two sessions more, on the same shapes too
        need = decide(small.model_copy(update={"sessions": (*small.sessions, *fulls(0.6)[:measured])}), PRECISE)
        assert isinstance(need, NeedMore)
        assert (need.level, need.sessions) == ("full", 2 - measured)
    precise = decide(small.model_copy(update={"sessions": (*small.sessions, *fulls(0.6))}), PRECISE)
    assert isinstance(precise, Decision)
    assert precise.accepted
    assert precise.gain_pct == pytest.approx(0.6, abs=0.05)
    gone = decide(small.model_copy(update={"sessions": (*small.sessions, *fulls(-0.1))}), PRECISE)
    assert isinstance(gone, Decision)
    assert gone.code == "D05"


def test_precise_asks_for_no_steadiness_beyond_the_interval() -> None:
    """Sessions that scatter by over half of their mean, and still prove it: the standard's small gains must be steadier."""
    gains = (0.9, 3.4, 1.0, 3.3, 1.0, 3.4)
    swinging = [session("screen", 1, s1=2, s2=2), *(session("confirm", i, s1=g, s2=g) for i, g in enumerate(gains, 1))]
    steady = PRECISE.model_copy(update={"steady_below_pct": 1000.0})
    answers = [decide(evidence(*swinging, *fulls(2)), p) for p in (PRECISE, steady)]
    assert [isinstance(a, Decision) and a.accepted for a in answers] == [True, False]


# -- the floor: microseconds a step that a launch moves by itself ------------------------------------------------------
def took(us: float, sessions: tuple[Session, ...], **others: float) -> tuple[Session, ...]:
    """The same sessions, of an incumbent whose step takes so long (by shape: `others`)."""
    return tuple(s.model_copy(update={"step_us": dict.fromkeys(s.quads, us) | others}) for s in sessions)


@pytest.mark.parametrize(("step_us", "code"), [(20.0, "D07"), (39.0, "D07"), (41.0, "D02"), (2000.0, "D02")])
def test_a_loss_of_less_than_the_floor_cant_veto(step_us: float, code: str) -> None:
    """−5% of 20 µs is a microsecond; of 41 µs it is over two."""
    d = decide(evidence(*took(5000, confirmed(30, -5.01), s2=step_us)), P.model_copy(update={"floor_us": 2.0}))
    assert isinstance(d, Decision)
    assert d.code == code
    d = decide(evidence(*took(5000, confirmed(30, -5.01), s2=step_us)), P)  # no floor
    assert isinstance(d, Decision)
    assert d.code == "D02"


@pytest.mark.parametrize(("step_us", "accepted"), [(20.0, True), (39.0, True), (41.0, False), (2000.0, False)])
def test_nor_in_the_full_validation(step_us: float, accepted: bool) -> None:
    measured = took(5000, (*confirmed(4), session("full", 1, s1=30, s2=-5.01)), s2=step_us)
    e = evidence(*measured, full_is_quick=False)
    d = decide(e, P.model_copy(update={"floor_us": 2.0}))
    assert isinstance(d, Decision)
    assert (d.accepted, d.code) == ((True, "D00") if accepted else (False, "D05"))
    d = decide(e, P)  # no floor
    assert isinstance(d, Decision)
    assert d.code == "D05"


def test_a_gain_under_the_floor_on_every_shape_isnt_one() -> None:
    standard = POLICIES["standard"]
    assert standard.floor_us == 2.0
    d = decide(evidence(*took(20, confirmed(8))), standard)
    assert isinstance(d, Decision)
    assert (d.verdict, d.code) == (Verdict.ROLLBACK, "D04")
    assert "2 µs" in d.reason
    for enough in (took(20, confirmed(8), s2=30.0), took(20, confirmed(12)), confirmed(8)):  # one shape is enough
        d = decide(evidence(*enough), standard)
        assert isinstance(d, Decision)
        assert d.accepted


# -- the transfer to training ------------------------------------------------------------------------------------------
TRAINING = P.model_copy(update={"transfer_quads": 4, "between_sessions": True})


@pytest.mark.parametrize(
    ("policy", "training", "asks"), [(TRAINING, True, True), (TRAINING, False, False), (P, True, False)]
)
def test_training_steps_are_measured_only_where_there_are_any(policy: Policy, training: bool, asks: bool) -> None:
    answer = decide(evidence(*confirmed(8), training=training), policy)
    if asks:
        assert answer == NeedMore(level="train", sessions=1, why="does the gain hold in training steps?")
    else:
        assert isinstance(answer, Decision)
        assert answer.accepted
        assert answer.train_pct is None


@pytest.mark.parametrize(
    ("gain", "found", "code"),
    [
        (8.0, 8.0, "D00"),
        (8.0, 12.0, "D00"),  # more than was claimed: no gap
        (8.0, 6.2, "D00"),  # a quarter may fade
        (8.0, 5.4, "K24"),
        (8.0, 0.2, "K24"),
        (8.0, -3.0, "K24"),
        (2.5, 1.7, "D00"),  # over a quarter, under one percent
        (2.5, 1.2, "K24"),
        (40.0, 32.0, "D00"),
        (40.0, 25.0, "K24"),
    ],
)
def test_a_gain_that_training_steps_dont_have(gain: float, found: float, code: str) -> None:
    trained = [session("train", i, s1=found, s2=found) for i in (1, 2)]
    first = decide(evidence(*confirmed(gain), trained[0], training=True, sigma_aa=0.0005), TRAINING)
    if code == "K24":  # one session alone rejects nothing
        assert isinstance(first, NeedMore)
        assert (first.level, first.sessions) == ("train", 1)
    d = decide(evidence(*confirmed(gain), *trained, training=True, sigma_aa=0.0005), TRAINING)
    assert isinstance(d, Decision)
    assert d.code == code
    if code == "D00":
        assert d.train_pct == pytest.approx(found, abs=0.05)
        assert d.gain_pct == pytest.approx(gain, abs=0.05)  # the confirmed gain stays the claim
    else:
        assert f"{gain:+.2f}% in the benchmark" in d.reason


def test_a_gap_that_the_second_session_doesnt_have_isnt_one() -> None:
    trained = (session("train", 1, s1=5.0, s2=5.0), session("train", 2, s1=8.0, s2=8.0))
    d = decide(evidence(*confirmed(8), *trained, training=True, sigma_aa=0.0005), TRAINING)
    assert isinstance(d, Decision)
    assert d.accepted
    assert d.train_pct == pytest.approx(6.5, abs=0.05)  # what both say together


def test_a_gap_within_the_noise_isnt_one() -> None:
    trained = session("train", 1, s1=5.4, s2=5.4)
    noisy = evidence(*confirmed(8), trained, training=True, sigma_aa=0.012)
    d = decide(noisy, TRAINING)
    assert isinstance(d, Decision)
    assert d.accepted


def test_training_comes_after_the_full_validation() -> None:
    e = evidence(*confirmed(3), training=True, full_is_quick=False)
    need = decide(e, TRAINING)
    assert isinstance(need, NeedMore)
    assert need.level == "full"
    need = decide(e.model_copy(update={"sessions": (*e.sessions, session("full", 1, s1=3, s2=3))}), TRAINING)
    assert isinstance(need, NeedMore)
    assert need.level == "train"


@pytest.mark.parametrize("training", [True, False])
def test_a_weight_caches_gain_is_capped(training: bool) -> None:
    trained = (session("train", 1, s1=8, s2=8),) if training else ()
    e = evidence(*confirmed(8), *trained, training=training)
    d = decide(e.model_copy(update={"cap_pct": 3.0}), TRAINING)
    assert isinstance(d, Decision)
    assert d.accepted
    assert (d.gain_pct, d.low_pct, d.high_pct) == (3.0, 3.0, 3.0)
    d = decide(e.model_copy(update={"cap_pct": 20.0}), TRAINING)
    assert isinstance(d, Decision)
    assert d.gain_pct == pytest.approx(8, abs=0.05)
    d = decide(e.model_copy(update={"cap_pct": 0.9}), TRAINING)
    assert isinstance(d, Decision)
    assert (d.verdict, d.code) == (Verdict.ROLLBACK, "D09")


def test_a_cap_of_nothing_is_too_little_for_every_policy() -> None:
    d = decide(evidence(*confirmed(8), cap_pct=0.0), POLICIES["precise"])
    assert isinstance(d, Decision)
    assert d.code == "D09"


logs = st.floats(-1.5, 1.5, allow_nan=False)
us = st.floats(0.1, 1e6)
sessions = st.builds(
    Session,
    level=st.sampled_from(["screen", "confirm", "full", "train"]),
    index=st.integers(1, 9),
    quads=st.dictionaries(
        st.sampled_from(["s1", "s2", "s3"]), st.lists(logs, min_size=1, max_size=9).map(tuple), min_size=1
    ),
    step_us=st.dictionaries(st.sampled_from(["s1", "s2"]), us),
)
evidences = st.builds(
    Evidence,
    gates=st.lists(
        st.builds(GateResult, code=st.sampled_from(["G01", "G03", "K11", "L01"]), ok=st.booleans()), max_size=2
    ).map(tuple),
    checks=st.lists(
        st.builds(
            CheckRow,
            shape=st.just("s1"),
            check=st.sampled_from(["FAIL", "ERROR"]),
            code=st.sampled_from(["G04", "K02", "K23"]),
        ),
        max_size=1,
    ).map(tuple),
    sessions=st.lists(sessions, max_size=8).map(tuple),
    core_shapes=st.sampled_from([(), ("s1",), ("s1", "s2")]),
    sigma_aa=st.floats(0, 0.1),
    high_risk=st.booleans(),
    cap_pct=st.none() | st.floats(0, 50),
    training=st.booleans(),
    full_is_quick=st.booleans(),
)


@settings(max_examples=150, deadline=None)
@given(evidences, st.sampled_from(list(POLICIES.values())))
def test_decide_is_total_and_deterministic(e: Evidence, policy: Policy) -> None:
    first = decide(e, policy)
    assert first == decide(e, policy)
    if isinstance(first, Decision):
        assert first.code in catalog()
        assert first.reason
        if first.accepted:  # never without proof
            assert first.low_pct is not None
            assert first.low_pct > 0
            assert first.gain_pct is not None
            assert e.cap_pct is None or first.gain_pct <= e.cap_pct
            trained = e.training and policy.transfer_quads > 0
            assert not trained or any(s.level == "train" for s in e.sessions)
    else:
        assert first.level != "train" or (e.training and policy.transfer_quads)
        assert sum(s.level == first.level for s in e.sessions) < policy.confirm_sessions + policy.extra_sessions + 2
