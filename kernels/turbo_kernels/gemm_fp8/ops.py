"""FP8 GEMM with its gradients: quantization is part of every step, nothing is cached between calls."""

from __future__ import annotations

from typing import Any

import torch
from torch.autograd.function import once_differentiable

from turbo_kernels.arch import require_runnable
from turbo_kernels.gemm_fp8 import SPEC
from turbo_kernels.gemm_fp8.triton_gemm_fp8 import gemm
from turbo_kernels.gemm_fp8.triton_quant import Quantized, quantize, quantize_weight

_INPUTS = (torch.bfloat16, torch.float16)
_OUTPUTS = (torch.bfloat16, torch.float16, torch.float32)


def gemm_fp8(a: torch.Tensor, b: torch.Tensor, trans_b: bool = True, variant: str = "blockwise",
             out_dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:  # fmt: skip
    """y[M, N] = a·bᵀ in fp8 E4M3 with fp32 accumulation; differentiable in both operands, their gradients in fp8 too.

    Args:
        a: activations [M, K], bf16 or fp16, any strides; one scale per 1×128 along the contracted dimension.
        b: weight [N, K] (trans_b) or [K, N]; one scale per 128×128.
        variant: the scaling; `blockwise`.
        out_dtype: bf16, fp16 or fp32.

    Backward saves only fp8 copies (of aᵀ and bᵀ, written by the forward's own quantization).
    """
    if variant not in SPEC.variants:
        raise ValueError(f"gemm_fp8: no variant {variant!r}; there are {', '.join(SPEC.variants)}")
    if a.ndim != 2 or b.ndim != 2 or a.shape[1] != b.shape[1 if trans_b else 0]:
        raise ValueError(
            f"gemm_fp8: shapes {tuple(a.shape)} and {tuple(b.shape)} don't multiply with trans_b={trans_b}"
        )
    if a.dtype not in _INPUTS or b.dtype not in _INPUTS or out_dtype not in _OUTPUTS:
        raise TypeError(f"gemm_fp8: a {a.dtype}, b {b.dtype}, out {out_dtype}; inputs are bf16 or fp16, out also fp32")
    if a.device != b.device:
        raise ValueError(f"gemm_fp8: a is on {a.device}, b on {b.device}")
    require_runnable(a)
    return _GemmFp8.apply(a, b, trans_b, out_dtype)  # type: ignore[return-value]


class _GemmFp8(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, a: torch.Tensor, b: torch.Tensor, trans_b: bool, out_dtype: torch.dtype) -> torch.Tensor:
        need_a, need_b = ctx.needs_input_grad[:2]
        qa, qat = quantize(a, cols=need_b)
        qb, qbt = quantize_weight(b if trans_b else b.t(), cols=need_a)
        ctx.save_for_backward(*(qat if need_b else (None, None)), *(qbt if need_a else (None, None)))
        ctx.trans_b, ctx.dtypes = trans_b, (a.dtype, b.dtype)
        return gemm("forward", qa, qb, out_dtype, qb.scale.stride())  # type: ignore[arg-type]

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_out: torch.Tensor) -> tuple[torch.Tensor | None, ...]:  # type: ignore[override]
        need_a, need_b = ctx.needs_input_grad[:2]
        aq, a_scale, bq, b_scale = ctx.saved_tensors
        rows, cols = quantize(grad_out, rows=need_a, cols=need_b)
        da = db = None
        if need_a:  # da[M, K] = dy[M, N] · b[N, K]: the weight's scales, block of K first
            da = gemm("dgrad", rows, Quantized(bq, b_scale), ctx.dtypes[0], b_scale.stride()[::-1])
        if need_b:  # db[N, K] = dyᵀ[N, M] · a[M, K], or its transpose for a [K, N] weight
            left, right = cols, Quantized(aq, a_scale)
            db = gemm("wgrad", *((left, right) if ctx.trans_b else (right, left)), ctx.dtypes[1])
        return da, db, None, None
