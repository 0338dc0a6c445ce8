"""What grouped_gemm_fp8 ships: quantization, forward, dgrad and wgrad, for every variant and format."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from turbo_kernels import config
from turbo_kernels.builds import BF8, FP8, Build
from turbo_kernels.gemm_fp8.triton_quant import BLOCK, TINY
from turbo_kernels.grouped_gemm.builds import cut_build, split
from turbo_kernels.grouped_gemm_fp8.triton_grouped_gemm_fp8 import rows_kernel, wgrad_kernel
from turbo_kernels.grouped_gemm_fp8.triton_grouped_quant import amax_kernel, quantize_kernel

# The operands of each section's product in each format: E4M3 ("fp8") or E5M2 ("bf8").
OPERANDS = {
    "e4m3": {"forward": ("fp8", "fp8"), "dgrad": ("fp8", "fp8"), "wgrad": ("fp8", "fp8")},
    "e5m2": {"forward": ("bf8", "bf8"), "dgrad": ("bf8", "bf8"), "wgrad": ("bf8", "bf8")},
    "hybrid": {"dgrad": ("bf8", "fp8"), "wgrad": ("bf8", "fp8")},
}
E5M2_MAX = torch.finfo(torch.float8_e5m2).max
ODD = frozenset({"most", "G", "T", "group_rows", "stride_sbg", "stride_sbn", "stride_sbk"})


def largest(arch: str, kind: str) -> float:
    e4m3 = torch.float8_e4m3fnuz if arch == "gfx942" else torch.float8_e4m3fn
    return E5M2_MAX if kind == "bf8" else torch.finfo(e4m3).max


def triton_type(arch: str, kind: str) -> str:
    return f"*{(FP8 if kind == 'fp8' else BF8)[arch]}"


def gemm_build(arch: str, section: str, format: str, blockwise: bool, params: dict[str, Any]) -> Build:
    """Blockwise reads scales along the contraction; the other variants share one kernel, built as rowwise launches it."""
    constants, options = split(params)
    left, right = OPERANDS[format][section]
    wgrad = section == "wgrad"
    names = ("x", "y") if wgrad else ("a", "b")
    types = {f"{name}_ptr": triton_type(arch, kind) for name, kind in zip(names, (left, right), strict=True)}
    types |= {"c_ptr": "*bf16", **{f"s{name}_ptr": "*fp32" for name in names}}
    types["tiles_ptr" if wgrad else "table_ptr"] = "*i32"
    unit = ("stride_sxm", "stride_syn") if wgrad else ("stride_sa",)
    extremes = {f"{n.upper()}_MAX": largest(arch, kind) for n, kind in zip(names, (left, right), strict=True)}
    return Build(
        label=f"grouped_gemm_fp8 {section} {'blockwise' if blockwise else 'rowwise'} {format}",
        kernel=wgrad_kernel if wgrad else rows_kernel,
        types=types,
        constants=constants
        | dict.fromkeys(unit, 1)
        | extremes
        | {"BLOCKWISE": blockwise, "TINY": TINY, "INTERPRET": False},
        options=options,
        matrix=left if left == right else f"{left}_{right}",
        unit=ODD,
    )


def quant_builds(arch: str, options: dict[str, int]) -> Iterator[Build]:
    for weight in (False, True):
        what = "weight" if weight else "activations"
        shared = {"WEIGHT": weight, "ROWS": True, "COLS": True, "BLOCK": BLOCK, "stride_k": 1}
        for whole in (False, True):
            yield Build(
                label=f"grouped_gemm_fp8 amax {'tensorwise' if whole else 'rowwise'} {what}",
                kernel=amax_kernel,
                types={"x_ptr": "*bf16", "row_amax_ptr": "*i32", "col_amax_ptr": "*i32", "table_ptr": "*i32"},
                constants=shared | {"WHOLE": whole},
                options=options,
                unit=ODD,
            )
        for scales in ("block", "row", "tensor"):
            for kind in ("fp8", "bf8"):
                code = triton_type(arch, kind)
                yield Build(
                    label=f"grouped_gemm_fp8 quantize {scales} {what} {kind}",
                    kernel=quantize_kernel,
                    types={"x_ptr": "*bf16", "q_ptr": code, "s_ptr": "*fp32", "qt_ptr": code, "st_ptr": "*fp32",
                           "table_ptr": "*i32"},
                    constants=shared | {"SCALES": scales, "E5M2": kind == "bf8", "FP8_MAX": largest(arch, kind),
                                        "TINY": TINY, "INTERPRET": False},
                    options=options,
                    unit=ODD,
                )  # fmt: skip


def builds(arch: str) -> Iterator[Build]:
    sections = config.read("grouped_gemm_fp8", arch)
    yield cut_build("grouped_gemm_fp8", BLOCK)
    yield from quant_builds(arch, sections["quant"])
    for format, products in OPERANDS.items():
        for section in products:
            for blockwise in (True, False):
                yield gemm_build(arch, section, format, blockwise, sections[section])
