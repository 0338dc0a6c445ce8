"""What gemm_fp8 ships: each variant's products in every format, and blockwise quantization (the rest of the quantization
is quantization's)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from turbo_kernels import config
from turbo_kernels.builds import BF8, FP8, Build
from turbo_kernels.gemm_fp8.triton_gemm_fp8 import gemm_kernel, gemm_tma_kernel
from turbo_kernels.gemm_fp8.triton_gemm_scaled import (
    MX_BLOCK,
    MX_INSTRUCTION,
    mx_gemm_kernel,
    scaled_gemm_kernel,
)
from turbo_kernels.gemm_fp8.triton_quant import BLOCK, TINY, quantize_kernel

ENCODINGS = {"e4m3": FP8, "e5m2": BF8}
# What a step multiplies: (left, right) encodings, and the matrix instruction's operands.
PAIRS = {("e4m3", "e4m3"): "fp8", ("e5m2", "e5m2"): "bf8", ("e5m2", "e4m3"): "bf8_fp8", ("e4m3", "e5m2"): "fp8_bf8"}
LAUNCHES = {  # launch -> the pairs that a format can give it; hybrid's wgrad has the gradient on either side
    "forward": list(PAIRS)[:2],
    "dgrad": list(PAIRS)[:3],
    "wgrad": list(PAIRS),
}


def builds(arch: str) -> Iterator[Build]:
    shipped = config.read("gemm_fp8", arch)
    yield from _quantization(arch, shipped["quant"])
    for launch, pairs in LAUNCHES.items():
        for pair in pairs:
            yield _blockwise(arch, launch, pair, shipped[launch])
    for pair in PAIRS:
        for rowwise in (False, True):
            yield _scaled(arch, pair, rowwise, shipped["scaled"])
        yield _mx(arch, pair, shipped["mx"])


def _split(params: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, int]]:
    """(constants, Triton's options)."""
    options = {k: v for k, v in params.items() if k.startswith("num_")}
    return {k: v for k, v in params.items() if k not in options and k != "PERSISTENT_TMA"}, options


def _types(arch: str, pair: tuple[str, str], scale: str) -> dict[str, str]:
    a, b = (f"*{ENCODINGS[encoding][arch]}" for encoding in pair)
    return {"a_ptr": a, "b_ptr": b, "c_ptr": "*bf16", "sa_ptr": scale, "sb_ptr": scale}


def _blockwise(arch: str, launch: str, pair: tuple[str, str], params: Mapping[str, Any]) -> Build:
    constants, options = _split(params)
    tma = params["PERSISTENT_TMA"]
    constants |= {"B_BLOCKED": launch != "wgrad", "INTERPRET": False} | ({"STORE_TMA": True} if tma else {})
    return Build(
        f"gemm_fp8 blockwise {launch} {'·'.join(pair)}", gemm_tma_kernel if tma else gemm_kernel,
        _types(arch, pair, "*fp32"), constants, options, PAIRS[pair], frozenset({"sb_n", "sb_k"}),
    )  # fmt: skip


def _scaled(arch: str, pair: tuple[str, str], rowwise: bool, params: Mapping[str, Any]) -> Build:
    constants, options = _split(params)
    constants |= {"ROWWISE": rowwise, "EVEN_K": True, "INTERPRET": False}
    label = f"gemm_fp8 {'rowwise' if rowwise else 'tensorwise'} {'·'.join(pair)}"
    return Build(label, scaled_gemm_kernel, _types(arch, pair, "*fp32"), constants, options, PAIRS[pair])


def _mx(arch: str, pair: tuple[str, str], params: Mapping[str, Any]) -> Build:
    constants, options = _split(params)
    instruction = arch in MX_INSTRUCTION
    constants |= {"A_FORMAT": pair[0], "B_FORMAT": pair[1], "INSTRUCTION": instruction, "EVEN_K": True,
                  "INTERPRET": False}  # fmt: skip
    if not instruction:
        constants["BLOCK_K"] = MX_BLOCK
    matrix = "mxfp8" if instruction else PAIRS[pair]
    return Build(
        f"gemm_fp8 mxfp8 {'·'.join(pair)}", mx_gemm_kernel, _types(arch, pair, "*u8"), constants, options, matrix
    )


def _quantization(arch: str, params: Mapping[str, Any]) -> Iterator[Build]:
    constants, options = _split(params)
    for encoding, flavours in ENCODINGS.items():
        largest = 57344.0 if encoding == "e5m2" else 240.0 if arch == "gfx942" else 448.0
        fp8 = f"*{flavours[arch]}"
        for label, whole in (("activation", False), ("weight", True)):
            yield Build(
                f"gemm_fp8 quantize {label} {encoding}", quantize_kernel,
                {"x_ptr": "*bf16", "q_ptr": fp8, "s_ptr": "*fp32", "qt_ptr": fp8, "st_ptr": "*fp32"},
                constants | {"ROWS": True, "COLS": True, "WHOLE": whole, "E5M2": encoding == "e5m2", "FP8_MAX": largest,
                             "TINY": TINY, "BLOCK": BLOCK, "INTERPRET": False, "stride_k": 1},
                options,
            )  # fmt: skip
