"""What quantization ships: every variant's kernels in the shipped configurations, both outputs at once."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from turbo_kernels import config
from turbo_kernels.builds import BF8, FP8, Build
from turbo_kernels.gemm_fp8.triton_quant import TINY
from turbo_kernels.quantization.formats import limits
from turbo_kernels.quantization.triton_quantize import amax_kernel, dequantize_kernel, mx_kernel, scaled_kernel

E4M3 = {"gfx942": torch.float8_e4m3fnuz, "gfx950": torch.float8_e4m3fn, "sm_90": torch.float8_e4m3fn}
UNIT = frozenset({"M", "K", "stride_k", "stride_sm", "stride_sk"})  # often odd, so never promised to be divisible


def mx(dtype: torch.dtype | None) -> dict[str, float]:
    ends = limits(dtype)
    return {"EMAX": ends.emax, "CARRY": ends.carry, "LARGEST": ends.largest}


def builds(arch: str) -> Iterator[Build]:
    shipped = config.read("quantization", arch)
    both = {"ROWS": True, "COLS": True, "stride_k": 1, "INTERPRET": False}

    def build(label: str, kernel: Any, section: str, types: dict[str, str], constants: dict[str, Any]) -> Build:
        tile = {k: v for k, v in shipped[section].items() if k != "num_warps"}
        warps = {"num_warps": shipped[section]["num_warps"]}
        return Build(
            f"quantization {label}", kernel, {"x_ptr": "*bf16", **types}, {**tile, **constants}, warps, unit=UNIT
        )

    bits = {"row_ptr": "*i32", "col_ptr": "*i32"}
    for variant, axes in (("tensorwise", False), ("rowwise", True)):
        constants = {"WHOLE": not axes, "ROWS": axes, "COLS": axes, "stride_k": 1}
        yield build(f"{variant} amax", amax_kernel, "amax", bits, constants)
    for encoding, flavours, dtype in (("e4m3", FP8, E4M3[arch]), ("e5m2", BF8, torch.float8_e5m2)):
        fp8 = f"*{flavours[arch]}"
        outputs = {"q_ptr": fp8, "qt_ptr": fp8, "s_ptr": "*fp32", "st_ptr": "*fp32"}
        common = {**both, "E5M2": encoding == "e5m2"}
        for variant in ("tensorwise", "rowwise"):
            constants = {**common, "WHOLE": variant == "tensorwise", "TINY": TINY, "FP8_MAX": limits(dtype).largest}
            yield build(f"{variant} {encoding}", scaled_kernel, "scaled", {**bits, **outputs}, constants)
        outputs |= {"s_ptr": "*u8", "st_ptr": "*u8"}
        yield build(f"mxfp8 {encoding}", mx_kernel, "mx", outputs, {**common, **mx(dtype), "FP4": False})
        for variant, block, e8m0 in (("blockwise", 128, False), ("mxfp8", 32, True)):
            yield build(f"{variant} {encoding} dequantize", dequantize_kernel, "dequantize",
                        {"q_ptr": fp8, "s_ptr": "*u8" if e8m0 else "*fp32", "out_ptr": "*bf16"},
                        {"SCALE_ROWS": 1, "SCALE_COLS": block, "E8M0": e8m0, "FP4": False,
                         "E5M2": encoding == "e5m2", "INTERPRET": False})  # fmt: skip
    codes = {name: "*u8" for name in ("q_ptr", "qt_ptr", "s_ptr", "st_ptr")}
    constants = {**both, "FP4": True, "E5M2": False, **mx(None)}
    yield build("mxfp4", mx_kernel, "mx", codes, constants)
    yield build("mxfp4 dequantize", dequantize_kernel, "dequantize", {**codes, "out_ptr": "*bf16"},
                {"SCALE_ROWS": 1, "SCALE_COLS": 32, "E8M0": True, "FP4": True, "E5M2": False,
                 "INTERPRET": False})  # fmt: skip
