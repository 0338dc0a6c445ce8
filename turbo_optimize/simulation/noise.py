"""The noise of timed blocks: pure, numpy only. Times are natural logs; `_pct` fields are hundredths of them.

Each figure names its source. GOALS: "Noise, measured on one H200 with one unchanged kernel" (docs/simulation.md quotes it).
RECORD: the A/A sessions of tests/replay/h200_gemm_fp8. ASSUMED: no measurement; docs/simulation.md says what it changes.

A block of shape s in process p at time t takes

    ln time = −gain(p) + bias(p, s) + drift(t) + position(slot) + white + outlier

`bias` is drawn once for a process and a shape and stays for life, so that pairing within one pair of processes can't remove
it; `drift` (settling clocks, then an AR(1)) is common to both processes; `position` is what the outer blocks of a quad
are slower or faster by than the inner ones.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

BIAS_SHARE = 0.8  # RECORD: within-session error² is 0.2 of the session estimates' mean square on the four steady shapes
TRIM_COST = 1.06  # a trimmed mean of 6 of 8 normal values against the mean of 8 (known: the trimmed mean's efficiency)
QUADS = 8  # of the sessions whose deviation GOALS gives
OUTER_COLD_PCT, OUTER_SOAKED_PCT = (
    -0.91,
    -0.22,
)  # GOALS and its protocol: outer less inner blocks, without / with the soak
SETTLE_PCT, SETTLE_S = (
    1.5,
    0.3,
)  # ASSUMED: clocks start this much too slow and settle with this time constant ("first second")
DRIFT_PCT, DRIFT_RHO = 0.3, 0.98  # ASSUMED: AR(1) of the clocks from block to block
OUTLIER_SHARE, OUTLIER_SIZE = 0.01, 8.0  # ASSUMED: this share of blocks is late by Exp(mean 8 white deviations)
BLOCK_S = 0.02  # 10 ms and 20 calls at least, with its warm-up
LOOP_SHARED = 0.33  # share of the between-process variance that all shapes have in common: GOALS' geomean cv of 4.5%


@dataclass(frozen=True)
class ShapeNoise:
    """One shape. Percent; `session_*` is the deviation of an 8-quad session's "no change" estimate."""

    label: str
    session_pct: float  # with the soak and random order
    session_cold_pct: float  # without the soak
    loop_pct: float  # between fresh processes, a plain 50-iteration loop; what a stored CSV number carries
    launch_bound: bool = False

    def bias_pct(self, soak: bool) -> float:
        """Deviation of one process's bias for life (two of them make a session's)."""
        return (self.session_pct if soak else self.session_cold_pct) * math.sqrt(BIAS_SHARE / 2)

    def white_pct(self, soak: bool) -> float:
        """Deviation of one block; a quad (Σ A − Σ B)/2 has the same."""
        session = self.session_pct if soak else self.session_cold_pct
        return session * math.sqrt((1 - BIAS_SHARE) * QUADS) / TRIM_COST


def _spread(percent: float) -> float:
    """Deviation (percent) of normal values of which eight have this expected (max − min)/min."""
    return 100 * math.log1p(percent / 100) / 2.847


# GOALS gives four shapes; the other four are ASSUMED to behave like the measured one that is nearest in size.
TINY = ShapeNoise("512x512x512", 1.1, 23.7, _spread(55), launch_bound=True)
SMALL = ShapeNoise(
    "1024x4096x4096", 0.19, 0.60, _spread(11)
)  # cold: a pair's bias of 0.95% was seen once; ASSUMED as LARGE
MEDIUM = ShapeNoise("4096x4096x4096", 0.29, 0.38, _spread(6.3))
LARGE = ShapeNoise("4096x28672x4096", 0.23, 0.60, _spread(0.7))
REPRESENTATIVE = (TINY, SMALL, replace(SMALL, label="2048x6144x4096"), MEDIUM, LARGE)
TARGET = (
    *REPRESENTATIVE,
    replace(LARGE, label="4096x4096x14336"),
    replace(MEDIUM, label="8192x6144x4096"),
    replace(LARGE, label="8192x8192x8192"),
)


@dataclass(frozen=True)
class Noise:
    """A machine. `least_bias_pct`: every shape's process-level bias is at least this."""

    name: str
    representative: tuple[ShapeNoise, ...] = REPRESENTATIVE
    target: tuple[ShapeNoise, ...] = TARGET
    soak_s: float = 1.0
    least_bias_pct: float = 0.0
    fixed_order: bool = False  # ABBA in every quad: what the protocol used to do, kept to show why it doesn't

    def bias(self, shapes: tuple[ShapeNoise, ...]) -> Floats:
        return np.array([max(s.bias_pct(self.soak_s > 0), self.least_bias_pct) for s in shapes]) / 100

    def white(self, shapes: tuple[ShapeNoise, ...]) -> Floats:
        return np.array([s.white_pct(self.soak_s > 0) for s in shapes]) / 100

    @property
    def outer(self) -> float:
        return (OUTER_SOAKED_PCT if self.soak_s > 0 else OUTER_COLD_PCT) / 100


NOISES: dict[str, Noise] = {
    "h200": Noise("h200"),
    "noisy": Noise("noisy", least_bias_pct=1.0),  # a bias of 1% on every process and shape, five times the H200's
}
COLD = Noise("cold", soak_s=0.0)
COLD_FIXED = Noise("cold-fixed", soak_s=0.0, fixed_order=True)


def biases(noise: Noise, shapes: tuple[ShapeNoise, ...], pairs: int, rng: np.random.Generator) -> Floats:
    """Of fresh pairs of processes, [pairs, shapes, 2]: log time, for life."""
    return rng.standard_normal((pairs, len(shapes), 2)) * noise.bias(shapes)[:, None]


def block_times(
    noise: Noise, shapes: tuple[ShapeNoise, ...], bias: Floats, gain: float, quads: int, rng: np.random.Generator
) -> tuple[Floats, NDArray[np.int64]]:
    """Log times [pairs, shapes, quads, 4] and who ran, of the same shape: 0 the incumbent, 1 the candidate.

    bias: [pairs, shapes, 2]; gain: the candidate's true log gain. The blocks of a shape follow each other, the shapes too.
    """
    pairs, count = bias.shape[0], len(shapes)
    first = np.zeros((pairs, count, quads), dtype=np.int64) if noise.fixed_order else orders(pairs, count, quads, rng)
    role = first[..., None] ^ np.array([0, 1, 1, 0])
    x = np.where(role == 1, bias[:, :, None, 1:] - gain, bias[:, :, None, :1])
    x += drift(noise, pairs * count, 4 * quads, rng).reshape(x.shape)
    x += np.array([0.5, -0.5, -0.5, 0.5]) * noise.outer
    white = noise.white(shapes)[:, None, None]
    x += rng.standard_normal(x.shape) * white
    late = rng.random(x.shape) < OUTLIER_SHARE
    x[late] += rng.exponential(OUTLIER_SIZE, x.shape)[late] * np.broadcast_to(white, x.shape)[late]
    return x, role


def orders(pairs: int, shapes: int, quads: int, rng: np.random.Generator) -> NDArray[np.int64]:
    """Who begins each quad: as core.stats.orders, random and balanced. [pairs, shapes, quads]"""
    balanced = np.broadcast_to(np.arange(quads) % 2, (pairs, shapes, quads))
    flip = rng.integers(0, 2, (pairs, shapes, 1)) if quads % 2 else 0  # the odd one out begins with either
    return rng.permuted(balanced ^ flip, axis=2)


def drift(noise: Noise, rows: int, blocks: int, rng: np.random.Generator) -> Floats:
    """Of the clocks, common to both processes, [rows, blocks]: what is left of settling, and an AR(1)."""
    settling = SETTLE_PCT / 100 * np.exp(-(noise.soak_s + BLOCK_S * np.arange(blocks)) / SETTLE_S)
    steps = rng.standard_normal((rows, blocks)) * (DRIFT_PCT / 100 * math.sqrt(1 - DRIFT_RHO**2))
    steps[:, 0] = rng.standard_normal(rows) * (DRIFT_PCT / 100)
    return settling + steps @ _ar(blocks)


def _ar(blocks: int) -> Floats:
    """[blocks, blocks]: steps @ this is the AR(1) of those steps."""
    lag = np.arange(blocks) - np.arange(blocks)[:, None]
    return np.where(lag >= 0, DRIFT_RHO ** np.maximum(lag, 0), 0.0)


def quad_gains(times: Floats, role: NDArray[np.int64]) -> Floats:
    """d = (Σ ln t_A − Σ ln t_B)/2 of each quad: core.stats.quad_values on arrays. [..., 4] -> [...]"""
    return (times * (1 - 2 * role)).sum(axis=-1) / 2


def paired(
    noise: Noise, shapes: tuple[ShapeNoise, ...], gain: float, quads: int, n: int, rng: np.random.Generator
) -> Floats:
    """Quads of n sessions, each of a fresh pair of processes: [n, shapes, quads]."""
    return quad_gains(*block_times(noise, shapes, biases(noise, shapes, n, rng), gain, quads, rng))


def plain_loops(shapes: tuple[ShapeNoise, ...], gain: float, n: int, rng: np.random.Generator) -> Floats:
    """What n benchmark runs, each a fresh process, would store: log time [n, shapes]. The whole error is the process's."""
    sd = np.array([s.loop_pct for s in shapes]) / 100
    shared, own = rng.standard_normal((n, 1)), rng.standard_normal((n, len(shapes)))
    return sd * (math.sqrt(LOOP_SHARED) * shared + math.sqrt(1 - LOOP_SHARED) * own) - gain
