"""The specified rule on stored CSV numbers, for comparison: every score is one benchmark run's, the incumbent's is an old one.

Not a candidate for use. Rules 1 to 5 with the shipped thresholds: a shape 5% slower or a score not better rolls back; below +2%
three more runs must average over +1% with a deviation under half of it; below +5% the full benchmark must be better and veto nothing.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from turbo_optimize.core import stats
from turbo_optimize.core.models import Policy
from turbo_optimize.simulation.driver import CAMPAIGN, Tally
from turbo_optimize.simulation.noise import Floats, Noise, ShapeNoise, plain_loops

AGAIN = 3  # "re-measure at least 3 more times"


def _run(shapes: tuple[ShapeNoise, ...], gain: float, campaigns: int, rng: np.random.Generator) -> Floats:
    """Log scores of one benchmark run in each campaign: [campaigns, shapes]"""
    return -plain_loops(shapes, gain, campaigns, rng)


def _vetoed(gain: Floats, shapes: tuple[ShapeNoise, ...], policy: Policy) -> NDArray[np.bool_]:
    core = [not s.launch_bound for s in shapes]
    return np.any(gain[:, core] <= stats.log_gain(-policy.veto_pct), axis=1)


def decide_stored(
    noise: Noise, policy: Policy, gain: float, best: Floats, best_full: Floats, rng: np.random.Generator
) -> tuple[NDArray[np.bool_], Floats, Floats, Floats]:
    """One round in each campaign against the stored log scores: accepted, claimed log gain, the new quick and full scores."""
    campaigns, quick, target = len(best), noise.representative, noise.target
    score = _run(quick, gain, campaigns, rng)
    first = (score - best).mean(axis=1)
    again = np.stack([(_run(quick, gain, campaigns, rng) - best).mean(axis=1) for _ in range(AGAIN)])
    mean, sd = again.mean(axis=0), again.std(axis=0, ddof=1)
    small = first < stats.log_gain(policy.small_gain_pct)
    good = np.where(small, (first > 0) & (mean > stats.log_gain(policy.min_gain_pct)) & (sd < mean / 2), True)
    good &= ~_vetoed(score - best, quick, policy)
    claimed = np.where(small, mean, first)
    full = _run(target, gain, campaigns, rng)
    full_gain = (full - best_full).mean(axis=1)
    need = claimed < stats.log_gain(policy.full_gain_pct)
    good &= ~need | ((full_gain > 0) & ~_vetoed(full - best_full, target, policy))
    return good, np.where(need, full_gain, claimed), score, full


def play_stored(
    noise: Noise, policy: Policy, gain_pct: float, campaigns: int, rng: np.random.Generator, rounds: int = CAMPAIGN
) -> Tally:
    """Campaigns in which nothing changes, each false accept storing its lucky scores as the incumbent's.

    Counted is what the rule says at each round of a change of `gain_pct`: of 0 the null rounds themselves, else a change beside
    them, judged against the same incumbent and then dropped. One round: against an incumbent that was measured once.
    """
    gain, shapes = stats.log_gain(gain_pct), (noise.representative, noise.target)
    best, best_full = (_run(s, 0.0, campaigns, rng) for s in shapes)
    accepted, claimed = np.zeros(campaigns, dtype=np.int64), 0.0
    for _ in range(rounds):
        null = decide_stored(noise, policy, 0.0, best, best_full, rng)
        good, claims, *_ = null if gain == 0 else decide_stored(noise, policy, gain, best, best_full, rng)
        accepted += good
        claimed += float(100 * np.expm1(claims[good]).sum())
        best, best_full = (
            np.where(null[0][:, None], new, old) for new, old in zip(null[2:], (best, best_full), strict=True)
        )
    return Tally(
        rounds=campaigns * rounds, accepted=int(accepted.sum()), campaigns=accepted.tolist(), claimed_pct=claimed
    )
