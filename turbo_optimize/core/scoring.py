"""Times to numbers: the metric table, a row's rates, the score of a file, targets and trends. Pure arithmetic."""

from __future__ import annotations

import math
import re
import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import Literal, NamedTuple

from turbo_optimize.core.errors import ConfigError, TurboOptError, UsageError
from turbo_optimize.core.models import Frozen, Score
from turbo_optimize.core.schema import Row, Schema


class Metric(NamedTuple):
    """A primary metric: what it is worth on one shape, from the mean times of its passes."""

    unit: str
    direction: Literal["higher", "lower"]  # which way is better
    formula: str
    classes: tuple[str, ...]
    modes: tuple[str, ...]
    value: Callable[[Schema, Mapping[str, int], float, float], float]  # schema, dims, forward_ms, backward_ms


def _step_rate(schema: Schema, dims: Mapping[str, int], forward_ms: float, backward_ms: float) -> float:
    work = math.fsum(schema.work_of(which, dims) for which in schema.passes)
    return schema.work.rate(work, forward_ms + backward_ms)


def _forward_rate(schema: Schema, dims: Mapping[str, int], forward_ms: float, backward_ms: float) -> float:
    return schema.work.rate(schema.work_of("forward", dims), forward_ms)


_FLOPS, _BOTH = ("gemm", "attention"), ("training", "forward")

METRICS: dict[str, Metric] = {
    "step_tflops": Metric(
        "TFLOPS",
        "higher",
        "gemm 6·B·M·N·K, attention 14·B·H·S²·D, / ((forward ms + backward ms)·1e-3) / 1e12",
        _FLOPS,
        ("training",),
        _step_rate,
    ),
    "forward_tflops": Metric(
        "TFLOPS",
        "higher",
        "gemm 2·B·M·N·K, attention 4·B·H·S²·D, / (forward ms·1e-3) / 1e12",
        _FLOPS,
        _BOTH,
        _forward_rate,
    ),
    "gbps": Metric(
        "GB/s",
        "higher",
        "(4 + 6)·rows·cols bytes / ((forward ms + backward ms)·1e-3) / 1e9; forward mode: the first part of each",
        ("memory",),
        _BOTH,
        _step_rate,
    ),
}


def metric_for(schema: Schema, name: str) -> Metric:
    """The metric `name` for this schema; ConfigError where it doesn't exist or doesn't apply."""
    metric = METRICS.get(name)
    if metric is None:
        raise ConfigError(f"metric {name!r} is unknown", f"one of {', '.join(METRICS)}")
    if schema.op_class not in metric.classes or schema.execution_mode not in metric.modes:
        fit = [n for n, m in METRICS.items() if schema.op_class in m.classes and schema.execution_mode in m.modes]
        raise ConfigError(
            f"metric {name!r} doesn't apply to {schema.op_class} in {schema.execution_mode} mode",
            f"use {' or '.join(fit)}",
        )
    return metric


def row_values(
    schema: Schema,
    dims: Mapping[str, int],
    forward_ms: Sequence[float],
    backward_ms: Sequence[float],
    correctness: Mapping[str, float],
) -> dict[str, float]:
    """All numbers of one PASS row, from time samples (ms per call) of each pass.

    The time is the samples' mean, the rate is work over that mean, the deviation is that of the samples' rates
    (sample standard deviation, 0 for one sample). `backward_ms` is not read in forward mode.
    """
    samples = {"forward": forward_ms, "backward": backward_ms}
    values: dict[str, float] = {}
    for which in schema.passes:
        if not samples[which]:
            raise TurboOptError(f"no {which} time of {dict(dims)}", "every pass needs a sample")
        work, column = schema.work_of(which, dims), schema.rate_column(which)
        mean_ms = statistics.fmean(samples[which])
        rates = [schema.work.rate(work, t) for t in samples[which]]
        values[column] = schema.work.rate(work, mean_ms)
        values[f"{column}_stddev"] = statistics.stdev(rates) if len(rates) > 1 else 0.0
        values[schema.time_column(which)] = mean_ms
    return values | {name: float(correctness[name]) for name in schema.correctness if name in correctness}


def shape_value(schema: Schema, metric: str, row: Row) -> float:
    """The primary metric of one row, in the metric's unit."""
    times = {which: row.values[schema.time_column(which)] for which in schema.passes}
    return metric_for(schema, metric).value(schema, row.dims, times["forward"], times.get("backward", 0.0))


def score(schema: Schema, metric: str, rows: Sequence[Row]) -> Score:
    """Geometric mean over the rows; average and peak rate of each pass beside it.

    Only PASS rows have a score: a FAIL or ERROR shape rejects, so none may be left out of a mean in silence.
    """
    bad = [r.label for r in rows if r.check != "PASS"]
    if bad or not rows:
        what = f"shapes {', '.join(bad)} did not pass" if bad else "no rows"
        raise TurboOptError(f"nothing to score: {what}", "a FAIL or ERROR shape rejects; score passing rows alone")
    per_shape = {r.label: shape_value(schema, metric, r) for r in rows}
    rates = {which: [r.values[schema.rate_column(which)] for r in rows] for which in schema.passes}
    backward = rates.get("backward")
    return Score(
        value=statistics.geometric_mean(per_shape.values()),
        unit=METRICS[metric].unit,
        forward_avg=statistics.fmean(rates["forward"]),
        forward_peak=max(rates["forward"]),
        backward_avg=statistics.fmean(backward) if backward else None,
        backward_peak=max(backward) if backward else None,
        per_shape=per_shape,
    )


Unit = Literal["TFLOPS", "GB/s", "%"]


class Target(Frozen):
    """`>500 TFLOPS` or, with unit `%`, a share of the peak."""

    value: float
    unit: Unit


_TARGET = re.compile(r">\s*([0-9]+(?:\.[0-9]+)?)\s*(TFLOPS|GB/s|%\s*peak)", re.IGNORECASE)
_UNITS: dict[str, Unit] = {"tflops": "TFLOPS", "gb/s": "GB/s"}
_FORMS = 'write ">500 TFLOPS", ">3000 GB/s" or ">60% peak" (below 100)'


def parse_target(text: str) -> Target:
    """A performance target as typed: `>500 TFLOPS`, `>3000 GB/s`, `>60% peak`."""
    found = _TARGET.fullmatch(text.strip())
    if found is None:
        raise UsageError(f"target {text!r} can't be read", _FORMS)
    value, unit = float(found[1]), _UNITS.get(found[2].lower(), "%")
    if value <= 0 or (unit == "%" and value >= 100):
        raise UsageError(f"target {text!r} is out of range", _FORMS)
    return Target(value=value, unit=unit)


def target_met(target: Target, score: Score, peak: float | None) -> bool:
    """Whether the score is above the target. `peak` is the hardware's, in the score's unit; only `% peak` reads it."""
    mend = f"name a number of {score.unit}"
    if target.unit == "%":
        if peak is None:
            raise ConfigError(f"target >{target.value:g}% peak: this GPU's peak isn't known", mend)
        return score.value > target.value / 100 * peak
    if target.unit != score.unit:
        raise ConfigError(f"target in {target.unit}, but the metric is in {score.unit}", mend)
    return score.value > target.value


def gain_pct(new: float, old: float) -> float:
    return (new / old - 1) * 100


def trend_delta(score: Score, baseline: Score) -> str:
    """`step +1.234%, fwd +0.500%, bwd -0.100%`: against the baseline; a pass that isn't measured is left out."""
    parts = [
        ("step", score.value, baseline.value),
        ("fwd", score.forward_avg, baseline.forward_avg),
        ("bwd", score.backward_avg, baseline.backward_avg),
    ]
    return ", ".join(f"{name} {gain_pct(new, old):+.3f}%" for name, new, old in parts if new is not None and old)
