"""Paired statistics: blocks -> quads -> sessions -> an estimate with its error. All gains are natural logs inside;
percent only at the edge (`pct`). Source of the protocol: docs/measurement.md."""

from __future__ import annotations

import math
import random
import statistics
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from operator import itemgetter
from statistics import NormalDist

from turbo_optimize.core.models import Frozen, Policy, Role, Sample, Session, ShapeDelta

ABBA: tuple[Role, ...] = ("A", "B", "B", "A")
BAAB: tuple[Role, ...] = ("B", "A", "A", "B")
BOOTSTRAP = 200  # resamples: the error of a standard error of 5% is far below what decides
# Two-sided 95% t quantiles by degrees of freedom; beyond 30 the normal one.
_T95 = {1: 12.71, 2: 4.303, 3: 3.182, 4: 2.776, 5: 2.571, 6: 2.447, 7: 2.365, 8: 2.306, 9: 2.262, 10: 2.228,
        12: 2.179, 15: 2.131, 20: 2.086, 30: 2.042}  # fmt: skip
_Pick = Callable[[Sequence[float]], Sequence[float]]


class Estimate(Frozen):
    """A gain over sessions. `mean`, `sd`, `se` are in log units; sd is between sessions."""

    mean: float
    sd: float
    se: float
    n: int


def pct(log_gain: float) -> float:
    """Throughput gain in percent: exp(g) − 1."""
    return 100.0 * math.expm1(log_gain)


def log_gain(percent: float) -> float:
    return math.log1p(percent / 100.0)


def orders(quads: int, rng: random.Random) -> tuple[tuple[Role, ...], ...]:
    """A random balanced order of ABBA and BAAB quads: a fixed order favours the first worker while clocks settle."""
    half = [ABBA, BAAB] * (quads // 2) + ([rng.choice((ABBA, BAAB))] if quads % 2 else [])
    rng.shuffle(half)
    return tuple(half)


def quad_values(samples: Iterable[Sample]) -> dict[str, tuple[float, ...]]:
    """Per shape the log-ratio of each complete quad, d = (Σ ln t_A − Σ ln t_B)/2: positive means B is faster.

    Raises ValueError on a quad that isn't two blocks of each role.
    """
    by: dict[tuple[str, int], list[Sample]] = {}
    for s in samples:
        by.setdefault((s.shape, s.quad), []).append(s)
    out: dict[str, list[float]] = {}
    for (shape, quad), blocks in sorted(by.items()):
        a = [math.log(b.step_ms) for b in blocks if b.role == "A"]
        b = [math.log(x.step_ms) for x in blocks if x.role == "B"]
        if (len(a), len(b)) != (2, 2):
            raise ValueError(f"shape {shape}, quad {quad}: {len(a)} blocks of A and {len(b)} of B, expected 2 and 2")
        out.setdefault(shape, []).append((sum(a) - sum(b)) / 2)
    return {k: tuple(v) for k, v in out.items()}


def trimmed_mean(values: Sequence[float], trim: int) -> float:
    """Mean without the `trim` lowest and highest; with too few values, of all."""
    kept = sorted(values)[trim : len(values) - trim] if len(values) > 2 * trim else sorted(values)
    return statistics.fmean(kept)


def session_estimate(session: Session, trim: int) -> float:
    """Mean over shapes of the trimmed means: the log of the geometric mean's gain."""
    return statistics.fmean(trimmed_mean(q, trim) for q in session.quads.values())


def bootstrap_se(session: Session, trim: int) -> float:
    """Standard error of the session's estimate from resampling its quads; seeded by the session, so repeatable."""
    return _bootstrap_se(session.level, session.index, tuple(session.quads.values()), trim)


@lru_cache(maxsize=512)  # one round asks again for the same sessions at every step of its decision
def _bootstrap_se(level: str, index: int, quads: tuple[tuple[float, ...], ...], trim: int) -> float:
    means = []
    for q, picks in zip(quads, _draws(level, index, tuple(map(len, quads))), strict=True):
        low, high = (trim, len(q) - trim) if len(q) > 2 * trim else (0, len(q))
        # trimmed_mean with fmean written out: this line runs a thousand times a session
        means.append([math.fsum(sorted(pick(q))[low:high]) / (high - low) for pick in picks])
    return statistics.pstdev([math.fsum(resample) / len(quads) for resample in zip(*means, strict=True)])


@lru_cache(maxsize=64)
def _draws(level: str, index: int, lengths: tuple[int, ...]) -> tuple[tuple[_Pick, ...], ...]:
    """Per shape and resample what picks the drawn quads: it depends on the session's name, not on its values."""
    rng = random.Random(f"{level}/{index}")
    resamples = [[_pick(rng.choices(range(n), k=n)) for n in lengths] for _ in range(BOOTSTRAP)]
    return tuple(zip(*resamples, strict=True))


def _pick(places: Sequence[int]) -> _Pick:
    # of one place, itemgetter would answer with a bare value
    return itemgetter(*places) if len(places) > 1 else lambda values: [values[places[0]]]


def combine(sessions: Sequence[Session], policy: Policy, sigma_aa: float) -> Estimate:
    """Over fresh-process sessions, the process being the unit that repeats.

    SE = max(bootstrap over quads, σ_AA/√k, and with `policy.between_sessions` their own deviation/√k).
    """
    k = len(sessions)
    values = [session_estimate(s, policy.trim) for s in sessions]
    boot = math.sqrt(sum(bootstrap_se(s, policy.trim) ** 2 for s in sessions)) / k
    sd = statistics.stdev(values) if k > 1 else 0.0
    scatter = sd if policy.between_sessions else 0.0
    return Estimate(mean=statistics.fmean(values), sd=sd, se=max(boot, max(sigma_aa, scatter) / math.sqrt(k)), n=k)


def t95(n: int) -> float:
    """Two-sided 95% t quantile for n values."""
    df = n - 1
    return next((q for d, q in reversed(_T95.items()) if df >= d), _T95[1]) if df <= 30 else 1.96


def shape_deltas(sessions: Sequence[Session], policy: Policy) -> tuple[ShapeDelta, ...]:
    """Per shape the gain over all given sessions with its 95% interval over trimmed quads."""
    pooled: dict[str, list[float]] = {}
    for s in sessions:
        for shape, q in s.quads.items():
            kept = sorted(q)[policy.trim : len(q) - policy.trim] if len(q) > 2 * policy.trim else list(q)
            pooled.setdefault(shape, []).extend(kept)
    out = []
    for shape, values in pooled.items():
        mean = statistics.fmean(values)
        half = t95(len(values)) * statistics.stdev(values) / math.sqrt(len(values)) if len(values) > 1 else math.inf
        low, high = (pct(mean - half), pct(mean + half)) if math.isfinite(half) else (-100.0, 100.0)
        out.append(ShapeDelta(shape=shape, gain_pct=pct(mean), low_pct=low, high_pct=high))
    return tuple(out)


def sigma_aa(sessions: Sequence[Session], trim: int) -> float:
    """Deviation of a session's estimate when nothing changed (true mean 0, so no mean is subtracted)."""
    values = [session_estimate(s, trim) for s in sessions]
    return math.sqrt(statistics.fmean(v * v for v in values))


def noise_pct(sessions: Sequence[Session], trim: int) -> dict[str, float]:
    """Per shape the A/A root mean square over sessions, percent."""
    shapes = sessions[0].quads
    return {
        shape: 100.0 * math.sqrt(statistics.fmean(trimmed_mean(s.quads[shape], trim) ** 2 for s in sessions))
        for shape in shapes
    }


def resolvable_pct(sigma_aa: float, policy: Policy) -> float:
    """The smallest true gain (percent) that the policy's confirming sessions accept with 80% probability.

    The rule of `confirm` for n sessions whose estimates are normal about the gain with deviation `sigma_aa` (log units):
    mean > min_gain_pct, mean > z_accept·SE, deviation < mean/2, with SE = max(σ_AA, deviation)/√n. Their mean and their
    deviation s are independent, s² is σ²χ²/(n − 1) (its quantiles by Wilson and Hilferty). Of the first look and the look
    with the extra sessions the likelier counts. A full validation that the policy always asks for must pass too; one that
    it skips on the same shapes, the screen and the veto are left out.
    """
    low, high = 0.0, max(policy.min_gain_pct, 0.0) + 1.0
    while _confirmed(log_gain(high), sigma_aa, policy) < 0.8:
        low, high = high, 2 * high
    for _ in range(40):
        middle = (low + high) / 2
        low, high = (middle, high) if _confirmed(log_gain(middle), sigma_aa, policy) < 0.8 else (low, middle)
    return high


def _confirmed(gain: float, sigma: float, policy: Policy) -> float:
    """Probability that one of both looks of `confirm` accepts a log gain, normal approximation."""
    looks = {policy.confirm_sessions, policy.confirm_sessions + policy.extra_sessions}
    bar, best = log_gain(policy.min_gain_pct), 0.0
    for n in looks:
        accepted = []
        for sd in _deviations(sigma, n):
            se = max(sigma, sd if policy.between_sessions else 0.0) / math.sqrt(n)
            over = gain - max(bar, policy.z_accept * se, min(2 * sd, log_gain(policy.steady_below_pct)))
            accepted.append(NormalDist().cdf(over * math.sqrt(n) / sigma) if sigma > 0 else float(over > 0))
        best = max(best, statistics.fmean(accepted))
    return best * _validated(gain, sigma, policy)


def _validated(gain: float, sigma: float, policy: Policy) -> float:
    """Probability that a full validation which is always asked for has its lower bound above 0."""
    if policy.full_skips_same or gain >= log_gain(policy.full_gain_pct) or sigma <= 0:
        return 1.0
    return NormalDist().cdf(gain * math.sqrt(policy.full_sessions) / sigma - policy.z_full)


def _deviations(sigma: float, n: int, cells: int = 64) -> list[float]:
    """Equally likely values of the deviation of n normal values; of one value it is 0."""
    if n < 2:
        return [0.0]
    c = 2 / (9 * (n - 1))
    z = (NormalDist().inv_cdf((i + 0.5) / cells) for i in range(cells))
    return [sigma * math.sqrt(max(0.0, 1 - c + q * math.sqrt(c)) ** 3) for q in z]
