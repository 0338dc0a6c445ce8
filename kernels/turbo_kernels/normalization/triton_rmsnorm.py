"""RMSNorm over rows x[T, H]: y = x·rstd·w with rstd = 1/√(mean(x²) + eps), in fp32 between load and store.

A program holds a tile of whole rows in registers, so x is read once. With x̂ = x·rstd and g = dy·w the gradients are
dx = rstd·(g − x̂·mean(g·x̂)) and dw = Σ_rows dy·x̂. The backward's programs walk over the rows in steps of the grid and
each writes one row of partial sums of dw, which a second launch adds up: no atomics, the same bits every time.
"""

# Triton's kernels take their tensors, sizes and strides one by one, and its decorators hide the types.
# pyright: reportArgumentType=false, reportGeneralTypeIssues=false

from __future__ import annotations

from collections.abc import Mapping

import torch
import triton
import triton.language as tl

from turbo_kernels.arch import processors
from turbo_kernels.config import section

# By bytes an element: wider rows of x, dy and dw don't fit a program's registers together.
MAX_COLS = {2: 16384, 4: 12288}
MAX_WARPS = 16


@triton.jit
def _there(index, n, ALL: tl.constexpr):
    """index < n; a constant where that holds for all of them, so that loads aren't masked and need fewer registers."""
    if ALL:
        return tl.full(index.shape, True, tl.int1)
    else:
        return index < n


@triton.jit
def forward_kernel(x_ptr, w_ptr, y_ptr, rstd_ptr, T, stride_x, eps, H: tl.constexpr, ROWS: tl.constexpr,
                   COLS: tl.constexpr):  # fmt: skip
    row, col = tl.program_id(0) * ROWS + tl.arange(0, ROWS), tl.arange(0, COLS)
    in_row, in_col = _there(row, T, ROWS == 1), _there(col, H, COLS == H)
    row64, inside = row.to(tl.int64)[:, None], in_row[:, None] & in_col[None, :]
    x = tl.load(x_ptr + row64 * stride_x + col[None, :], mask=inside, other=0.0).to(tl.float32)
    rstd = tl.rsqrt(tl.sum(x * x, 1) / H + eps)
    tl.store(rstd_ptr + row, rstd, mask=in_row)
    w = tl.load(w_ptr + col, mask=in_col, other=0.0).to(tl.float32)
    y = x * rstd[:, None] * w[None, :]
    tl.store(y_ptr + row64 * H + col[None, :], y.to(y_ptr.dtype.element_ty), mask=inside)


@triton.jit
def backward_kernel(dy_ptr, x_ptr, w_ptr, rstd_ptr, dx_ptr, partial_ptr, T, stride_dy, stride_x, DWEIGHT: tl.constexpr,
                    H: tl.constexpr, ROWS: tl.constexpr, COLS: tl.constexpr):  # fmt: skip
    col = tl.arange(0, COLS)
    in_col = _there(col, H, COLS == H)
    dw = tl.zeros((ROWS, COLS), dtype=tl.float32)
    for first in range(tl.program_id(0) * ROWS, T, tl.num_programs(0) * ROWS):
        row = first + tl.arange(0, ROWS)
        in_row = _there(row, T, ROWS == 1)
        row64, inside = row.to(tl.int64)[:, None], in_row[:, None] & in_col[None, :]
        rstd = tl.load(rstd_ptr + row, mask=in_row, other=0.0)[:, None]
        xhat = tl.load(x_ptr + row64 * stride_x + col[None, :], mask=inside, other=0.0).to(tl.float32) * rstd
        dy = tl.load(dy_ptr + row64 * stride_dy + col[None, :], mask=inside, other=0.0).to(tl.float32)
        if DWEIGHT:
            dw += dy * xhat
        g = dy * tl.load(w_ptr + col, mask=in_col, other=0.0).to(tl.float32)[None, :]
        dx = rstd * (g - xhat * (tl.sum(g * xhat, 1) / H)[:, None])
        tl.store(dx_ptr + row64 * H + col[None, :], dx.to(dx_ptr.dtype.element_ty), mask=inside)
    if DWEIGHT:
        tl.store(partial_ptr + tl.program_id(0).to(tl.int64) * H + col, tl.sum(dw, 0), mask=in_col)


@triton.jit
def reduce_kernel(partial_ptr, dw_ptr, P, H, BLOCK_ROWS: tl.constexpr, BLOCK_COLS: tl.constexpr):
    """dw[H] = Σ partial[P, H]: a program takes a block of columns and all rows, in order."""
    col = tl.program_id(0) * BLOCK_COLS + tl.arange(0, BLOCK_COLS)
    total = tl.zeros((BLOCK_ROWS, BLOCK_COLS), dtype=tl.float32)
    for first in range(0, P, BLOCK_ROWS):
        row = first + tl.arange(0, BLOCK_ROWS)
        inside = (row < P)[:, None] & (col < H)[None, :]
        total += tl.load(partial_ptr + row.to(tl.int64)[:, None] * H + col[None, :], mask=inside, other=0.0)
    tl.store(dw_ptr + col, tl.sum(total, 0).to(dw_ptr.dtype.element_ty), mask=col < H)


def launch(H: int, config: Mapping[str, int]) -> tuple[dict[str, int], dict[str, int]]:
    """(H, ROWS and COLS of a program's tile, its num_warps): TILE elements, or one row and more warps where it is wider."""
    cols = 1 << (H - 1).bit_length()
    rows = max(1, config["TILE"] // cols)
    grown = max(1, rows * cols // config["TILE"])
    return {"H": H, "ROWS": rows, "COLS": cols}, {
        "num_warps": max(config["num_warps"], min(MAX_WARPS, config["num_warps"] * grown))
    }


def forward(x: torch.Tensor, weight: torch.Tensor, eps: float) -> tuple[torch.Tensor, torch.Tensor]:
    """(y[T, H], rstd fp32 [T]) of x[T, H] (rows of any stride) and weight[H]."""
    T, H = x.shape
    y, rstd = torch.empty((T, H), dtype=x.dtype, device=x.device), x.new_empty(T, dtype=torch.float32)
    tile, options = launch(H, section("normalization", "forward"))
    if T:
        forward_kernel[(triton.cdiv(T, tile["ROWS"]),)](x, weight, y, rstd, T, x.stride(0), eps, **tile, **options)
    return y, rstd


def backward(grad_out: torch.Tensor, x: torch.Tensor, weight: torch.Tensor, rstd: torch.Tensor,
             need_dweight: bool) -> tuple[torch.Tensor, torch.Tensor]:  # fmt: skip
    """(dx[T, H], dweight[H]); dweight is empty where it isn't needed."""
    T, H = x.shape
    config = section("normalization", "backward")
    tile, options = launch(H, config)
    share = max(1, config["PROGRAMS"] * config["TILE"] // (tile["ROWS"] * tile["COLS"]))
    programs = min(-(-T // tile["ROWS"]), processors() * share)
    dx = torch.empty((T, H), dtype=x.dtype, device=x.device)
    partial = x.new_empty((programs if need_dweight else 0, H), dtype=torch.float32)
    if T:
        backward_kernel[(programs,)](grad_out, x, weight, rstd, dx, partial, T, grad_out.stride(0), x.stride(0),
                                     DWEIGHT=need_dweight, **tile, **options)  # fmt: skip
    if not need_dweight:
        return dx, weight.new_empty(0)
    dweight, config = torch.empty(H, dtype=weight.dtype, device=x.device), section("normalization", "reduce")
    reduce_kernel[(triton.cdiv(H, config["BLOCK_COLS"]),)](partial, dweight, programs, H, **config)
    return dx, dweight
