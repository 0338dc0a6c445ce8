"""Who multiplies for gemm_fp8, by variant: our kernels, torch._scaled_mm (hipBLASLt or cuBLASLt), plain torch, others'.

Each gives c[M, N] = a·bᵀ for K-major `a` and `b`, and is called as (name, a, b, out_dtype); `name` is the launch: forward
(a, b: activations, weight), dgrad (gradient, transposed weight) or wgrad. The operands are always ours, quantized by
Triton.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from turbo_kernels.arch import detect, unrunnable
from turbo_kernels.dispatch import AutoKernelDispatcher, Backend
from turbo_kernels.external import external
from turbo_kernels.gemm_fp8 import triton_gemm_scaled
from turbo_kernels.gemm_fp8.fp8 import VARIANTS
from turbo_kernels.gemm_fp8.reference import BLOCK, values
from turbo_kernels.gemm_fp8.triton_gemm_fp8 import gemm
from turbo_kernels.gemm_fp8.triton_quant import Quantized

_scaled_mm = torch._scaled_mm  # pyright: ignore[reportPrivateImportUsage]
E5M2 = (torch.float8_e5m2, torch.float8_e5m2fnuz)
Multiply = Callable[[str, Quantized, Quantized, torch.dtype], torch.Tensor]


def _triton_blockwise(name: str, a: Quantized, b: Quantized, out_dtype: torch.dtype) -> torch.Tensor:
    if name == "wgrad":
        return gemm(name, a, b, out_dtype)
    strides = b.scale.stride()  # the weight's, block of N first; its transpose has the same scales
    return gemm(name, a, b, out_dtype, strides if name == "forward" else strides[::-1])  # type: ignore[arg-type]


def _triton_refuses(name: str, a: Quantized, b: Quantized, out_dtype: torch.dtype) -> str | None:
    return unrunnable(a.q)


def _library_blockwise(name: str, a: Quantized, b: Quantized, out_dtype: torch.dtype) -> torch.Tensor:
    scale_b = b.scale if name == "wgrad" else b.scale.t()
    if name == "dgrad":  # [contracted blocks, column blocks], the first of them contiguous
        scale_b = b.scale.t().contiguous().t()
    return _scaled_mm(a.q, b.q.t(), a.scale.t(), scale_b, out_dtype=out_dtype)


def _library_tensorwise(name: str, a: Quantized, b: Quantized, out_dtype: torch.dtype) -> torch.Tensor:
    return _scaled_mm(a.q, b.q.t(), a.scale, b.scale, out_dtype=out_dtype)


def _library_rowwise(name: str, a: Quantized, b: Quantized, out_dtype: torch.dtype) -> torch.Tensor:
    return _scaled_mm(a.q, b.q.t(), a.scale[:, None], b.scale[None, :], out_dtype=out_dtype)


def _tensorwise_refuses(name: str, a: Quantized, b: Quantized, out_dtype: torch.dtype) -> str | None:
    (M, K), N = a.q.shape, b.q.shape[0]
    if not (M and N and K):
        return "torch._scaled_mm takes no empty operand"
    if K % 16 or N % 16:
        return f"torch._scaled_mm wants K and N in multiples of 16, got K={K}, N={N}"
    if a.q.is_cuda and a.q.dtype in E5M2 and b.q.dtype in E5M2:
        return "torch._scaled_mm multiplies no two E5M2 operands"
    return None


def _rowwise_refuses(name: str, a: Quantized, b: Quantized, out_dtype: torch.dtype) -> str | None:
    if a.q.is_cuda and out_dtype != torch.bfloat16:
        return f"torch._scaled_mm with scales per row writes bf16 alone, got {out_dtype}"
    if a.q.is_cuda and b.q.dtype in E5M2:
        return "torch._scaled_mm with scales per row takes E5M2 on the left alone"
    return _tensorwise_refuses(name, a, b, out_dtype)


def _blockwise_refuses(name: str, a: Quantized, b: Quantized, out_dtype: torch.dtype) -> str | None:
    if detect() != "sm_90":
        return f"torch._scaled_mm has scales per 1×128 on sm_90 alone, this is {detect()}"
    if [int(n) for n in str(torch.version.cuda).split(".")] < [12, 9]:
        return f"torch._scaled_mm has scales per 1×128 from CUDA 12.9 on, this is {torch.version.cuda}"
    if out_dtype != torch.bfloat16 or a.q.dtype in E5M2 or b.q.dtype in E5M2:
        return f"torch._scaled_mm with scales per 1×128 takes E4M3 to bf16, got {a.q.dtype}, {b.q.dtype} to {out_dtype}"
    (M, K), N = a.q.shape, b.q.shape[0]
    if M % BLOCK or N % BLOCK or not (M and N and K):
        return f"torch._scaled_mm with scales per 1×128 wants M and N in multiples of 128, got M={M}, N={N}"
    return None


def _rows_to_external(name: str, a: Quantized, b: Quantized, out_dtype: torch.dtype) -> tuple[Any, ...]:
    return a.q, b.q, a.scale[:, None], b.scale[:, None], out_dtype


def _blocks_to_external(name: str, a: Quantized, b: Quantized, out_dtype: torch.dtype) -> tuple[Any, ...] | str:
    if name == "wgrad":
        return "it wants one operand with a scale per 128×128; a weight gradient has none"
    return a.q, b.q, a.scale.t(), b.scale if name == "forward" else b.scale.t(), out_dtype


def _plain(variant: str) -> Multiply:
    def multiply(name: str, a: Quantized, b: Quantized, out_dtype: torch.dtype) -> torch.Tensor:
        layout = {"forward": "weight", "dgrad": "weight_t"}.get(name, variant) if variant == "blockwise" else variant
        return (values(*a, variant) @ values(*b, layout).t()).to(out_dtype)

    return multiply


# In order of preference. torch._scaled_mm wants E8M0 scales in a layout of its own, on GPUs that aren't supported here.
_BACKENDS: dict[str, tuple[Backend, ...]] = {
    "blockwise": (
        Backend("TRITON", _triton_blockwise, _triton_refuses),
        Backend("HIPBLASLT", _library_blockwise, _blockwise_refuses),
        Backend("TORCH", _plain("blockwise")),
        *external("gemm_fp8_blockwise", _blocks_to_external),
    ),
    "tensorwise": (
        Backend("TRITON", triton_gemm_scaled.tensorwise, _triton_refuses),
        Backend("HIPBLASLT", _library_tensorwise, _tensorwise_refuses),
        Backend("TORCH", _plain("tensorwise")),
    ),
    "rowwise": (
        Backend("TRITON", triton_gemm_scaled.rowwise, _triton_refuses),
        Backend("HIPBLASLT", _library_rowwise, _rowwise_refuses),
        Backend("TORCH", _plain("rowwise")),
        *external("gemm_fp8_rowwise", _rows_to_external),
    ),
    "mxfp8": (Backend("TRITON", triton_gemm_scaled.mxfp8, _triton_refuses), Backend("TORCH", _plain("mxfp8"))),
}
MULTIPLY: dict[str, AutoKernelDispatcher] = {
    variant: AutoKernelDispatcher(f"gemm_fp8_{variant}", "GEMM", "fp8", _BACKENDS[variant]) for variant in VARIANTS
}
