"""Rounds through the real decision: few of them, so the bounds are wide; docs/simulation.md has the many."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from turbo_optimize.core import stats
from turbo_optimize.core.models import POLICIES, Level, Policy
from turbo_optimize.simulation.driver import Measure, Setup, as_sessions, calibrate, campaign, one_pair, play
from turbo_optimize.simulation.noise import NOISES, Noise, paired
from turbo_optimize.simulation.stored import play_stored

H200 = NOISES["h200"]
QUICK = replace(H200, target=H200.representative)


def alone(policy: str) -> Policy:
    """With QUICK what the confirming sessions alone do: no full validation and no training steps after them."""
    return POLICIES[policy].model_copy(update={"full_skips_same": True, "transfer_quads": 0})


def rate(setup: Setup, gain_pct: float, rounds: int, seed: int = 1) -> float:
    return campaign(setup, gain_pct, rounds, np.random.default_rng(seed)).accepted / rounds


def test_calibration_is_the_real_one() -> None:
    found = calibrate(Setup(POLICIES["standard"], H200), np.random.default_rng(1))
    assert 0.001 < found.sigma_aa < 0.005  # 0.24% for these five shapes
    assert len(found.core_shapes) == 8 and not found.full_is_quick
    assert "512x512x512" not in calibrate(Setup(POLICIES["standard"], _cold()), np.random.default_rng(1)).core_shapes


def _cold() -> Noise:
    return replace(H200, soak_s=0.0)


def test_a_round_is_measured_as_the_decision_asks() -> None:
    setup, rng = Setup(POLICIES["standard"], H200), np.random.default_rng(1)
    baseline = calibrate(setup, rng)
    assert play(setup, baseline, 0.02, rng)[1] == 1 + 3 + 1 + 1  # screen, confirm, full, train
    refused, sessions = play(setup, baseline, -0.02, rng)
    assert (refused.code, sessions) == ("D03", 1)
    assert play(setup, baseline, 0.1, rng)[1] == 1 + 3 + 1  # above full_gain_pct
    precise = Setup(POLICIES["precise"], QUICK)
    assert play(precise, calibrate(precise, rng), 0.02, rng)[1] == 1 + 3 + 2 + 1  # the same shapes, twice more
    slower, _ = play(setup, baseline, -0.2, rng)
    assert slower.code == "D02"


@pytest.mark.parametrize("policy", ["standard", "precise"])
def test_null_rounds_are_refused_and_gains_found(policy: str) -> None:
    setup = Setup(POLICIES[policy], H200)
    assert rate(setup, 0.0, 150) <= 0.01
    assert rate(setup, -1.0, 50) == 0
    assert rate(setup, 2.0, 50) >= 0.95


def test_precise_finds_smaller_gains() -> None:
    assert rate(Setup(POLICIES["precise"], H200), 0.7, 50) > 0.6 > rate(Setup(POLICIES["standard"], H200), 0.7, 50)


def test_more_noise_costs_found_gains_not_false_accepts() -> None:
    setup = Setup(POLICIES["precise"], NOISES["noisy"])
    assert rate(setup, 0.0, 150) <= 0.01
    assert rate(setup, 0.7, 50) < 0.3


@pytest.mark.parametrize("noise", ["h200", "noisy"])
def test_only_fresh_processes_have_the_error_that_they_claim(noise: str) -> None:
    """Six sessions, of six pairs and of one: the same quads, the same claimed SE, not the same error."""
    machine, policy, level = NOISES[noise], POLICIES["standard"], "confirm"
    fresh, stuck = (_error_in_ses(machine, measure, policy, level) for measure in (paired, one_pair))
    assert fresh < 1.1
    assert stuck > 2.5


def _error_in_ses(machine: Noise, measure: Measure, policy: Policy, level: Level) -> float:
    """Root mean square of the estimate's error in claimed standard errors (of the sessions alone, σ_AA aside)."""
    rng, found = np.random.default_rng(3), []
    for _ in range(40):
        quads = measure(machine, machine.representative, 0.0, 8, 6, rng)
        est = stats.combine(as_sessions(level, 1, machine.representative, quads), policy, 0.0)
        found.append((est.mean, est.se))
    means, ses = np.array(found).T
    return math.sqrt((means**2).mean() / (ses**2).mean())


def test_one_pair_of_processes_accepts_what_is_not_there() -> None:
    """As many quads, calibration included: each time the decision asks, one pair of processes answers it all."""
    accepted = {
        measure: sum(
            campaign(Setup(alone("precise"), QUICK, measure=measure), 0.0, 12, np.random.default_rng(i)).accepted
            for i in range(10)
        )
        for measure in (paired, one_pair)
    }
    assert accepted[paired] <= 1
    assert accepted[one_pair] >= 5


@pytest.mark.parametrize("policy", ["standard", "precise"])
def test_what_is_said_to_be_resolved_is(policy: str) -> None:
    """Within 20%: four fifths of that gain are found less often than in 80% of rounds, six fifths more often."""
    p = alone(policy)
    sigma = np.median([calibrate(Setup(p, QUICK), np.random.default_rng(i)).sigma_aa for i in range(20)])
    gain = stats.resolvable_pct(float(sigma), p)
    below, above = (
        np.mean([rate(Setup(p, QUICK), share * gain, 25, seed) for seed in range(3)]) for share in (0.8, 1.2)
    )
    assert below < 0.8 < above


def test_resolved_gain_follows_the_noise_and_the_bar() -> None:
    standard, precise = POLICIES["standard"], POLICIES["precise"]
    assert stats.resolvable_pct(0.0, standard) == pytest.approx(1.0)
    assert stats.resolvable_pct(0.0, precise) == pytest.approx(0.0, abs=1e-6)
    assert stats.resolvable_pct(0.004, precise) == pytest.approx(2 * stats.resolvable_pct(0.002, precise), rel=0.02)
    more = precise.model_copy(update={"confirm_sessions": 8, "extra_sessions": 8})
    assert stats.resolvable_pct(0.002, more) < stats.resolvable_pct(0.002, precise)
    unvalidated = precise.model_copy(update={"full_skips_same": True})
    assert stats.resolvable_pct(0.002, unvalidated) < 0.95 * stats.resolvable_pct(0.002, precise)
    one = precise.model_copy(update={"confirm_sessions": 1, "extra_sessions": 0})
    assert stats.resolvable_pct(0.002, one) == pytest.approx(0.2 * (3.09 + 0.8416), rel=0.01)  # z_accept + z(80%)


def test_stored_numbers_are_fooled_in_most_campaigns() -> None:
    null = play_stored(H200, POLICIES["standard"], 0.0, 200, np.random.default_rng(1))
    assert np.mean(np.array(null.campaigns) > 0) > 0.8
    assert sum(null.campaigns) == null.accepted
    first = play_stored(H200, POLICIES["standard"], -1.0, 2000, np.random.default_rng(1), rounds=1)
    assert first.accepted / first.rounds > 0.1  # 1% slower than an incumbent that was measured once


def test_a_lucky_incumbent_hides_real_gains_from_stored_numbers() -> None:
    def found(campaigns: int, rounds: int) -> float:
        t = play_stored(H200, POLICIES["standard"], 2.0, campaigns, np.random.default_rng(1), rounds)
        return t.accepted / t.rounds

    assert found(2000, 1) > 2 * found(50, 100)
