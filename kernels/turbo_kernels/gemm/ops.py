"""GEMM with its gradients."""

from __future__ import annotations

from typing import Any

import torch

from turbo_kernels.gemm.backends import multiply
from turbo_kernels.library import operator

_DTYPES = (torch.bfloat16, torch.float16, torch.float32)


def gemm(a: torch.Tensor, b: torch.Tensor, trans_a: bool = False, trans_b: bool = True,
         out_dtype: torch.dtype | None = None, bias: torch.Tensor | None = None) -> torch.Tensor:  # fmt: skip
    """y[M, N] = op(a)·op(b) + bias, accumulated in fp32; differentiable in a, b and bias.

    Args:
        a: [M, K], or [K, M] with trans_a; bf16, fp16 or fp32 (IEEE, never TF32); any strides.
        b: [N, K] with trans_b (a linear layer's weight), or [K, N]; of a's dtype.
        out_dtype: of y; a's by default.
        bias: [N], bf16, fp16 or fp32; added before y is rounded. Its gradient is summed in fp32.
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
        raise ValueError(f"gemm: a is on {a.device}, b on {b.device}; give one device")
    if bias is not None:
        _check_bias(bias, a, b.shape[0 if trans_b else 1])
    return _gemm(a, b, bias, trans_a, trans_b, out_dtype)


def _check_bias(bias: torch.Tensor, a: torch.Tensor, columns: int) -> None:
    if bias.shape != (columns,):
        raise ValueError(f"gemm: bias has shape {tuple(bias.shape)}, y has {columns} columns; give ({columns},)")
    if bias.dtype not in _DTYPES:
        raise TypeError(f"gemm: bias is {bias.dtype}; give bf16, fp16 or fp32")
    if bias.device != a.device:
        raise ValueError(f"gemm: bias is on {bias.device}, a on {a.device}; give one device")


def _forward(a: torch.Tensor, b: torch.Tensor, bias: torch.Tensor | None, trans_a: bool, trans_b: bool,
             out_dtype: torch.dtype) -> torch.Tensor:  # fmt: skip
    left, right = a.t() if trans_a else a, b.t() if trans_b else b
    out = torch.empty((left.shape[0], right.shape[1]), dtype=out_dtype, device=a.device)
    if bias is None:
        return multiply("forward", left, right, out)
    return multiply("forward", left, right, out, bias.contiguous())


def _fake(a: torch.Tensor, b: torch.Tensor, bias: torch.Tensor | None, trans_a: bool, trans_b: bool,
          out_dtype: torch.dtype) -> torch.Tensor:  # fmt: skip
    return a.new_empty((a.shape[1 if trans_a else 0], b.shape[0 if trans_b else 1]), dtype=out_dtype)


def _setup(ctx: Any, inputs: tuple[Any, ...], output: torch.Tensor) -> None:
    a, b, bias, ctx.trans_a, ctx.trans_b, _ = inputs
    ctx.bias_dtype = None if bias is None else bias.dtype
    ctx.save_for_backward(a, b)


def _backward(ctx: Any, grad_out: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
    a, b = ctx.saved_tensors
    dy = grad_out.to(a.dtype)
    da = db = dbias = None
    if ctx.needs_input_grad[0]:
        da = _dgrad(dy, b, ctx.trans_a, ctx.trans_b)
    if ctx.needs_input_grad[1]:
        db = _wgrad(dy, a, ctx.trans_a, ctx.trans_b)
    if ctx.needs_input_grad[2]:
        dbias = grad_out.sum(0, dtype=torch.float32).to(ctx.bias_dtype)
    return da, db, dbias, None, None, None


def _dgrad_forward(dy: torch.Tensor, b: torch.Tensor, trans_a: bool, trans_b: bool) -> torch.Tensor:
    """da[M, K] = dy·op(b)ᵀ, contiguous as `a` is stored: [K, M] with trans_a."""
    da = _dgrad_fake(dy, b, trans_a, trans_b)
    multiply("dgrad", dy, b if trans_b else b.t(), da.t() if trans_a else da)
    return da


def _dgrad_fake(dy: torch.Tensor, b: torch.Tensor, trans_a: bool, trans_b: bool) -> torch.Tensor:
    m, k = dy.shape[0], b.shape[1 if trans_b else 0]
    return dy.new_empty((k, m) if trans_a else (m, k))


def _wgrad_forward(dy: torch.Tensor, a: torch.Tensor, trans_a: bool, trans_b: bool) -> torch.Tensor:
    """db = op(a)ᵀ·dy as `b` is stored: with trans_b its transpose [N, K] = dyᵀ·op(a), written row by row."""
    db = _wgrad_fake(dy, a, trans_a, trans_b)
    if trans_b:
        return multiply("wgrad", dy.t(), a.t() if trans_a else a, db)
    return multiply("wgrad", a if trans_a else a.t(), dy, db)


def _wgrad_fake(dy: torch.Tensor, a: torch.Tensor, trans_a: bool, trans_b: bool) -> torch.Tensor:
    n, k = dy.shape[1], a.shape[0 if trans_a else 1]
    return dy.new_empty((n, k) if trans_b else (k, n))


_dgrad = operator("gemm_dgrad", _dgrad_forward, _dgrad_fake)
_wgrad = operator("gemm_wgrad", _wgrad_forward, _wgrad_fake)
_gemm = operator("gemm", _forward, _fake, _setup, _backward)
