"""Paired statistics: blocks -> quads -> sessions -> an estimate with its error. All gains are natural logs inside;
percent only at the edge (`pct`). Source of the protocol: docs/measurement.md."""

from __future__ import annotations

import math
import random
import statistics
from collections.abc import Iterable, Sequence

from turbo_optimize.core.models import Frozen, Policy, Role, Sample, Session, ShapeDelta

ABBA: tuple[Role, ...] = ("A", "B", "B", "A")
BAAB: tuple[Role, ...] = ("B", "A", "A", "B")
BOOTSTRAP = 200  # resamples: the error of a standard error of 5% is far below what decides
# Two-sided 95% t quantiles by degrees of freedom; beyond 30 the normal one.
_T95 = {1: 12.71, 2: 4.303, 3: 3.182, 4: 2.776, 5: 2.571, 6: 2.447, 7: 2.365, 8: 2.306, 9: 2.262, 10: 2.228,
        12: 2.179, 15: 2.131, 20: 2.086, 30: 2.042}  # fmt: skip


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
    rng = random.Random(f"{session.level}/{session.index}")
    quads = [list(q) for q in session.quads.values()]
    estimates = [
        statistics.fmean(trimmed_mean(rng.choices(q, k=len(q)), trim) for q in quads) for _ in range(BOOTSTRAP)
    ]
    return statistics.pstdev(estimates)


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
