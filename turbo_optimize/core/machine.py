"""What comes next, and when to end. Pure: a state goes in, a phase or a termination comes out."""

from __future__ import annotations

from collections.abc import Callable

from turbo_optimize.core.events import Phase, Terminated
from turbo_optimize.core.hardware import peak_in
from turbo_optimize.core.models import Policy, Score
from turbo_optimize.core.scoring import parse_target, target_met
from turbo_optimize.core.state import State

# Rollbacks in a row -> what ANALYZE must do about it (SPEC §2). They never end a campaign.
REVIEWS: dict[int, str] = {
    1: "diagnose: say why the last attempt failed before the next",
    2: "re-profile, and a stagnation review with at least three directions of other categories",
    3: "go to ISA level: registers, spills, waits and the matrix instructions of the hot loop",
    4: "a fundamentally different approach",
}


def review(state: State) -> str:
    n = state.rollbacks_in_a_row
    return REVIEWS[min(n, max(REVIEWS))] if n else ""


def incumbent_score(state: State) -> Score | None:
    """The absolute score of the last accepted round, else of the baseline."""
    kept = [r.score for r in state.accepted if r.score]
    return kept[-1] if kept else (state.baseline.score if state.baseline else None)


def measured_score(state: State) -> Score | None:
    """The incumbent's own score, or None while it has none: a revert stands that was never measured as a whole."""
    measured = {r.applied: r.score for r in state.accepted}
    if state.baseline:
        measured[state.baseline.commit] = state.baseline.score
    return measured.get(state.incumbent)


def _target(state: State, policy: Policy, peak_key: str) -> str | None:
    m, score = state.manifest, measured_score(state)
    if not m or not m.performance_target or not score:
        return None
    target = parse_target(m.performance_target)
    met = target_met(target, score, peak_in(score.unit, m.target_gpu, peak_key))
    return f"{score.value:.4g} {score.unit} meets {m.performance_target}" if met else None


def _efficiency(state: State, policy: Policy, peak_key: str) -> str | None:
    m, score = state.manifest, measured_score(state)
    if not m or not score or m.target_gpu == "cpu":  # an interpreter has no roofline
        return None
    share = 100.0 * score.value / peak_in(score.unit, m.target_gpu, peak_key)
    return f"{share:.1f}% of the roofline" if share >= policy.efficiency_pct else None


def _rounds(state: State, policy: Policy, peak_key: str) -> str | None:
    done = len(state.rounds)
    return f"{done} of {state.max_rounds} rounds" if done >= state.max_rounds else None


def _stop(state: State, policy: Policy, peak_key: str) -> str | None:
    return state.stop_asked


def _clock(state: State, policy: Policy, peak_key: str) -> str | None:
    limit = state.max_duration_s
    return f"{state.elapsed_s:.0f} s of {limit:.0f} s" if limit and state.elapsed_s >= limit else None


# T6 has no test here: it is ANALYZE that finds no direction left.
TERMINATIONS: tuple[tuple[str, Callable[[State, Policy, str], str | None]], ...] = (
    ("T4", _stop),
    ("T1", _target),
    ("T2", _efficiency),
    ("T3", _rounds),
    ("T5", _clock),
)


def termination(state: State, policy: Policy, peak_key: str = "bf16") -> Terminated | None:
    """The first condition that ends the campaign. A stop is heeded within a round; all others between rounds."""
    for code, test in TERMINATIONS:
        if state.current is not None and code != "T4":
            continue
        if why := test(state, policy, peak_key):
            return Terminated(code=code, why=why)
    return None


def next_phase(state: State, policy: Policy) -> Phase:
    """The phase that goes on from `state`; a termination must have been journaled to be seen here."""
    if state.manifest is None:
        return Phase.DEFINE_TARGET
    if state.reported:
        return Phase.DONE
    if state.prepared is None:
        return Phase.PREPARE_ENVIRONMENT
    if state.terminated:
        return Phase.REPORT
    if state.baseline is None and state.learned is None:
        return Phase.PREPARE_ENVIRONMENT
    if state.baseline is None:
        return Phase.BASELINE
    r = state.current
    if r is None:
        return Phase.ANALYZE
    if r.decision:
        return Phase.VALIDATE  # intent without its fact
    if r.proposal is None:
        return Phase.WAIT if state.manifest.proposer == "manual" else Phase.OPTIMIZE
    failed = any(not g.ok for g in r.gates) or any(c.check != "PASS" for c in r.checks)
    if failed:
        return Phase.OPTIMIZE if r.repairable and r.attempt <= policy.debug_retry else Phase.VALIDATE
    return Phase.VALIDATE if r.commit else Phase.OPTIMIZE
