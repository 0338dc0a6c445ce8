"""What gemm_fp8 ships: every variant's products and blockwise quantization, each in its section's configuration."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from turbo_kernels import config
from turbo_kernels.builds import BF8, FP8, FP8_MAX, Build, split
from turbo_kernels.gemm_fp8.triton_gemm_fp8 import gemm_kernel, gemm_tma_kernel
from turbo_kernels.gemm_fp8.triton_gemm_scaled import MX_BLOCK, MX_INSTRUCTION, mx_gemm_kernel, scaled_gemm_kernel
from turbo_kernels.gemm_fp8.triton_quant import BLOCK, TINY, quantize_kernel

Params = Mapping[str, Any]

ENCODINGS = {"e4m3": FP8, "e5m2": BF8}
# What a step multiplies. The third: a hybrid step's gradient by an operand; the last: the other way round, which is the
# weight gradient of a [K, N] weight.
PAIRS = (("e4m3", "e4m3"), ("e5m2", "e5m2"), ("e5m2", "e4m3"), ("e4m3", "e5m2"))
LAUNCHES = {"forward": PAIRS[:2], "dgrad": PAIRS[:3], "wgrad": PAIRS}
BF8_MAX = 57344.0
NAMES = {"e4m3": "fp8", "e5m2": "bf8"}
BLOCKED = {"forward": True, "dgrad": True, "wgrad": False}  # is b the weight, with a scale per 128×128?


def builds(arch: str) -> Iterator[Build]:
    for section, params in config.read("gemm_fp8", arch).items():
        kinds = {"quant": _quant, "scaled": _scaled, "mx": _mx}
        yield from kinds[section](arch, params) if section in kinds else _blockwise(arch, section, params)


def _types(arch: str, a: str, b: str, scale: str = "*fp32") -> dict[str, str]:
    operands = {"a_ptr": f"*{ENCODINGS[a][arch]}", "b_ptr": f"*{ENCODINGS[b][arch]}", "c_ptr": "*bf16"}
    return operands | {"sa_ptr": scale, "sb_ptr": scale}


def _matrix(a: str, b: str) -> str:
    return NAMES[a] if a == b else f"{NAMES[a]}_{NAMES[b]}"


def _blockwise(arch: str, section: str, params: Params) -> Iterator[Build]:
    constants, options = split(params)
    tma = constants.pop("PERSISTENT_TMA")
    for a, b in LAUNCHES[section]:
        yield Build(
            label=f"gemm_fp8 {section} {a}·{b}",
            kernel=gemm_tma_kernel if tma else gemm_kernel,
            types=_types(arch, a, b),
            constants=constants
            | {"B_BLOCKED": BLOCKED[section], "INTERPRET": False}
            | ({"STORE_TMA": True} if tma else {}),
            options=options,
            matrix=_matrix(a, b),
            unit=frozenset({"sb_n", "sb_k"}),
        )


def _scaled(arch: str, params: Params) -> Iterator[Build]:
    constants, options = split(params)
    for a, b in PAIRS:
        for rowwise, even in ((False, True), (True, False)):
            yield Build(
                label=f"gemm_fp8 {'rowwise' if rowwise else 'tensorwise'} {a}·{b}{'' if even else ', odd K'}",
                kernel=scaled_gemm_kernel,
                types=_types(arch, a, b),
                constants=constants | {"ROWWISE": rowwise, "EVEN_K": even, "INTERPRET": False},
                options=options,
                matrix=_matrix(a, b),
                unit=frozenset() if even else frozenset({"M", "N", "K"}),
            )


def _mx(arch: str, params: Params) -> Iterator[Build]:
    constants, options = split(params)
    instruction = arch in MX_INSTRUCTION
    if not instruction:
        constants["BLOCK_K"] = MX_BLOCK
    for a, b in PAIRS:
        yield Build(
            label=f"gemm_fp8 mxfp8 {a}·{b}",
            kernel=mx_gemm_kernel,
            types=_types(arch, a, b, "*u8"),
            constants=constants
            | {"A_FORMAT": a, "B_FORMAT": b, "INSTRUCTION": instruction, "EVEN_K": True, "INTERPRET": False},
            options=options,
            matrix=("mx" if instruction else "") + _matrix(a, b),
        )


def _quant(arch: str, params: Params) -> Iterator[Build]:
    for encoding, flavours in ENCODINGS.items():
        fp8, largest = f"*{flavours[arch]}", FP8_MAX[arch] if encoding == "e4m3" else BF8_MAX
        for label, whole in (("activations", False), ("weights", True)):
            yield Build(
                label=f"gemm_fp8 quant {label} {encoding}",
                kernel=quantize_kernel,
                types={"x_ptr": "*bf16", "q_ptr": fp8, "s_ptr": "*fp32", "qt_ptr": fp8, "st_ptr": "*fp32"},
                constants={"ROWS": True, "COLS": True, "WHOLE": whole, "E5M2": encoding == "e5m2", "FP8_MAX": largest,
                           "TINY": TINY, "BLOCK": BLOCK, "INTERPRET": False, "stride_k": 1},
                options=dict(params),
            )  # fmt: skip
