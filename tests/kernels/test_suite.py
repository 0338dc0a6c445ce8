"""The suite: what is wrong isn't timed, contenders go back and forth, every family has its shapes and torch's calls."""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from xml.etree import ElementTree

import pytest
import torch
import yaml
from kernel_helpers import DEVICE
from turbo_kernels import suite, suite_report
from turbo_kernels.bench_kit import Baseline, BenchCase, Work, dense_cases, moe_cases, row_cases
from turbo_kernels.gemm import cases as gemm_cases
from turbo_kernels.registry import FAMILIES
from turbo_kernels.suite_report import Row

MODELS = Path(__file__).parents[2] / "SHAPES.yaml"
SHAPES = yaml.safe_load(MODELS.read_text())
CASE = BenchCase("dense", "tiny", {"B": 1, "M": 16, "N": 16, "K": 16}, Work(2e9, 1e6), Work(6e9, 3e6))


def row() -> Row:
    return Row("gemm", "default", "bf16", "dense", "tiny", "", "gpu", "cpu", "2", "3")


def run(cases: Any) -> list[Row]:
    return suite.measured(cases, row(), CASE, "default", DEVICE, 0.001)


def adapter(**changes: Any) -> SimpleNamespace:
    return SimpleNamespace(**{k: getattr(gemm_cases, k) for k in gemm_cases.__all__} | changes)


def test_contenders_go_back_and_forth() -> None:
    went = []

    def block_ms(calls: Sequence[Any]) -> float:
        went.append("".join(call() for call in calls))
        return {"a": 4.0, "b": 8.0}[went[-1][0].lower()]

    ring = {"ours": [lambda: "a", lambda: "A"], "theirs": [lambda: "b", lambda: "B"]}
    times = suite.interleaved(ring, 0.064, block_ms)
    assert went[:4] == ["aA", "aA", "bB", "bB"]  # compiled, then one look at how long it takes
    assert went[4:] == ["aA", "b", "b", "aA"] * suite.PALINDROMES  # 64 ms over eight blocks
    assert times == {"ours": [4.0] * 8, "theirs": [8.0] * 8}


def test_a_shape_gives_a_row_a_phase_and_baseline() -> None:
    rows = run(gemm_cases)
    assert [(r.phase, r.baseline, r.check, r.backend) for r in rows] == [
        ("forward", "F.linear", "PASS", "TRITON"), ("step", "F.linear", "PASS", "TRITON"),
    ]  # fmt: skip
    for r, flops in zip(rows, (2e9, 6e9), strict=True):
        assert r.time_ms and r.tflops == pytest.approx(flops / (r.time_ms * 1e-3) / 1e12)
        assert r.gbps == pytest.approx(flops / 2e3 / (r.time_ms * 1e-3) / 1e9)
        assert r.ratio and r.snr_db and r.snr_db > 40


def test_what_is_wrong_is_reported_and_not_timed() -> None:
    def zeroed(inputs: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        outputs = gemm_cases.step(inputs)
        outputs["da"][8:] = 0
        return outputs

    (found,) = run(adapter(step=zeroed))
    assert (found.check, found.time_ms, found.phase) == ("FAIL", None, "")
    assert "da: rows from 8" in found.note
    assert suite_report.line([found]).startswith("FAIL gemm default bf16 tiny: da: rows from 8")


def test_what_raises_is_an_error_of_its_shape_alone() -> None:
    def raises(inputs: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        raise RuntimeError("out of memory\nand more")

    (found,) = run(adapter(step=raises))
    assert (found.check, found.note) == ("ERROR", "RuntimeError: out of memory")


def test_a_baseline_that_cannot_run_here_is_named() -> None:
    def broken() -> None:
        raise RuntimeError("not on this device")

    rows = run(adapter(baselines=lambda inputs, variant: {"x": Baseline(step=broken), "y": Baseline(lambda: None)}))
    assert [(r.phase, r.baseline) for r in rows] == [("forward", "y"), ("step", "")]
    assert {r.note for r in rows} == {"x: RuntimeError: not on this device"}


def test_no_gradients_no_step() -> None:
    found = suite.measured(gemm_cases, row(), suite.replace(CASE, step=None), "default", DEVICE, 0.001)
    assert [r.phase for r in found] == ["forward"]


def test_the_budget_leaves_out_and_counts(capsys: pytest.CaptureFixture[str]) -> None:
    assert suite.main(["--op", "gemm", "--quick", "--budget", "0", "--models", str(MODELS), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["rows"] == [] and told["left_out"] > 0


def test_tables_csv_and_plot(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def timed(phase: str, shape: str, baseline: str, ratio: float) -> Row:
        return suite.replace(row(), phase=phase, shape=shape, check="PASS", snr_db=math.inf, time_ms=1.0, tflops=8.0,
                             baseline=baseline, baseline_ms=ratio, ratio=ratio)  # fmt: skip

    rows = [timed("step", "s1", "x", 2.0), timed("step", "s1", "y", 1.0), timed("step", "s2", "x", 4.0)]
    rows.append(suite.replace(row(), check="FAIL", shape="s3", note="out: wrong"))
    step, wrong = suite_report.summaries(rows)
    assert (step.shapes, step.wrong, step.ratio, step.least) == (2, 0, pytest.approx(2.0), 1.0)  # against s1's best
    assert (wrong.shapes, wrong.wrong) == (1, 1)
    suite_report.show(rows, 7, {"conv": "no cases.py"})
    said = capsys.readouterr().out
    assert max(map(len, said.splitlines())) <= 80
    assert "FAIL gemm default bf16 s3: out: wrong" in said and "7 shapes were left out" in said
    assert "conv: not benched, no cases.py" in said
    suite_report.write(tmp_path / "s.csv", rows)
    with (tmp_path / "s.csv").open(newline="") as f:
        read = list(csv.DictReader(f))
    assert tuple(read[0]) == suite_report.COLUMNS
    assert (read[0]["snr_db"], read[0]["ratio"], read[3]["time_ms"]) == ("inf", "2", "")
    assert json.dumps([suite_report.plain(r) for r in rows], allow_nan=False)
    texts = [t.text for t in ElementTree.fromstring(suite_report.svg(rows)).iter() if t.tag.endswith("text")]
    assert "gemm default bf16 step" in texts and "2.00" in texts


def test_shapes_are_those_of_the_models() -> None:
    dense = {c.label: c.dims for c in dense_cases(SHAPES, "bf16", "")}
    assert dense["Llama-3.1-8B qkv x1"] == {"B": 1, "M": 8192, "N": 6144, "K": 4096}
    assert dense["Llama-2-70B down x4"] == {"B": 1, "M": 16384, "N": 8192, "K": 28672}
    moe = {c.label: c for c in moe_cases(SHAPES, "bf16", "")}
    assert moe["DeepSeek-V3 gate_up ep32 m512"].dims == {"B": 8, "M": 512, "N": 4096, "K": 7168}
    assert moe["DeepSeek-V3 gate_up ep32 m512"].forward.flops == 2 * 8 * 512 * 4096 * 7168
    rows = {c.label: c for c in row_cases("ffn", 3, 8)(SHAPES, "fp32", "")}
    assert rows["Llama-3.1-8B ffn x1"].dims == {"rows": 8192, "cols": 14336}
    c = rows["Llama-2-7B ffn x1"]
    assert c.forward.least_bytes == 3 * 4096 * 11008 * 4
    for cases in (dense_cases, moe_cases, row_cases("hidden", 2)):
        found = [tuple(c.dims.values()) for c in cases(SHAPES, "bf16", "")]
        assert len(set(found)) == len(found)
        assert 1 < sum(c.quick for c in cases(SHAPES, "bf16", "")) <= 12


@pytest.mark.parametrize("op", [f.name for f in FAMILIES])
def test_every_family_is_benched(op: str) -> None:
    spec = next(f for f in FAMILIES if f.name == op)
    cases, why = suite.adapter(spec)
    assert cases is not None, f"turbo_kernels/{op}: {why} (see bench_kit.py)"
    for variant in spec.variants:
        quick = [c for c in cases.bench_cases(SHAPES, spec.dtypes[0], variant) if c.quick]
        assert quick, f"{op} {variant} has no quick shape"
        inputs = cases.make_inputs(quick[0].small().dims, spec.dtypes[0], variant, 0, DEVICE)
        assert all(isinstance(b, Baseline) for b in cases.baselines(inputs, variant).values()), "its baselines"
