"""Quads, sessions, estimates."""

from __future__ import annotations

import math
import random
from collections import Counter

import pytest

from turbo_optimize.core import stats
from turbo_optimize.core.models import POLICIES, Policy, Sample, Session


def block(quad: int, slot: int, role: str, ms: float, shape: str = "s") -> Sample:
    return Sample(
        level="aa", session=1, shape=shape, quad=quad, slot=slot, role=role, calls=3, step_ms=ms, wall_ms=9.0  # type: ignore[arg-type]
    )  # fmt: skip


def test_orders_are_balanced_random_and_seeded() -> None:
    o = stats.orders(8, random.Random(3))
    assert Counter(o) == {stats.ABBA: 4, stats.BAAB: 4}
    assert o == stats.orders(8, random.Random(3))
    assert len({stats.orders(8, random.Random(s)) for s in range(20)}) > 10


def test_quad_value_is_the_log_ratio_and_cancels_linear_drift() -> None:
    drift = [1.00, 1.01, 1.02, 1.03]  # nearly linear: ABBA weighs A and B alike
    q = [block(0, i, r, d * (2.0 if r == "A" else 1.6)) for i, (r, d) in enumerate(zip("ABBA", drift, strict=True))]
    assert stats.quad_values(q)["s"][0] == pytest.approx(math.log(2.0 / 1.6), abs=1e-3)


def test_an_incomplete_quad_is_an_error() -> None:
    with pytest.raises(ValueError, match="quad 0"):
        stats.quad_values([block(0, 0, "A", 1), block(0, 1, "B", 1), block(0, 2, "B", 1)])


def test_trimming_drops_one_outlier_each_side() -> None:
    assert stats.trimmed_mean([0.0, 1.0, 1.0, 99.0], 1) == 1.0
    assert stats.trimmed_mean([2.0], 1) == 2.0


def test_se_never_falls_below_the_process_noise() -> None:
    quiet = [Session(level="confirm", index=i, quads={"s": (0.05,) * 8}) for i in range(4)]
    e = stats.combine(quiet, Policy(), sigma_aa=0.02)
    assert e.mean == pytest.approx(0.05)
    assert e.se == pytest.approx(0.01)  # 0.02 / √4


def test_scatter_between_sessions_counts() -> None:
    """Quiet within, loud between: the process is the unit that repeats."""
    loud = [Session(level="confirm", index=i, quads={"s": (g,) * 8}) for i, g in enumerate((-0.14, 0.01, 0.36))]
    e = stats.combine(loud, Policy(between_sessions=True), sigma_aa=0.001)
    assert e.se == pytest.approx(e.sd / math.sqrt(3))
    assert all(p.between_sessions for p in POLICIES.values())
    assert stats.combine(loud, Policy(), sigma_aa=0.001).se < e.se  # how old records were decided


def test_bootstrap_se_is_the_size_of_the_scatter() -> None:
    rng = random.Random(1)
    s = Session(level="screen", index=1, quads={"s": tuple(rng.gauss(0, 0.01) for _ in range(8))})
    assert 0.5 * 0.01 / math.sqrt(8) < stats.bootstrap_se(s, 1) < 2.5 * 0.01 / math.sqrt(8)
    assert stats.bootstrap_se(s, 1) == stats.bootstrap_se(s, 1)


def test_sigma_aa_keeps_a_constant_bias() -> None:
    biased = [Session(level="aa", index=i, quads={"s": (0.01,) * 8}) for i in range(3)]
    assert stats.sigma_aa(biased, 1) == pytest.approx(0.01)
    assert stats.noise_pct(biased, 1) == {"s": pytest.approx(1.0)}


def test_intervals_hold_their_mean() -> None:
    s = Session(level="confirm", index=1, quads={"a": (0.01, 0.02, 0.03, 0.02), "b": (-0.1, -0.1, -0.1, -0.1)})
    for d in stats.shape_deltas([s], Policy(quads=4)):
        assert d.low_pct <= d.gain_pct <= d.high_pct
