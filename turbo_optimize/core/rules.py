"""The decision: a tuple of small rules, asked in order; the first that speaks decides. Pure and total.

`decide` either answers with a Decision or says what else must be measured (NeedMore). Every code has a page in rules/.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence

from turbo_optimize.core import stats
from turbo_optimize.core.models import Decision, Evidence, Frozen, NeedMore, Policy, Session, Verdict


class Rule(Frozen):
    code: str
    title: str


TRAIN_SESSIONS = 2  # that must agree before a gain is called inflated
LOST_IN_TRAINING = 0.25  # a share of a gain that training steps may hide: their weight update takes time of its own
INFLATION_PCT = 1.0  # SPEC §5: a gap over this between benchmark and training is called inflation

# code -> title. CSV defects (C…) and audit findings (A…) are declared beside their checks; catalog() joins them.
RULES: dict[str, str] = {
    "G01": "scope",
    "G02": "static audit",
    "G03": "build",
    "G04": "correctness",
    "G05": "benchmark schema",
    "G06": "measured tree",
    "G07": "measurement failed",
    "D00": "accepted",
    "D02": "core shape veto",
    "D03": "no gain",
    "D04": "small gain not confirmed",
    "D05": "full validation",
    "D06": "inconclusive",
    "D07": "trade-off",
    "D08": "nothing to change",
    "D09": "weight cache capped",
    "T1": "target reached",
    "T2": "hardware efficiency reached",
    "T3": "max rounds",
    "T4": "stop asked",
    "T5": "wall clock",
    "T6": "no eligible direction",
    "S1": "stagnation review",
}


def catalog() -> dict[str, str]:
    """Every rule code of the product with its title, in order."""
    from turbo_optimize.core.audit import FINDINGS
    from turbo_optimize.core.checks import CHECKS, LIMITS
    from turbo_optimize.core.schema import DEFECTS

    return {**RULES, **dict(LIMITS.values()), **CHECKS, **DEFECTS, **FINDINGS}


def _of(e: Evidence, level: str) -> list[Session]:
    return [s for s in e.sessions if s.level == level]


def _answer(e: Evidence, p: Policy, verdict: Verdict, code: str, reason: str, over: list[Session]) -> Decision:
    """A decision with the numbers of the sessions it read."""
    if not over:
        return Decision(verdict=verdict, code=code, reason=reason)
    est = stats.combine(over, p, e.sigma_aa)
    deltas = stats.shape_deltas(over, p)
    return Decision(
        verdict=verdict, code=code, reason=reason, gain_pct=stats.pct(est.mean), sessions=est.n, shapes=deltas,
        low_pct=stats.pct(est.mean - p.z_accept * est.se), high_pct=stats.pct(est.mean + p.z_accept * est.se),
        trade_off=any(d.high_pct < 0 for d in deltas),
    )  # fmt: skip


def _evidence(e: Evidence) -> list[Session]:
    """What a verdict rests on: the confirming sessions, or the screen while there are none."""
    return _of(e, "confirm") or _of(e, "screen")


def _beyond_floor(shape: str, gain_pct: float, sessions: Sequence[Session], p: Policy) -> bool:
    """Whether a change of a shape's step is over the absolute floor: a launch's jitter is not a verdict on a kernel."""
    us = [s.step_us[shape] for s in sessions if shape in s.step_us]
    return not us or abs(gain_pct) / 100.0 * (sum(us) / len(us)) >= p.floor_us


def gates(e: Evidence, p: Policy) -> Decision | None:
    """Rule 1: scope, audit, build, correctness, schema: any failure rolls back."""
    for g in e.gates:
        if not g.ok:
            return Decision(verdict=Verdict.ROLLBACK, code=g.code, reason=g.detail or RULES.get(g.code, g.code))
    return None


def correctness(e: Evidence, p: Policy) -> Decision | None:
    bad = [c for c in e.checks if c.check != "PASS"]
    if bad:
        what = "; ".join(f"{c.shape} {c.check}: {c.detail}" for c in bad[:3])
        return Decision(verdict=Verdict.ROLLBACK, code=bad[0].code, reason=what)
    return None


def screen(e: Evidence, p: Policy) -> NeedMore | None:
    return None if _of(e, "screen") else NeedMore(level="screen", sessions=1, why="no session yet")


def veto(e: Evidence, p: Policy) -> Decision | NeedMore | None:
    """Rule 2: a core shape ≥ veto_pct slower, confirmed: an interval that straddles the bar is measured once more."""
    bar = -p.veto_pct
    sessions = _of(e, "screen") + _of(e, "confirm")
    slow = [d for d in stats.shape_deltas(sessions, p) if d.shape in e.core_shapes and d.gain_pct <= bar]
    slow = [d for d in slow if _beyond_floor(d.shape, d.gain_pct, sessions, p)]
    if not slow:
        return None
    worst = min(slow, key=lambda d: d.gain_pct)
    if worst.high_pct > bar and len(_of(e, "screen")) < 2:
        return NeedMore(level="screen", sessions=1, why=f"{worst.shape} straddles −{p.veto_pct:g}%")
    reason = (
        f"{worst.shape} is {-worst.gain_pct:.2f}% slower (95%: {worst.low_pct:+.2f} … {worst.high_pct:+.2f}%),"
        f" the bar is {p.veto_pct:g}%"
    )
    return _answer(e, p, Verdict.ROLLBACK, "D02", reason, _evidence(e))


def futility(e: Evidence, p: Policy) -> Decision | None:
    """Rule 3: not better than the incumbent, or the screen already excludes a gain worth claiming."""
    if _of(e, "confirm"):
        return None
    sessions = _of(e, "screen")
    est = stats.combine(sessions, p, e.sigma_aa)
    upper = stats.pct(est.mean + p.z_screen * est.se)
    if est.mean > 0 and upper >= p.min_gain_pct:
        return None
    reason = f"{stats.pct(est.mean):+.2f}% in the screen, at most {upper:+.2f}% (90%)"
    return _answer(e, p, Verdict.ROLLBACK, "D03", reason, sessions)


def confirm(e: Evidence, p: Policy) -> Decision | NeedMore | None:
    """Rules 4 and 6: fresh sessions, the screen excluded, must exclude "no gain" and agree with each other."""
    sessions = _of(e, "confirm")
    if len(sessions) < p.confirm_sessions:
        return NeedMore(level="confirm", sessions=p.confirm_sessions - len(sessions), why="the screen looks good")
    est = stats.combine(sessions, p, e.sigma_aa)
    gain, bar = stats.pct(est.mean), p.min_gain_pct
    proven = est.mean - p.z_accept * est.se > 0
    numbers = f"{gain:+.2f}% ± {100 * est.se:.2f}% over {est.n} sessions (deviation {100 * est.sd:.2f}%)"
    if proven and gain > bar and (gain >= p.steady_below_pct or est.sd < est.mean / 2):
        deltas = stats.shape_deltas(sessions, p)
        if any(_beyond_floor(d.shape, d.gain_pct, sessions, p) for d in deltas if d.gain_pct > 0):
            return None
        reason = f"{numbers}: no shape's step is {p.floor_us:g} µs faster"
        return _answer(e, p, Verdict.ROLLBACK, "D04", reason, sessions)
    if est.mean <= 0:
        return _answer(e, p, Verdict.ROLLBACK, "D03", f"{numbers}: not better", sessions)
    if stats.pct(est.mean + p.z_screen * est.se) < bar:
        return _answer(e, p, Verdict.ROLLBACK, "D04", f"{numbers}: the bar is {bar:g}%", sessions)
    if len(sessions) < p.confirm_sessions + p.extra_sessions:
        need = p.confirm_sessions + p.extra_sessions - len(sessions)
        return NeedMore(level="confirm", sessions=need, why=f"{numbers}: undecided")
    if proven and gain < p.small_gain_pct:
        reason = (
            f"{numbers}: below {p.small_gain_pct:g}% a mean over {bar:g}% and a deviation under half of it are needed"
        )
        return _answer(e, p, Verdict.ROLLBACK, "D04", reason, sessions)
    return _answer(e, p, Verdict.INCONCLUSIVE, "D06", f"{numbers}: neither a gain nor its absence is shown", sessions)


def full(e: Evidence, p: Policy) -> Decision | NeedMore | None:
    """Rule 5: below full_gain_pct or high risk, all target shapes decide."""
    sessions = _of(e, "confirm")
    est = stats.combine(sessions, p, e.sigma_aa)
    if (e.full_is_quick and p.full_skips_same) or (stats.pct(est.mean) >= p.full_gain_pct and not e.high_risk):
        return None
    measured = _of(e, "full")
    if len(measured) < p.full_sessions:
        why = "high-risk change" if e.high_risk else f"gain below {p.full_gain_pct:g}%"
        return NeedMore(level="full", sessions=p.full_sessions - len(measured), why=why)
    whole = stats.combine(measured, p, e.sigma_aa)
    low = stats.pct(whole.mean - p.z_full * whole.se)
    slow = [d for d in stats.shape_deltas(measured, p) if d.shape in e.core_shapes and d.gain_pct <= -p.veto_pct]
    slow = [d for d in slow if _beyond_floor(d.shape, d.gain_pct, measured, p)]
    if low > 0 and not slow:
        return None
    reason = (
        f"{slow[0].shape} is {-slow[0].gain_pct:.2f}% slower in the full validation"
        if slow
        else f"full validation: {stats.pct(whole.mean):+.2f}%, at least {low:+.2f}% (95%)"
    )
    return _answer(e, p, Verdict.ROLLBACK, "D05", reason, measured)


def transfer(e: Evidence, p: Policy) -> Decision | NeedMore | None:
    """The training-transfer rule: the gain is measured again in training steps, and a weight cache's is capped."""
    sessions = _of(e, "confirm")
    claimed = stats.combine(sessions, p, e.sigma_aa)
    if e.cap_pct is not None and e.cap_pct < max(p.min_gain_pct, 0.01):
        reason = f"a weight cache saves {e.cap_pct:.2f}% of a step at the most, the bar is {p.min_gain_pct:g}%"
        return _answer(e, p, Verdict.ROLLBACK, "D09", reason, sessions)
    if not e.training or not p.transfer_quads:
        return None
    measured = _of(e, "train")
    if not measured:
        return NeedMore(level="train", sessions=1, why="does the gain hold in training steps?")
    found = stats.combine(measured, p, e.sigma_aa)
    gap, se = claimed.mean - found.mean, math.hypot(claimed.se, found.se)
    if gap - p.z_full * se <= max(stats.log_gain(INFLATION_PCT), LOST_IN_TRAINING * claimed.mean):
        return None
    if len(measured) < TRAIN_SESSIONS:
        return NeedMore(level="train", sessions=1, why="training steps show less of the gain: once more")
    reason = f"{stats.pct(claimed.mean):+.2f}% in the benchmark, {stats.pct(found.mean):+.2f}% in training steps"
    return _answer(e, p, Verdict.ROLLBACK, "K24", reason, sessions)


def accept(e: Evidence, p: Policy) -> Decision:
    """Nothing objects: accepted; with a shape that provably lost less than the veto, as a trade-off (rule 7)."""
    answer = _answer(e, p, Verdict.ACCEPTED, "D00", "", _of(e, "confirm"))
    if trained := _of(e, "train"):
        answer = answer.model_copy(update={"train_pct": stats.pct(stats.combine(trained, p, e.sigma_aa).mean)})
    if e.cap_pct is not None and answer.gain_pct is not None:
        capped = {k: min(getattr(answer, k), e.cap_pct) for k in ("gain_pct", "low_pct", "high_pct")}
        answer = answer.model_copy(update=capped)
    lost = [f"{d.shape} {d.gain_pct:+.2f}%" for d in answer.shapes if d.high_pct < 0]
    reason = f"{answer.gain_pct:+.2f}% (at least {answer.low_pct:+.2f}%) over {answer.sessions} sessions"
    if lost:
        return answer.model_copy(update={"code": "D07", "reason": f"{reason}; trade-off: {', '.join(lost)}"})
    return answer.model_copy(update={"reason": reason})


LADDER: tuple[Callable[[Evidence, Policy], Decision | NeedMore | None], ...] = (
    gates, correctness, screen, veto, futility, confirm, full, transfer, accept,
)  # fmt: skip


def decide(evidence: Evidence, policy: Policy) -> Decision | NeedMore:
    """The first rule that speaks. Total: `accept` always does, or a rule before it has."""
    answers: Iterator[Decision | NeedMore] = (a for rule in LADDER if (a := rule(evidence, policy)) is not None)
    return next(answers)
