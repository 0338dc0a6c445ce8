"""Compiles the kernels for GPUs that this machine hasn't got and asserts their matrix instruction.

A script, not a test: TRITON_INTERPRET must not be set in its process. Prints a line a kernel; exits 1 on a failure.
"""

from __future__ import annotations

import os
import re
import sys
from typing import Any

assert "TRITON_INTERPRET" not in os.environ, "unset TRITON_INTERPRET: this compiles"

from triton import compile as triton_compile  # noqa: E402
from triton.backends.compiler import GPUTarget  # noqa: E402
from triton.compiler import ASTSource  # noqa: E402
from turbo_kernels.gemm import triton_gemm  # noqa: E402
from turbo_kernels.gemm_fp8 import triton_gemm_fp8, triton_quant  # noqa: E402

TARGETS = {
    "gfx942": (GPUTarget("hip", "gfx942", 64), "fp8e4b8", "amdgcn"),
    "gfx950": (GPUTarget("hip", "gfx950", 64), "fp8e4nv", "amdgcn"),
    "sm_90": (GPUTarget("cuda", 90, 32), "fp8e4nv", "ptx"),
}
# The wrong FP8 flavour compiles too, silently, into another type's instruction: so by name.
INSTRUCTION = {
    ("gfx942", "fp8"): r"v_mfma_f32_\d+x\d+x\d+_fp8_fp8",
    ("gfx950", "fp8"): r"v_mfma_f32_\d+x\d+x\d+_(f8f6f4|fp8_fp8)",
    ("sm_90", "fp8"): r"wgmma\.mma_async\.sync\.aligned\.m64n\d+k32\.f32\.e4m3\.e4m3",
    ("gfx942", "bf16"): r"v_mfma_f32_\d+x\d+x\d+_?bf16",
    ("gfx950", "bf16"): r"v_mfma_f32_\d+x\d+x\d+_?bf16",
    ("sm_90", "bf16"): r"wgmma\.mma_async\.sync\.aligned\.m64n\d+k16\.f32\.bf16\.bf16",
}
PLAIN = {"BLOCK_M": 64, "BLOCK_N": 64, "BLOCK_K": 32, "GROUP_M": 1, "num_warps": 4, "num_stages": 2}
LARGE = {"BLOCK_M": 128, "BLOCK_N": 128, "BLOCK_K": 128, "GROUP_M": 8, "num_warps": 8, "num_stages": 2}
LDS_BYTES = {"gfx942": 64 << 10, "gfx950": 160 << 10, "sm_90": 227 << 10}


def build(
    kernel: Any, arch: str, types: dict[str, str], constants: dict[str, Any], config: dict[str, int]
) -> tuple[str, int]:
    """(assembly, shared memory bytes) of a kernel; its pointers and sizes are promised to be multiples of 16."""
    target, _, asm = TARGETS[arch]
    options = {k: v for k, v in config.items() if k.startswith("num_")}
    constants = {**constants, **{k: v for k, v in config.items() if k not in options}}
    signature = {name: "constexpr" if name in constants else types.get(name, "i32") for name in kernel.arg_names}
    divisible = {
        (i,): [["tt.divisibility", 16]]
        for i, n in enumerate(kernel.arg_names)
        if signature[n] != "constexpr" and n not in UNIT
    }
    source = ASTSource(fn=kernel, signature=signature, constexprs=constants, attrs=divisible)
    compiled = triton_compile(source, target=target, options=options)
    return compiled.asm[asm], compiled.metadata.shared


UNIT = {"sb_n", "sb_k", "stride_k"}  # often 1, so never promised to be divisible


def fp8_gemm(arch: str, config: dict[str, int], tma: bool, blocked: bool) -> tuple[str, int]:
    fp8 = TARGETS[arch][1]
    types = {"a_ptr": f"*{fp8}", "b_ptr": f"*{fp8}", "c_ptr": "*bf16", "sa_ptr": "*fp32", "sb_ptr": "*fp32"}
    constants: dict[str, Any] = {"B_BLOCKED": blocked, "INTERPRET": False}
    if tma:
        return build(triton_gemm_fp8.gemm_tma_kernel, arch, types, constants | {"STORE_TMA": True}, config)
    return build(triton_gemm_fp8.gemm_kernel, arch, types, constants, config)


def bf16_gemm(arch: str, config: dict[str, int]) -> tuple[str, int]:
    types = {"a_ptr": "*bf16", "b_ptr": "*bf16", "c_ptr": "*bf16"}
    unit = dict.fromkeys(("stride_ak", "stride_bk", "stride_cn"), 1)
    constants = {"bias_ptr": None, "EVEN_MN": True, "EVEN_K": True, "UPCAST": False, **unit}
    return build(triton_gemm.gemm_kernel, arch, types, constants, config)


def quant(arch: str, whole: bool) -> tuple[str, int]:
    fp8 = TARGETS[arch][1]
    types = {"x_ptr": "*bf16", "q_ptr": f"*{fp8}", "s_ptr": "*fp32", "qt_ptr": f"*{fp8}", "st_ptr": "*fp32"}
    constants = {"ROWS": True, "COLS": True, "WHOLE": whole, "E5M2": False, "FP8_MAX": 240.0 if arch == "gfx942" else 448.0,
                 "TINY": 1e-12, "BLOCK": 128, "INTERPRET": False, "stride_k": 1}  # fmt: skip
    return build(triton_quant.quantize_kernel, arch, types, constants, {"num_warps": 4, "num_stages": 2})


def main() -> int:
    failed = 0

    def report(name: str, arch: str, built: tuple[str, int], kind: str | None) -> None:
        nonlocal failed
        text, shared = built
        found = len(re.findall(INSTRUCTION[arch, kind], text)) if kind else 0
        spills = [int(n) for n in re.findall(r"_spill_count:\s+(\d+)", text)]  # AMD's assembly alone says
        bad = (kind is not None and not found) or shared > LDS_BYTES[arch] or any(spills)
        failed += bad
        spilled = sum(spills) if spills else "not read"
        print(
            f"{'FAIL' if bad else 'ok'} {arch} {name}: {found} matrix, {shared} B shared, spills {spilled}",
            flush=True,
        )

    for arch in TARGETS:
        for label, config in (("plain", PLAIN), ("large", LARGE)):
            report(f"gemm_fp8 {label} blocked", arch, fp8_gemm(arch, config, False, True), "fp8")
            small = config | {"BLOCK_K": min(config["BLOCK_K"], 64)}  # 16-bit operands: twice the bytes
            report(f"gemm {label}", arch, bf16_gemm(arch, small), "bf16")
        report("gemm_fp8 large rows", arch, fp8_gemm(arch, LARGE, False, False), "fp8")
        report("quant", arch, quant(arch, False), None)
        report("quant weight", arch, quant(arch, True), None)
        report("gemm_fp8 large TMA", arch, fp8_gemm(arch, LARGE, True, True), "fp8")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
