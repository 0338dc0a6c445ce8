"""Grouped GEMM with its gradients."""

from __future__ import annotations

from typing import Any

import torch

from turbo_kernels.grouped_gemm import backends
from turbo_kernels.library import operator

_DTYPES = (torch.bfloat16, torch.float16, torch.float32)


def grouped_gemm(a: torch.Tensor, b: torch.Tensor, group_lens: torch.Tensor, trans_b: bool = True,
                 out_dtype: torch.dtype | None = None) -> torch.Tensor:  # fmt: skip
    """y[T, N]: each group's rows of `a` times that group's matrix, accumulated in fp32; differentiable in a and b.

    Args:
        a: [T, K], rows sorted by group (tokens by expert); bf16, fp16 or fp32 (IEEE, never TF32); any strides.
        b: [G, N, K] with trans_b (each expert a linear layer's weight), or [G, K, N]; of a's dtype; any strides.
        group_lens: int64 [G], rows a group, on a's device and only read there: no host sync, so a CUDA graph may replay
            it with other contents. Groups may be empty, and their sum under T: the rows behind come back as zeros, with
            zero gradients and unread. What is no share of T rows isn't seen by the host: a negative length counts as 0,
            rows over T as none.
        out_dtype: of y; a's by default.

    An empty group's gradient of b is exactly 0.
    """
    check("grouped_gemm", a, b, group_lens, trans_b)
    out_dtype = out_dtype or a.dtype
    if a.dtype != b.dtype or a.dtype not in _DTYPES or out_dtype not in _DTYPES:
        raise TypeError(f"grouped_gemm: a {a.dtype}, b {b.dtype}, out {out_dtype}; all are bf16, fp16 or fp32, a as b")
    return _grouped_gemm(a, b, group_lens, trans_b, out_dtype)


def check(op: str, a: torch.Tensor, b: torch.Tensor, group_lens: torch.Tensor, trans_b: bool) -> None:
    """ValueError or TypeError, in `op`'s name, for shapes, group lengths and devices that can't go together."""
    if a.ndim != 2 or b.ndim != 3 or a.shape[1] != b.shape[2 if trans_b else 1]:
        raise ValueError(
            f"{op}: shapes {tuple(a.shape)} and {tuple(b.shape)} don't multiply with trans_b={trans_b}; "
            f"a is [T, K], b {'[G, N, K]' if trans_b else '[G, K, N]'}"
        )
    if group_lens.shape != b.shape[:1]:
        raise ValueError(f"{op}: group_lens has shape {tuple(group_lens.shape)}, b has {b.shape[0]} groups; give [G]")
    if group_lens.dtype != torch.int64:
        raise TypeError(f"{op}: group_lens is {group_lens.dtype}; give int64")
    if not a.device == b.device == group_lens.device:
        raise ValueError(
            f"{op}: a is on {a.device}, b on {b.device}, group_lens on {group_lens.device}; give one device"
        )


def _forward(a: torch.Tensor, b: torch.Tensor, group_lens: torch.Tensor, trans_b: bool,
             out_dtype: torch.dtype) -> torch.Tensor:  # fmt: skip
    return backends.matmul("forward", a, b.transpose(1, 2) if trans_b else b, group_lens, out_dtype)


def _forward_fake(a: torch.Tensor, b: torch.Tensor, group_lens: torch.Tensor, trans_b: bool,
                  out_dtype: torch.dtype) -> torch.Tensor:  # fmt: skip
    return a.new_empty((a.shape[0], b.shape[1 if trans_b else 2]), dtype=out_dtype)


def _setup(ctx: Any, inputs: tuple[Any, ...], output: torch.Tensor) -> None:
    a, b, group_lens, ctx.trans_b, _ = inputs
    ctx.save_for_backward(a, b, group_lens)


def _backward(ctx: Any, grad_out: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
    a, b, group_lens = ctx.saved_tensors
    dy = grad_out.to(a.dtype)
    da = db = None
    if ctx.needs_input_grad[0]:
        da = _dgrad(dy, b, group_lens, ctx.trans_b)
    if ctx.needs_input_grad[1]:  # [G, N, K] = dyᵀ·a, or [G, K, N] = aᵀ·dy
        db = _wgrad(*((dy, a) if ctx.trans_b else (a, dy)), group_lens)
    return da, db, None, None, None


def _dgrad_forward(dy: torch.Tensor, b: torch.Tensor, group_lens: torch.Tensor, trans_b: bool) -> torch.Tensor:
    return backends.matmul("dgrad", dy, b if trans_b else b.transpose(1, 2), group_lens, dy.dtype)


def _dgrad_fake(dy: torch.Tensor, b: torch.Tensor, group_lens: torch.Tensor, trans_b: bool) -> torch.Tensor:
    return dy.new_empty((dy.shape[0], b.shape[2 if trans_b else 1]))


def _wgrad_forward(x: torch.Tensor, y: torch.Tensor, group_lens: torch.Tensor) -> torch.Tensor:
    return backends.wgrad(x, y, group_lens, x.dtype)


def _wgrad_fake(x: torch.Tensor, y: torch.Tensor, group_lens: torch.Tensor) -> torch.Tensor:
    return x.new_empty((group_lens.shape[0], x.shape[1], y.shape[1]))


_dgrad = operator("grouped_gemm_dgrad", _dgrad_forward, _dgrad_fake)
_wgrad = operator("grouped_gemm_wgrad", _wgrad_forward, _wgrad_fake)
_grouped_gemm = operator("grouped_gemm", _forward, _forward_fake, _setup, _backward)
