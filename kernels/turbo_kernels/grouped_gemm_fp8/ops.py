"""Grouped FP8 GEMM with its gradients: quantization is part of every step, nothing is cached between calls."""

from __future__ import annotations

from typing import Any

import torch

from turbo_kernels.arch import fp8_dtype
from turbo_kernels.gemm_fp8.fp8 import FORMATS, FP8Config
from turbo_kernels.gemm_fp8.triton_quant import BLOCK, padded
from turbo_kernels.grouped_gemm.ops import check
from turbo_kernels.grouped_gemm_fp8 import SPEC, backends
from turbo_kernels.grouped_gemm_fp8.triton_grouped_quant import Operand, quantize, quantize_weight
from turbo_kernels.library import operator
from turbo_kernels.triton_groups import cut, most_tiles

_INPUTS = (torch.bfloat16, torch.float16)
_OUTPUTS = (torch.bfloat16, torch.float16, torch.float32)


def grouped_gemm_fp8(a: torch.Tensor, b: torch.Tensor, group_lens: torch.Tensor, trans_b: bool = True,
                     config: FP8Config | None = None, out_dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:  # fmt: skip
    """y[T, N]: each group's rows of `a` times that group's matrix, in fp8 with fp32 accumulation; so are both gradients.

    Args:
        a: activations [T, K], rows sorted by group; bf16 or fp16, any strides.
        b: weights [G, N, K] (trans_b) or [G, K, N]; bf16 or fp16, any strides.
        group_lens: int64 [G], rows a group, as for `grouped_gemm`: on the device and only read there; empty groups and
            rows behind the groups are legal, and the latter neither read nor part of any scale.
        config: FP8Config. Variants: `blockwise` (default) has one scale per 1×128 of activations and gradients along
            the contracted dimension and one per 128×128 of each expert's weight; `rowwise` one per row of an operand
            (in the weight gradient: per group and column); `tensorwise` one per tensor.
        out_dtype: bf16, fp16 or fp32.

    The weight gradient contracts over a group's rows. Its operands are quantized again along them, in transposed copies
    where each group begins at a multiple of 128 and is padded with zeros: no scale spans two groups. An empty group's
    gradient is exactly 0. Backward saves only fp8 copies (of aᵀ and bᵀ, written by the forward's own quantization).
    """
    config = config or FP8Config()
    if config.variant not in SPEC.variants:
        raise ValueError(f"grouped_gemm_fp8: no variant {config.variant!r}; there are {', '.join(SPEC.variants)}")
    check("grouped_gemm_fp8", a, b, group_lens, trans_b)
    if a.dtype not in _INPUTS or b.dtype not in _INPUTS or out_dtype not in _OUTPUTS:
        raise TypeError(
            f"grouped_gemm_fp8: a {a.dtype}, b {b.dtype}, out {out_dtype}; inputs are bf16 or fp16, out also fp32"
        )
    recording = torch.is_grad_enabled()
    need_a, need_b = recording and a.requires_grad, recording and b.requires_grad
    return _forward_op(a, b, group_lens, trans_b, config.variant, config.format, out_dtype, need_a, need_b)[0]


def _forward(
    a: torch.Tensor, b: torch.Tensor, group_lens: torch.Tensor, trans_b: bool, variant: str, format: str,
    out_dtype: torch.dtype, need_a: bool, need_b: bool,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:  # fmt: skip
    """y, then what backward reads: aᵀ's codes and scales for the gradient of b, bᵀ's for that of a (else empty)."""
    encoding = FORMATS[format][0]
    weight = b if trans_b else b.transpose(1, 2)
    tiles = cut(group_lens, a.shape[0], BLOCK)
    rows, cols = quantize(a, tiles, variant, encoding, cols=need_b)
    weights, weights_t = quantize_weight(weight, variant, encoding, cols=need_a)
    y = backends.matmul("forward", rows, weights, group_lens, tiles, weight.shape[1], variant, out_dtype)
    return y, *_kept(cols, need_b, a), *_kept(weights_t, need_a, a)


def _kept(operand: Operand, needed: bool, like: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    if needed:
        return operand.q.view(torch.uint8), operand.scale
    return like.new_empty(0, dtype=torch.uint8), like.new_empty(0, dtype=torch.float32)


def _forward_fake(
    a: torch.Tensor, b: torch.Tensor, group_lens: torch.Tensor, trans_b: bool, variant: str, format: str,
    out_dtype: torch.dtype, need_a: bool, need_b: bool,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:  # fmt: skip
    (T, K), G = a.shape, b.shape[0]
    N = b.shape[1 if trans_b else 2]
    tiles, n_tiles = most_tiles(T, G, BLOCK), G * (padded(N) // BLOCK)
    scales = {
        "tensorwise": ((1,), (1,)),
        "rowwise": ((G, K), (G, K)),
        "blockwise": ((tiles, K), (n_tiles, padded(K) // BLOCK)),
    }[variant]
    codes = (K, tiles * BLOCK), (K, n_tiles * BLOCK)
    kept = []
    for needed, code, scale in zip((need_b, need_a), codes, scales, strict=True):
        kept.append(a.new_empty(code if needed else (0,), dtype=torch.uint8))
        kept.append(a.new_empty(scale if needed else (0,), dtype=torch.float32))
    return a.new_empty((T, N), dtype=out_dtype), *kept


def _setup(ctx: Any, inputs: tuple[Any, ...], output: tuple[torch.Tensor, ...]) -> None:
    a, b, group_lens, ctx.trans_b, ctx.variant, ctx.format, _, ctx.need_a, ctx.need_b = inputs
    ctx.dtypes = a.dtype, b.dtype
    ctx.set_materialize_grads(False)  # nobody asks for zeros in the shape of the codes
    ctx.mark_non_differentiable(*output[1:])
    ctx.save_for_backward(group_lens, *output[1:])


def _backward(ctx: Any, grad_out: torch.Tensor, *rest: Any) -> tuple[torch.Tensor | None, ...]:
    da, db = _backward_op(
        grad_out, *ctx.saved_tensors, ctx.trans_b, ctx.variant, ctx.format, *ctx.dtypes, ctx.need_a, ctx.need_b
    )
    return da if ctx.need_a else None, db if ctx.need_b else None, *(None,) * 7


def _gradients(
    grad_out: torch.Tensor, group_lens: torch.Tensor, a_codes: torch.Tensor, a_scale: torch.Tensor,
    b_codes: torch.Tensor, b_scale: torch.Tensor, trans_b: bool, variant: str, format: str, a_dtype: torch.dtype,
    b_dtype: torch.dtype, need_a: bool, need_b: bool,
) -> tuple[torch.Tensor, torch.Tensor]:  # fmt: skip
    """(da, db), empty where not needed. One launch quantizes grad_out for both."""
    saved, encoding = (FORMATS[format][i] for i in (0, 1))
    tiles = cut(group_lens, grad_out.shape[0], BLOCK)
    rows, cols = quantize(grad_out, tiles, variant, encoding, rows=need_a, cols=need_b)
    da, db = grad_out.new_empty(0, dtype=a_dtype), grad_out.new_empty(0, dtype=b_dtype)
    if need_a:  # da[T, K] = dy[T, N]·b[N, K] of the row's group
        weight = Operand(b_codes.view(fp8_dtype(saved)), b_scale)
        da = backends.matmul("dgrad", rows, weight, group_lens, tiles, b_codes.shape[0], variant, a_dtype)
    if need_b:  # db[g, N, K] = dyᵀ·a over the group's rows, or its transpose for [G, K, N] weights
        left, right = cols, Operand(a_codes.view(fp8_dtype(saved)), a_scale)
        pair = (left, right) if trans_b else (right, left)
        db = backends.wgrad(*pair, group_lens, tiles, variant, b_dtype)
    return da, db


def _gradients_fake(
    grad_out: torch.Tensor, group_lens: torch.Tensor, a_codes: torch.Tensor, a_scale: torch.Tensor,
    b_codes: torch.Tensor, b_scale: torch.Tensor, trans_b: bool, variant: str, format: str, a_dtype: torch.dtype,
    b_dtype: torch.dtype, need_a: bool, need_b: bool,
) -> tuple[torch.Tensor, torch.Tensor]:  # fmt: skip
    (T, N), K = grad_out.shape, (b_codes if need_a else a_codes).shape[0]
    da = (T, K) if need_a else (0,)
    db = (group_lens.shape[0], *((N, K) if trans_b else (K, N))) if need_b else (0,)
    return grad_out.new_empty(da, dtype=a_dtype), grad_out.new_empty(db, dtype=b_dtype)


_backward_op = operator("grouped_gemm_fp8_backward", _gradients, _gradients_fake)
_forward_op = operator("grouped_gemm_fp8", _forward, _forward_fake, _setup, _backward)
