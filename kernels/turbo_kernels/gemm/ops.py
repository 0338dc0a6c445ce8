"""GEMM with its gradients."""

from __future__ import annotations

from typing import Any

import torch
from torch.autograd.function import once_differentiable

from turbo_kernels.arch import require_runnable
from turbo_kernels.gemm.triton_gemm import gemm_into

_DTYPES = (torch.bfloat16, torch.float16, torch.float32)


def gemm(a: torch.Tensor, b: torch.Tensor, trans_a: bool = False, trans_b: bool = True,
         out_dtype: torch.dtype | None = None) -> torch.Tensor:  # fmt: skip
    """y[M, N] = op(a)·op(b), accumulated in fp32; differentiable in both operands.

    Args:
        a: [M, K], or [K, M] with trans_a; bf16, fp16 or fp32 (IEEE, never TF32); any strides.
        b: [N, K] with trans_b (a linear layer's weight), or [K, N]; of a's dtype.
        out_dtype: of y; a's by default.
    """
    if a.ndim != 2 or b.ndim != 2 or a.shape[0 if trans_a else 1] != b.shape[1 if trans_b else 0]:
        raise ValueError(
            f"gemm: shapes {tuple(a.shape)} and {tuple(b.shape)} don't multiply "
            f"with trans_a={trans_a}, trans_b={trans_b}"
        )
    out_dtype = out_dtype or a.dtype
    if a.dtype != b.dtype or a.dtype not in _DTYPES or out_dtype not in _DTYPES:
        raise TypeError(f"gemm: a {a.dtype}, b {b.dtype}, out {out_dtype}; all are bf16, fp16 or fp32, a as b")
    if a.device != b.device:
        raise ValueError(f"gemm: a is on {a.device}, b on {b.device}")
    require_runnable(a)
    return _Gemm.apply(a, b, trans_a, trans_b, out_dtype)  # type: ignore[return-value]


class _Gemm(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, a: torch.Tensor, b: torch.Tensor, trans_a: bool, trans_b: bool, out_dtype: torch.dtype
    ) -> torch.Tensor:
        ctx.save_for_backward(a, b)
        ctx.trans = trans_a, trans_b
        left, right = a.t() if trans_a else a, b.t() if trans_b else b
        out = torch.empty((left.shape[0], right.shape[1]), dtype=out_dtype, device=a.device)
        return gemm_into("forward", left, right, out)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_out: torch.Tensor) -> tuple[torch.Tensor | None, ...]:  # type: ignore[override]
        a, b = ctx.saved_tensors
        trans_a, trans_b = ctx.trans
        dy = grad_out.to(a.dtype)
        da = db = None
        if ctx.needs_input_grad[0]:
            da = torch.empty_like(a, memory_format=torch.contiguous_format)
            gemm_into("dgrad", dy, b if trans_b else b.t(), da.t() if trans_a else da)
        if ctx.needs_input_grad[1]:
            db = torch.empty_like(b, memory_format=torch.contiguous_format)
            if trans_b:  # dbᵀ[N, K] = dyᵀ·a, written row by row
                gemm_into("wgrad", dy.t(), a.t() if trans_a else a, db)
            else:
                gemm_into("wgrad", a if trans_a else a.t(), dy, db)
        return da, db, None, None, None
