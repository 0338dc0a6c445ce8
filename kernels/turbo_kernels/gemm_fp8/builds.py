"""What gemm_fp8 ships: quantization, forward, dgrad and wgrad, each in its section's configuration."""

from __future__ import annotations

from collections.abc import Iterator

from turbo_kernels import config
from turbo_kernels.builds import FP8, FP8_MAX, Build, split
from turbo_kernels.gemm_fp8.triton_gemm_fp8 import gemm_kernel, gemm_tma_kernel
from turbo_kernels.gemm_fp8.triton_quant import BLOCK, TINY, quantize_kernel

SCALES = {"sa_ptr": "*fp32", "sb_ptr": "*fp32"}
BLOCKED = {"forward": True, "dgrad": True, "wgrad": False}  # is b the weight, with a scale per 128×128?


def builds(arch: str) -> Iterator[Build]:
    for section, params in config.read("gemm_fp8", arch).items():
        yield from _quant(arch, params) if section == "quant" else _gemm(arch, section, params)


def _gemm(arch: str, section: str, params: dict) -> Iterator[Build]:
    constants, options = split(params)
    tma = constants.pop("PERSISTENT_TMA")
    yield Build(
        label=f"gemm_fp8 {section}",
        kernel=gemm_tma_kernel if tma else gemm_kernel,
        types={"a_ptr": f"*{FP8[arch]}", "b_ptr": f"*{FP8[arch]}", "c_ptr": "*bf16", **SCALES},
        constants=constants
        | {"B_BLOCKED": BLOCKED[section], "INTERPRET": False}
        | ({"STORE_TMA": True} if tma else {}),
        options=options,
        matrix="fp8",
        unit=frozenset({"sb_n", "sb_k"}),
    )


def _quant(arch: str, params: dict) -> Iterator[Build]:
    fp8 = f"*{FP8[arch]}"
    for label, whole in (("activations", False), ("weights", True)):
        yield Build(
            label=f"gemm_fp8 quant {label}",
            kernel=quantize_kernel,
            types={"x_ptr": "*bf16", "q_ptr": fp8, "s_ptr": "*fp32", "qt_ptr": fp8, "st_ptr": "*fp32"},
            constants={"ROWS": True, "COLS": True, "WHOLE": whole, "FP8_MAX": FP8_MAX[arch], "TINY": TINY,
                       "BLOCK": BLOCK, "INTERPRET": False, "stride_k": 1},
            options=params,
        )  # fmt: skip
