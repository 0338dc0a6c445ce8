"""What quantization ships: every variant's kernels in the shipped configurations, both outputs at once."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from turbo_kernels import config
from turbo_kernels.builds import BF8, FP8, Build
from turbo_kernels.gemm_fp8.triton_quant import TINY
from turbo_kernels.quantization.triton_quantize import amax_kernel, dequantize_kernel, mx_kernel, scaled_kernel

# max(format), and the exponent of its largest power of two; FNUZ E4M3 alone differs.
FP8_MAX = {"gfx942": 240.0, "gfx950": 448.0, "sm_90": 448.0}
EMAX = {"gfx942": 7, "gfx950": 8, "sm_90": 8}
UNIT = frozenset({"M", "K", "stride_k", "stride_sm", "stride_sk"})  # often odd, so never promised to be divisible


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
    for encoding, flavours, largest, emax in (
        ("e4m3", FP8, FP8_MAX[arch], EMAX[arch]),
        ("e5m2", BF8, 57344.0, 15),
    ):
        fp8 = f"*{flavours[arch]}"
        outputs = {"q_ptr": fp8, "qt_ptr": fp8, "s_ptr": "*fp32", "st_ptr": "*fp32"}
        common = {**both, "E5M2": encoding == "e5m2", "FP8_MAX": largest}
        for variant in ("tensorwise", "rowwise"):
            constants = {**common, "WHOLE": variant == "tensorwise", "TINY": TINY}
            yield build(f"{variant} {encoding}", scaled_kernel, "scaled", {**bits, **outputs}, constants)
        outputs |= {"s_ptr": "*u8", "st_ptr": "*u8"}
        yield build(f"mxfp8 {encoding}", mx_kernel, "mx", outputs, {**common, "FP4": False, "EMAX": emax})
        for variant, block, e8m0 in (("blockwise", 128, False), ("mxfp8", 32, True)):
            yield build(f"{variant} {encoding} dequantize", dequantize_kernel, "dequantize",
                        {"q_ptr": fp8, "s_ptr": "*u8" if e8m0 else "*fp32", "out_ptr": "*bf16"},
                        {"SCALE_ROWS": 1, "SCALE_COLS": block, "E8M0": e8m0, "FP4": False,
                         "E5M2": encoding == "e5m2", "INTERPRET": False})  # fmt: skip
    codes = {name: "*u8" for name in ("q_ptr", "qt_ptr", "s_ptr", "st_ptr")}
    constants = {**both, "FP4": True, "E5M2": False, "EMAX": 2, "FP8_MAX": FP8_MAX[arch]}
    yield build("mxfp4", mx_kernel, "mx", codes, constants)
    yield build("mxfp4 dequantize", dequantize_kernel, "dequantize", {**codes, "out_ptr": "*bf16"},
                {"SCALE_ROWS": 1, "SCALE_COLS": 32, "E8M0": True, "FP4": True, "E5M2": False,
                 "INTERPRET": False})  # fmt: skip
