"""Rounds of a known true gain, decided by the real `decide`. Pure: the random stream is an argument."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from turbo_optimize.core import stats
from turbo_optimize.core.models import Decision, Evidence, Level, NeedMore, Policy, Session
from turbo_optimize.core.rules import decide
from turbo_optimize.simulation.noise import Floats, Noise, ShapeNoise, biases, block_times, paired, quad_gains

CAMPAIGN = 100  # rounds that share one A/A calibration

# (shapes, log gain, quads, sessions, stream) -> [sessions, shapes, quads]
Measure = Callable[[Noise, tuple[ShapeNoise, ...], float, int, int, np.random.Generator], Floats]


@dataclass(frozen=True)
class Setup:
    """What a campaign runs under. `calibrated`: the machine as BASELINE saw it, where it isn't what rounds see."""

    policy: Policy
    noise: Noise
    calibrated: Noise | None = None
    measure: Measure = paired
    answer: Callable[[Evidence, Policy], Decision | NeedMore] = decide


@dataclass
class Tally:
    """Rounds counted. `campaigns` holds how many were accepted in each campaign."""

    rounds: int = 0
    accepted: int = 0
    sessions: int = 0
    campaigns: list[int] = field(default_factory=list)
    codes: Counter[str] = field(default_factory=Counter)
    claimed_pct: float = 0.0  # sum over accepted rounds

    def add(self, other: Tally) -> None:
        self.rounds += other.rounds
        self.accepted += other.accepted
        self.sessions += other.sessions
        self.campaigns += other.campaigns
        self.codes += other.codes
        self.claimed_pct += other.claimed_pct


def as_sessions(level: Level, first: int, shapes: tuple[ShapeNoise, ...], quads: Floats) -> tuple[Session, ...]:
    """[sessions, shapes, quads] as the values that the rules read."""
    labels = [s.label for s in shapes]
    return tuple(
        Session(level=level, index=i, quads=dict(zip(labels, map(tuple, one), strict=True)))
        for i, one in enumerate(quads.tolist(), first)
    )


def calibrate(setup: Setup, rng: np.random.Generator) -> Evidence:
    """BASELINE's A/A over the target shapes: σ_AA of the representative ones, and the shapes that may veto."""
    noise, p = setup.calibrated or setup.noise, setup.policy
    quads = setup.measure(noise, noise.target, 0.0, p.quads, p.aa_sessions, rng)
    quick = [noise.target.index(s) for s in noise.representative]
    moves = stats.noise_pct(as_sessions("aa", 1, noise.target, quads), p.trim)
    return Evidence(
        sigma_aa=stats.sigma_aa(as_sessions("aa", 1, noise.representative, quads[:, quick]), p.trim),
        core_shapes=tuple(label for label, v in moves.items() if v <= p.launch_bound_pct),
        full_is_quick=noise.representative == noise.target,
        training=True,
    )


def play(setup: Setup, baseline: Evidence, gain: float, rng: np.random.Generator) -> tuple[Decision, int]:
    """One round of true log gain `gain`, measured for as long as the decision asks: what it says, and its sessions."""
    sessions: tuple[Session, ...] = ()
    while True:
        answer = setup.answer(baseline.model_copy(update={"sessions": sessions}), setup.policy)
        if not isinstance(answer, NeedMore):
            return answer, len(sessions)
        shapes = setup.noise.target if answer.level == "full" else setup.noise.representative
        count = setup.policy.transfer_quads if answer.level == "train" else setup.policy.quads
        quads = setup.measure(setup.noise, shapes, gain, count, answer.sessions, rng)
        first = 1 + sum(s.level == answer.level for s in sessions)
        sessions += as_sessions(answer.level, first, shapes, quads)


def campaign(setup: Setup, gain_pct: float, rounds: int, rng: np.random.Generator) -> Tally:
    """Rounds under one calibration. Each has the same true gain over its incumbent, whatever was accepted before."""
    baseline, gain = calibrate(setup, rng), stats.log_gain(gain_pct)
    out = Tally(rounds=rounds)
    for _ in range(rounds):
        decision, sessions = play(setup, baseline, gain, rng)
        out.sessions += sessions
        out.codes[decision.code] += 1
        if decision.accepted:
            out.accepted += 1
            out.claimed_pct += decision.gain_pct or 0.0
    out.campaigns.append(out.accepted)
    return out


def one_pair(
    noise: Noise, shapes: tuple[ShapeNoise, ...], gain: float, quads: int, n: int, rng: np.random.Generator
) -> Floats:
    """As `paired`, but all n sessions are of one pair of processes: what the protocol must not do, for comparison."""
    bias = np.repeat(biases(noise, shapes, 1, rng), n, axis=0)
    return quad_gains(*block_times(noise, shapes, bias, gain, quads, rng))
