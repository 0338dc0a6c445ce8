"""FP4 GEMM with its gradients: quantization is part of every step, nothing is cached between calls."""

from __future__ import annotations

from typing import Any

import torch

from turbo_kernels.gemm_fp4 import SPEC
from turbo_kernels.gemm_fp4.backends import matmul
from turbo_kernels.gemm_fp8.triton_quant import Quantized
from turbo_kernels.library import operator
from turbo_kernels.quantization.backends import quantize
from turbo_kernels.quantization.formats import q_shape, scale_shape

_INPUTS = (torch.bfloat16, torch.float16)
_OUTPUTS = (torch.bfloat16, torch.float16, torch.float32)


def gemm_fp4(a: torch.Tensor, b: torch.Tensor, trans_b: bool = True, variant: str = "mxfp4",
             out_dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:  # fmt: skip
    """y[M, N] = a·bᵀ in mxfp4 with fp32 accumulation; differentiable in both operands.

    E2M1 codes, nearest even, with an E8M0 scale per 32 of the contracted dimension (quantization.formats has the
    formula and its source). The gradients are mxfp4 GEMMs too: grad_out, b and a are quantized along the
    dimension that each of them contracts, so da = grad_out·b and db = grad_outᵀ·a carry FP4's noise like y, about
    16 dB of SNR on normal numbers. gfx950 multiplies the codes themselves; elsewhere they are decoded to bf16, exactly.

    Args:
        a: [M, K], bf16 or fp16, any strides.
        b: weight [N, K] (trans_b) or [K, N], bf16 or fp16.
        variant: mxfp4.
        out_dtype: bf16, fp16 or fp32; gradients have their operand's dtype.

    Backward saves only fp4 copies (of aᵀ and bᵀ, written by the forward's own quantization).
    ValueError for an unknown variant, shapes that don't multiply or two devices; TypeError for other dtypes.
    """
    if variant not in SPEC.variants:
        raise ValueError(f"gemm_fp4: no variant {variant!r}; there are {', '.join(SPEC.variants)}")
    if a.ndim != 2 or b.ndim != 2 or a.shape[1] != b.shape[1 if trans_b else 0]:
        raise ValueError(
            f"gemm_fp4: shapes {tuple(a.shape)} and {tuple(b.shape)} don't multiply with trans_b={trans_b}"
        )
    if a.dtype not in _INPUTS or b.dtype not in _INPUTS or out_dtype not in _OUTPUTS:
        raise TypeError(f"gemm_fp4: a {a.dtype}, b {b.dtype}, out {out_dtype}; inputs are bf16 or fp16, out also fp32")
    if a.device != b.device:
        raise ValueError(f"gemm_fp4: a is on {a.device}, b on {b.device}; give one device")
    learns = torch.is_grad_enabled()
    return _gemm_fp4(a, b, trans_b, out_dtype, learns and a.requires_grad, learns and b.requires_grad)[0]


Outputs = tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]
Grads = tuple[torch.Tensor, torch.Tensor]


def _forward(a: torch.Tensor, b: torch.Tensor, trans_b: bool, out_dtype: torch.dtype, need_a: bool,
             need_b: bool) -> Outputs:  # fmt: skip
    """(y; codes and scales of aᵀ, which db needs; those of bᵀ, which da needs)."""
    rows_a, cols_a = quantize(a, "mxfp4", "e4m3", True, need_b)
    rows_b, cols_b = quantize(b if trans_b else b.t(), "mxfp4", "e4m3", True, need_a)
    out = matmul("forward", rows_a, rows_b, out_dtype)
    cols_a, cols_b = cols_a or _nothing(a), cols_b or _nothing(a)
    return out, cols_a.q, cols_a.scale, cols_b.q, cols_b.scale


def _nothing(like: torch.Tensor) -> Quantized:
    return Quantized(like.new_empty(0, dtype=torch.uint8), like.new_empty(0, dtype=torch.uint8))


def _fake(a: torch.Tensor, b: torch.Tensor, trans_b: bool, out_dtype: torch.dtype, need_a: bool,
          need_b: bool) -> Outputs:  # fmt: skip
    (M, K), N = a.shape, b.shape[0 if trans_b else 1]
    cols_a = _fake_quantized(a, K, M) if need_b else _nothing(a)
    cols_b = _fake_quantized(a, K, N) if need_a else _nothing(a)
    return a.new_empty((M, N), dtype=out_dtype), cols_a.q, cols_a.scale, cols_b.q, cols_b.scale


def _fake_quantized(like: torch.Tensor, rows: int, length: int) -> Quantized:
    return Quantized(*(like.new_empty(s("mxfp4", rows, length), dtype=torch.uint8) for s in (q_shape, scale_shape)))


def _setup(ctx: Any, inputs: tuple[Any, ...], output: Outputs) -> None:
    a, b, ctx.trans_b, _, *ctx.need = inputs
    ctx.dtypes = a.dtype, b.dtype
    ctx.save_for_backward(*output[1:])


def _backward(ctx: Any, grad_out: torch.Tensor, *unused: Any) -> tuple[torch.Tensor | None, ...]:
    da, db = _gemm_fp4_backward(grad_out, *ctx.saved_tensors, ctx.trans_b, *ctx.dtypes, *ctx.need)
    need_a, need_b = ctx.need
    return da if need_a else None, db if need_b else None, None, None, None, None


def _gradients(grad_out: torch.Tensor, qat: torch.Tensor, sat: torch.Tensor, qbt: torch.Tensor, sbt: torch.Tensor,
               trans_b: bool, a_dtype: torch.dtype, b_dtype: torch.dtype, need_a: bool, need_b: bool) -> Grads:  # fmt: skip
    da, db = grad_out.new_empty(0), grad_out.new_empty(0)  # two tensors: outputs may not alias
    rows, cols = quantize(grad_out, "mxfp4", "e4m3", need_a, need_b)
    if need_a:  # da[M, K] = dy[M, N] · b[N, K]
        da = matmul("dgrad", rows, Quantized(qbt, sbt), a_dtype)
    if need_b:  # db[N, K] = dyᵀ[N, M] · a[M, K], or its transpose for a [K, N] weight
        pair = (cols, Quantized(qat, sat))
        db = matmul("wgrad", *(pair if trans_b else pair[::-1]), b_dtype)
    return da, db


def _gradients_fake(grad_out: torch.Tensor, qat: torch.Tensor, sat: torch.Tensor, qbt: torch.Tensor,
                    sbt: torch.Tensor, trans_b: bool, a_dtype: torch.dtype, b_dtype: torch.dtype, need_a: bool,
                    need_b: bool) -> Grads:  # fmt: skip
    M, N = grad_out.shape
    K = (qbt if need_a else qat).shape[0]
    da = grad_out.new_empty((M, K), dtype=a_dtype) if need_a else grad_out.new_empty(0)
    db = grad_out.new_empty((N, K) if trans_b else (K, N), dtype=b_dtype) if need_b else grad_out.new_empty(0)
    return da, db


_gemm_fp4_backward = operator("gemm_fp4_backward", _gradients, _gradients_fake)
_gemm_fp4 = operator("gemm_fp4", _forward, _fake, _setup, _backward)
