"""Gated activations over rows x[T, 2H] = [gate | up]: y = f(gate)·up·p, in fp32 between load and store.

Every f here is f(g) = g·s(g) with s from 0 to 1: SiLU has s = σ(g), GELU s = Φ(g), and GELU's tanh form
½(1 + tanh u) = σ(2u). So f' = s + g·s', and only s and s' depend on the kind.
"""

# Triton's kernels take their tensors, sizes and strides one by one, and its decorators hide the types.
# pyright: reportArgumentType=false, reportGeneralTypeIssues=false

from __future__ import annotations

import torch
import triton
import triton.language as tl

from turbo_kernels.config import section


@triton.jit
def slope(g, KIND: tl.constexpr):
    """(s, s') of f(g) = g·s(g)."""
    if KIND == "silu":
        s = tl.sigmoid(g)
        return s, s * (1 - s)
    elif KIND == "gelu_tanh":  # 2u = √(8/π)·(g + 0.044715·g³)
        s = tl.sigmoid(1.5957691216057308 * g * (1 + 0.044715 * g * g))
        return s, s * (1 - s) * 1.5957691216057308 * (1 + 0.134145 * g * g)
    else:  # Φ and the normal density
        return 0.5 + 0.5 * tl.erf(g * 0.7071067811865476), 0.3989422804014327 * tl.exp(-0.5 * g * g)


@triton.jit
def forward_kernel(x_ptr, p_ptr, y_ptr, T, H, stride_x, stride_p, KIND: tl.constexpr, PROBS: tl.constexpr,
                   BLOCK_ROWS: tl.constexpr, BLOCK_COLS: tl.constexpr):  # fmt: skip
    row = tl.program_id(0) * BLOCK_ROWS + tl.arange(0, BLOCK_ROWS)
    col = tl.program_id(1) * BLOCK_COLS + tl.arange(0, BLOCK_COLS)
    inside = (row < T)[:, None] & (col < H)[None, :]
    x = x_ptr + row.to(tl.int64)[:, None] * stride_x + col[None, :]
    gate = tl.load(x, mask=inside, other=0.0).to(tl.float32)
    up = tl.load(x + H, mask=inside, other=0.0).to(tl.float32)
    s, _ = slope(gate, KIND)
    y = gate * s * up
    if PROBS:
        y *= tl.load(p_ptr + row.to(tl.int64) * stride_p, mask=row < T, other=0.0).to(tl.float32)[:, None]
    tl.store(y_ptr + row.to(tl.int64)[:, None] * H + col[None, :], y.to(y_ptr.dtype.element_ty), mask=inside)


@triton.jit
def backward_kernel(dy_ptr, x_ptr, p_ptr, dx_ptr, dp_ptr, T, H, stride_dy, stride_x, stride_p, KIND: tl.constexpr,
                    PROBS: tl.constexpr, DPROBS: tl.constexpr, BLOCK_ROWS: tl.constexpr,
                    BLOCK_COLS: tl.constexpr):  # fmt: skip
    """The grid's second axis is 1 for DPROBS: one program then sums a row, in a fixed order."""
    row = tl.program_id(0) * BLOCK_ROWS + tl.arange(0, BLOCK_ROWS)
    in_row, row64 = row < T, row.to(tl.int64)
    if PROBS:
        p = tl.load(p_ptr + row64 * stride_p, mask=in_row, other=0.0).to(tl.float32)[:, None]
    dp = tl.zeros((BLOCK_ROWS, BLOCK_COLS), dtype=tl.float32)
    for first in range(tl.program_id(1) * BLOCK_COLS, H, tl.num_programs(1) * BLOCK_COLS):
        col = first + tl.arange(0, BLOCK_COLS)
        inside = in_row[:, None] & (col < H)[None, :]
        x = x_ptr + row64[:, None] * stride_x + col[None, :]
        gate = tl.load(x, mask=inside, other=0.0).to(tl.float32)
        up = tl.load(x + H, mask=inside, other=0.0).to(tl.float32)
        dy = tl.load(dy_ptr + row64[:, None] * stride_dy + col[None, :], mask=inside, other=0.0).to(tl.float32)
        s, ds = slope(gate, KIND)
        if DPROBS:
            dp += gate * s * up * dy
        if PROBS:
            dy *= p
        dx = dx_ptr + row64[:, None] * (2 * H) + col[None, :]
        tl.store(dx, (dy * up * (s + gate * ds)).to(dx_ptr.dtype.element_ty), mask=inside)
        tl.store(dx + H, (dy * gate * s).to(dx_ptr.dtype.element_ty), mask=inside)
    if DPROBS:
        tl.store(dp_ptr + row, tl.sum(dp, 1).to(dp_ptr.dtype.element_ty), mask=in_row)


def forward(x: torch.Tensor, probs: torch.Tensor | None, kind: str) -> torch.Tensor:
    """y[T, H] of x[T, 2H] (rows of any stride) and probs[T] or None."""
    T, H = x.shape[0], x.shape[1] // 2
    y = torch.empty((T, H), dtype=x.dtype, device=x.device)
    config = section("activation", "forward")
    grid = (triton.cdiv(T, config["BLOCK_ROWS"]), triton.cdiv(H, config["BLOCK_COLS"]))
    if T:
        forward_kernel[grid](x, x if probs is None else probs, y, T, H, x.stride(0), _stride(probs), KIND=kind,
                             PROBS=probs is not None, **config)  # fmt: skip
    return y


def backward(grad_out: torch.Tensor, x: torch.Tensor, probs: torch.Tensor | None, kind: str,
             need_dprobs: bool) -> tuple[torch.Tensor, torch.Tensor]:  # fmt: skip
    """(dx[T, 2H], dprobs[T]); dprobs is empty where it isn't needed."""
    T, H = grad_out.shape
    dx = torch.empty((T, 2 * H), dtype=x.dtype, device=x.device)
    dprobs = torch.empty(T if need_dprobs else 0, dtype=x.dtype if probs is None else probs.dtype, device=x.device)
    config = section("activation", "backward")
    grid = (triton.cdiv(T, config["BLOCK_ROWS"]), 1 if need_dprobs else triton.cdiv(H, config["BLOCK_COLS"]))
    if T:
        backward_kernel[grid](grad_out, x, x if probs is None else probs, dx, dprobs, T, H, grad_out.stride(0),
                              x.stride(0), _stride(probs), KIND=kind, PROBS=probs is not None, DPROBS=need_dprobs,
                              **config)  # fmt: skip
    return dx, dprobs


def _stride(probs: torch.Tensor | None) -> int:
    return 0 if probs is None else probs.stride(0)
