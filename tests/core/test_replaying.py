"""Another policy over recorded sessions: handed out one by one, as a campaign asks for them."""

from __future__ import annotations

import math
from collections.abc import Sequence

import pytest

from turbo_optimize.core.models import (
    CheckRow,
    Decision,
    Evidence,
    Level,
    NeedMore,
    Policy,
    Proposal,
    Role,
    Sample,
    Session,
    Verdict,
)
from turbo_optimize.core.replaying import UNDECIDABLE, counts, noise_of, redecide, replay, sessions_of
from turbo_optimize.core.rules import decide
from turbo_optimize.core.state import Round
from turbo_optimize.core.stats import ABBA

POLICY = Policy(confirm_sessions=2, extra_sessions=0, full_gain_pct=1.0, small_gain_pct=0.0)
CHECKS = (CheckRow(shape="a", check="PASS", metrics={"out_snr": 30.0}),)


def session(level: Level, index: int, gain: float) -> Session:
    return Session(level=level, index=index, quads={"a": tuple(math.log1p(gain) + d for d in (-1e-4, 0, 0, 1e-4))})


def evidence(*sessions: Session) -> Evidence:
    return Evidence(checks=CHECKS, sessions=sessions, core_shapes=("a",), sigma_aa=1e-4, full_is_quick=True)


FOUR = (session("screen", 1, 0.1), *(session("confirm", i, 0.1) for i in (1, 2, 3)))


def test_sessions_that_the_policy_would_not_have_measured_are_not_read() -> None:
    answer = redecide(evidence(*FOUR), POLICY)
    assert isinstance(answer, Decision)
    assert (answer.verdict, answer.sessions) == (Verdict.ACCEPTED, 2)
    all_at_once = decide(evidence(*FOUR), POLICY)
    assert isinstance(all_at_once, Decision)
    assert all_at_once.sessions == 3


def test_a_bad_late_session_is_not_seen_before_its_turn() -> None:
    late = session("confirm", 3, -0.5)
    answer = redecide(evidence(*FOUR[:3], late), POLICY)
    assert isinstance(answer, Decision)
    assert answer.accepted


def test_what_was_never_measured_is_asked_for() -> None:
    answer = redecide(evidence(*FOUR), POLICY.model_copy(update={"confirm_sessions": 5}))
    assert isinstance(answer, NeedMore)
    assert (answer.level, answer.sessions) == ("confirm", 2)


def samples(level: Level, index: int, quads: Sequence[tuple[float, float]]) -> list[Sample]:
    """One shape's blocks: per quad the milliseconds of A and of B."""
    out = []
    for quad, (a, b) in enumerate(quads):
        time_ms: dict[Role, float] = {"A": a, "B": b}
        out += [
            Sample(
                level=level,
                session=index,
                shape="a",
                quad=quad,
                slot=slot,
                role=role,
                calls=1,
                step_ms=time_ms[role],
                wall_ms=9,
            )
            for slot, role in enumerate(ABBA)
        ]
    return out


def test_sessions_come_back_from_their_samples_in_order() -> None:
    raw = [*samples("screen", 1, [(2, 1), (4, 1)]), *samples("confirm", 1, [(1, 1)])]
    first, second = sessions_of(raw)
    assert (first.level, first.index, second.level) == ("screen", 1, "confirm")
    assert first.quads["a"] == pytest.approx((math.log(2), math.log(4)))
    with pytest.raises(ValueError, match="expected 2 and 2"):
        sessions_of(raw[:-1])


def test_noise_follows_the_policy() -> None:
    aa = sessions_of(samples("aa", 1, [(1.2, 1), (1, 1), (1, 1), (1, 1)]))
    quiet = noise_of(aa, ("a",), Policy(quads=4, trim=1))
    loud = noise_of(aa, ("a",), Policy(quads=4, trim=0, launch_bound_pct=1.0))
    assert (quiet.sigma_aa, quiet.core_shapes) == (0.0, ("a",))
    assert loud.sigma_aa == pytest.approx(math.log(1.2) / 4)
    assert loud.core_shapes == ()


def closed(number: int, verdict: Verdict, code: str) -> Round:
    return Round(
        number=number, proposal=Proposal(hypothesis="h", change="c", summary="s"), applied="0" * 40,
        decision=Decision(verdict=verdict, code=code, reason="then"),
    )  # fmt: skip


def test_the_path_is_hypothetical_after_the_first_difference() -> None:
    rounds = [closed(n, Verdict.ACCEPTED, "D00") for n in (2, 3, 4, 5)]
    rounds[1] = closed(3, Verdict.ROLLBACK, "D08")
    told = {2: FOUR, 4: (session("screen", 1, -0.02),), 5: FOUR[:2]}
    found = replay(rounds, lambda r: evidence(*told[r.number]), POLICY)
    assert [(r.verdict, r.code, r.differs, r.hypothetical) for r in found] == [
        ("ACCEPTED", "D00", False, False),
        ("ROLLBACK", "D08", False, False),
        ("ROLLBACK", "D03", True, False),
        (UNDECIDABLE, "", True, True),
    ]
    assert found[3].why.startswith("needs 1 more confirm session:")
    assert counts(found) == {"ACCEPTED": 1, "ROLLBACK": 2, UNDECIDABLE: 1}
