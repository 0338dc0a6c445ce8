"""The gates: what an honest kernel passes, and which gate each fault falls at."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from turbo_kernels.check import GATES, judge, snr_db, tile_snr_db, wrong

ROWS, COLS = 1024, 160
NOISE_DB = {"fp8_e4m3": 28.6, "fp4": 16.5}


def reference() -> torch.Tensor:
    return torch.randn(ROWS, COLS, generator=torch.Generator().manual_seed(1)) * 50


def honest(gate: str, ref: torch.Tensor) -> torch.Tensor:
    """An output with the error that the format brings: rounding, FP8's 28.6 dB of noise, or FP4's 16 dB and its gain."""
    if gate not in NOISE_DB:
        return ref.clone().to({"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}[gate])
    noise = torch.randn(ref.shape, generator=torch.Generator().manual_seed(2)) * ref.square().mean().sqrt()
    return (ref * GATES[gate].gain + noise * 10 ** (-NOISE_DB[gate] / 20)).bfloat16()


def zero_row(t: torch.Tensor) -> None:
    t[41] = 0


def zero_tail(t: torch.Tensor) -> None:
    t[-1, -3:] = 0


def one_nan(t: torch.Tensor) -> None:
    t[7, 3] = math.nan


def one_inf(t: torch.Tensor) -> None:
    t[7, 3] = math.inf


def too_large(t: torch.Tensor) -> None:
    t *= 1.05


def too_small(t: torch.Tensor) -> None:
    t *= 0.95


def swapped_rows(t: torch.Tensor) -> None:
    t[[10, 70]] = t[[70, 10]]


Fault = Callable[[torch.Tensor], None]
# What says so: for FP8, whose noise hides single elements, and for the formats that are judged element by element.
FAULTS: list[tuple[Fault, str, str]] = [
    (zero_row, "rows from 40", "rows from 40"),
    (one_nan, "finite", "finite"),
    (one_inf, "finite", "finite"),
    (too_large, "SNR", "elements are off"),
    (too_small, "SNR", "elements are off"),
    (swapped_rows, "SNR|rows from", "rows from"),
]


@pytest.mark.parametrize("gate", ["bf16", "fp16", "fp32", "fp8_e4m3", "fp4"])
def test_an_honest_output_passes(gate: str) -> None:
    ref = reference()
    assert wrong(honest(gate, ref), ref, GATES[gate]) is None


@pytest.mark.parametrize("gate", ["bf16", "fp16", "fp32", "fp8_e4m3"])
@pytest.mark.parametrize(("fault", "fp8_says", "element_says"), FAULTS)
def test_a_fault_falls_at_its_gate(gate: str, fault: Fault, fp8_says: str, element_says: str) -> None:
    import re

    ref = reference()
    out = honest(gate, ref)
    fault(out)
    why = wrong(out, ref, GATES[gate])
    assert why
    assert re.search(fp8_says if gate.startswith("fp8") else element_says, why)


def test_an_unwritten_corner_falls_by_its_elements() -> None:
    ref = reference()
    out = honest("bf16", ref)
    zero_tail(out)
    assert "elements are off" in str(wrong(out, ref, GATES["bf16"]))


def test_a_scale_error_that_noise_hides_falls_at_the_scale() -> None:
    """3% too large costs FP8 under 3 dB, so that the SNR gate alone would let it pass."""
    ref = reference()
    out = honest("fp8_e4m3", ref) * 1.03
    assert snr_db(out, ref) > 25
    assert "scale is 1.0" in str(wrong(out, ref, GATES["fp8_e4m3"]))


@pytest.mark.parametrize(("fault", "said"), [
    (zero_row, "rows from 40"), (one_nan, "finite"), (one_inf, "finite"), (swapped_rows, "rows from"),
    (too_large, "scale is 1.0"), (too_small, "scale is 0.9"),
])  # fmt: skip
def test_fp4s_noise_hides_no_fault(fault: Fault, said: str) -> None:
    ref = reference()
    out = honest("fp4", ref)
    fault(out)
    assert said in str(wrong(out, ref, GATES["fp4"]))


def test_snr_of_known_noise() -> None:
    ref = torch.ones(64, 64)
    assert snr_db(ref, ref) == math.inf
    assert snr_db(ref * 1.1, ref) == pytest.approx(20, abs=1e-4)
    assert snr_db(torch.zeros(4), torch.zeros(4)) == math.inf
    assert snr_db(torch.ones(4), torch.zeros(4)) == -math.inf
    assert math.isnan(snr_db(torch.full((4,), math.nan), torch.ones(4)))


def test_tiles_are_8_rows_and_at_least_64_elements() -> None:
    ref = torch.ones(32, 16)
    out = ref.clone()
    out[17] = 0
    value, row = tile_snr_db(out, ref)
    assert row == 16
    assert value == pytest.approx(10 * math.log10(8))
    narrow = torch.ones(200, 1)
    damaged = narrow.clone()
    damaged[70] = 0
    assert tile_snr_db(damaged, narrow) == (pytest.approx(10 * math.log10(64)), 64)


def test_judge_wants_exactly_the_outputs_in_their_dtype() -> None:
    ref = {"out": reference(), "da": reference()}
    good = {name: t.bfloat16() for name, t in ref.items()}
    passed, metrics, detail = judge(good, ref, GATES["bf16"], torch.bfloat16)
    assert (passed, detail) == (True, "")
    assert set(metrics) == {"out_snr", "da_snr"}
    cases = {
        "da: missing": {"out": good["out"]},
        "dx: unexpected": {**good, "dx": good["da"]},
        "dtype torch.float32": {**good, "da": ref["da"]},
        "shape (1024, 159)": {**good, "da": good["da"][:, 1:]},
    }
    for said, outputs in cases.items():
        passed, _, detail = judge(outputs, ref, GATES["bf16"], torch.bfloat16)
        assert not passed
        assert said in detail


def test_no_elements_is_right() -> None:
    assert wrong(torch.empty(0, 4), torch.empty(0, 4), GATES["bf16"]) is None
