"""Times to numbers: formulas against plain arithmetic."""

from __future__ import annotations

import math
import statistics

import pytest

from turbo_optimize.core.errors import ConfigError, TurboOptError, UsageError
from turbo_optimize.core.models import Score
from turbo_optimize.core.schema import SCHEMAS, Row, format_csv, forward_only
from turbo_optimize.core.scoring import (
    METRICS,
    Target,
    metric_for,
    parse_target,
    row_values,
    score,
    target_met,
    trend_delta,
)

GEMM, MEMORY, ATTENTION = SCHEMAS["gemm"], SCHEMAS["memory"], SCHEMAS["attention"]
A = {"B": 1, "M": 4096, "N": 28672, "K": 4096}
B = {"B": 4, "M": 512, "N": 512, "K": 1024}
SNR = {"out_snr": 50.0, "da_snr": 50.0, "db_snr": 50.0}


def gemm_row(label: str, dims: dict[str, int], forward: list[float], backward: list[float]) -> Row:
    return Row(label=label, dims=dims, check="PASS", values=row_values(GEMM, dims, forward, backward, SNR))


def test_step_score_is_the_geometric_mean_of_6bmnk() -> None:
    rows = [gemm_row("a", A, [0.8], [1.7]), gemm_row("b", B, [0.02], [0.05])]
    step_a = 6 * 4096 * 28672 * 4096 / ((0.8 + 1.7) * 1e-3) / 1e12
    step_b = 6 * 4 * 512 * 512 * 1024 / ((0.02 + 0.05) * 1e-3) / 1e12
    got = score(GEMM, "step_tflops", rows)
    assert got.unit == "TFLOPS"
    assert got.per_shape == pytest.approx({"a": step_a, "b": step_b}, rel=1e-12)
    assert got.value == pytest.approx(math.sqrt(step_a * step_b), rel=1e-12)


def test_diagnostics_are_average_and_peak_of_each_pass() -> None:
    rows = [gemm_row("a", A, [0.8], [1.7]), gemm_row("b", B, [0.02], [0.05])]
    forward = [2 * 4096 * 28672 * 4096 / 0.8e-3 / 1e12, 2 * 4 * 512 * 512 * 1024 / 0.02e-3 / 1e12]
    backward = [4 * 4096 * 28672 * 4096 / 1.7e-3 / 1e12, 4 * 4 * 512 * 512 * 1024 / 0.05e-3 / 1e12]
    got = score(GEMM, "step_tflops", rows)
    assert got.forward_avg == pytest.approx(sum(forward) / 2)
    assert got.forward_peak == pytest.approx(max(forward))
    assert got.backward_avg == pytest.approx(sum(backward) / 2)
    assert got.backward_peak == pytest.approx(max(backward))


def test_forward_only() -> None:
    schema = forward_only(GEMM)
    r = Row(label="a", dims=A, check="PASS", values=row_values(schema, A, [0.8], [], {"out_snr": 50.0}))
    got = score(schema, "forward_tflops", [r])
    assert got.value == pytest.approx(2 * 4096 * 28672 * 4096 / 0.8e-3 / 1e12)
    assert got.backward_avg is None
    assert got.backward_peak is None
    assert format_csv(schema, [r]).startswith(schema.header)


def test_memory_counts_forward_and_backward_bytes_over_summed_time() -> None:
    dims = {"rows": 16384, "cols": 8192}
    r = Row(
        label="x", dims=dims, check="PASS",
        values=row_values(MEMORY, dims, [0.2], [0.3], {"out_snr": 60.0, "dx_snr": 60.0}),
    )  # fmt: skip
    assert r.values["Forward GB/s"] == pytest.approx(2 * 16384 * 8192 * 2 / 0.2e-3 / 1e9)
    assert r.values["Backward GB/s"] == pytest.approx(3 * 16384 * 8192 * 2 / 0.3e-3 / 1e9)
    got = score(MEMORY, "gbps", [r])
    assert got.unit == "GB/s"
    assert got.value == pytest.approx(5 * 16384 * 8192 * 2 / 0.5e-3 / 1e9)


def test_attention_flops() -> None:
    dims = {"B": 4, "H": 32, "S": 4096, "D": 128}
    values = row_values(ATTENTION, dims, [2.0], [5.0], {f"{g}_snr": 40.0 for g in ("out", "dq", "dk", "dv")})
    flops = 4 * 4 * 32 * 4096 * 4096 * 128
    assert values["Forward TFLOPS"] == pytest.approx(flops / 2e-3 / 1e12)
    assert values["Backward TFLOPS"] == pytest.approx(2.5 * flops / 5e-3 / 1e12)
    got = score(ATTENTION, "step_tflops", [Row(label="x", dims=dims, check="PASS", values=values)])
    assert got.value == pytest.approx(3.5 * flops / 7e-3 / 1e12)


def test_row_is_mean_time_and_deviation_of_the_samples_rates() -> None:
    values = row_values(GEMM, B, [0.02, 0.03], [0.05], SNR)
    flops = 2 * 4 * 512 * 512 * 1024
    assert values["Forward Time (ms)"] == 0.025
    assert values["Forward TFLOPS"] == pytest.approx(flops / 0.025e-3 / 1e12)
    rates = [flops / 0.02e-3 / 1e12, flops / 0.03e-3 / 1e12]
    assert values["Forward TFLOPS_stddev"] == pytest.approx(statistics.stdev(rates))
    assert values["Backward TFLOPS_stddev"] == 0.0
    with pytest.raises(TurboOptError, match="no backward time"):
        row_values(GEMM, B, [0.02], [], SNR)


def test_only_passing_rows_are_scored() -> None:
    good = gemm_row("a", A, [0.8], [1.7])
    bad = Row(label="b", dims=B, check="FAIL", values={})
    with pytest.raises(TurboOptError, match="b did not pass"):
        score(GEMM, "step_tflops", [good, bad])
    with pytest.raises(TurboOptError, match="no rows"):
        score(GEMM, "step_tflops", [])


def test_metric_must_fit_the_class_and_mode() -> None:
    with pytest.raises(ConfigError, match="use gbps"):
        metric_for(MEMORY, "step_tflops")
    with pytest.raises(ConfigError, match="use forward_tflops"):
        metric_for(forward_only(GEMM), "step_tflops")
    with pytest.raises(ConfigError, match="one of step_tflops, forward_tflops, gbps"):
        metric_for(GEMM, "flops")
    assert all(m.direction == "higher" and m.formula for m in METRICS.values())


@pytest.mark.parametrize(
    ("text", "target"),
    [
        (">500 TFLOPS", Target(value=500, unit="TFLOPS")),
        (" > 512.5 tflops ", Target(value=512.5, unit="TFLOPS")),
        (">3000 GB/s", Target(value=3000, unit="GB/s")),
        (">60% peak", Target(value=60, unit="%")),
        (">60 % peak", Target(value=60, unit="%")),
    ],
)
def test_targets(text: str, target: Target) -> None:
    assert parse_target(text) == target


@pytest.mark.parametrize("text", ["500 TFLOPS", ">500", "<5 TFLOPS", ">x% peak", ">0 TFLOPS", ">100% peak", ">60%", ""])
def test_bad_targets_name_the_forms(text: str) -> None:
    with pytest.raises(UsageError) as e:
        parse_target(text)
    assert all(form in str(e.value) for form in (">500 TFLOPS", ">3000 GB/s", ">60% peak"))
    assert "\n" not in str(e.value)


def test_target_met() -> None:
    now = Score(value=600.0, unit="TFLOPS")
    assert target_met(parse_target(">599 TFLOPS"), now, None)
    assert not target_met(parse_target(">600 TFLOPS"), now, None)
    assert target_met(parse_target(">60% peak"), now, 989.4)
    assert not target_met(parse_target(">61% peak"), now, 989.4)
    with pytest.raises(ConfigError, match="peak isn't known"):
        target_met(parse_target(">60% peak"), now, None)
    with pytest.raises(ConfigError, match="metric is in TFLOPS"):
        target_met(parse_target(">10 GB/s"), now, None)


def test_trend_delta() -> None:
    base = Score(value=100.0, unit="TFLOPS", forward_avg=200.0, backward_avg=50.0)
    now = Score(value=101.2342, unit="TFLOPS", forward_avg=201.0, backward_avg=49.95)
    assert trend_delta(now, base) == "step +1.234%, fwd +0.500%, bwd -0.100%"
    one = Score(value=101.0, unit="TFLOPS", forward_avg=101.0)
    assert trend_delta(one, base.model_copy(update={"forward_avg": 101.0})) == "step +1.000%, fwd +0.000%"
