"""FP8 quantization of rows sorted by group, in both K-major layouts, from one reading of the tensor.

A program takes one tile of 128 rows of one group (triton_groups) by 128 columns. `rows` is q[T, ⌈K⌉], in the rows'
own order, to contract over K. `cols` is qᵀ[K, P], to contract over a group's rows: tile i of the table lies at the
columns 128·i, so every group begins at a multiple of 128 and is padded with zeros to one, and no scale, and no step of
a GEMM, ever spans two groups. P, 128 times the most tiles there may be, is known to the host; where a group begins is not.

Scales (`variant`):
- blockwise: of activations one per row and 128 columns, scale[block, row], and in `cols` one per column and tile,
  scale[tile, column]; of weights one per 128×128 of an expert, scale[tile, block], which both layouts share;
- rowwise: `rows` one per row, `cols` one per group and column;
- tensorwise: one.
The last two are kept as the largest magnitude, `amax`: a first kernel finds it (atomically, by its bits: a maximum is
the same in any order), and whoever needs the scale takes max(amax, TINY) / largest code.

A weight b[G, N, K] is G groups of N rows each, whose tiles need no table. Rows behind the groups are never read.
"""

# Triton's kernels take their tensors, sizes and strides one by one, and its decorators hide the types.
# pyright: reportArgumentType=false, reportGeneralTypeIssues=false

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl

from turbo_kernels.arch import INTERPRET, fp8_dtype
from turbo_kernels.config import section
from turbo_kernels.gemm_fp8.triton_quant import BLOCK, TINY, padded
from turbo_kernels.quantization.triton_quantize import fp8_code
from turbo_kernels.triton_groups import Tiles


class Operand(NamedTuple):
    """`q`: fp8 codes, K-major, the contraction padded to 128. `scale`: fp32, as the module says (rowwise and tensorwise:
    the amax). `x ≈ q·scale`."""

    q: torch.Tensor
    scale: torch.Tensor


@triton.jit
def scale_of(amax, FP8_MAX: tl.constexpr, TINY: tl.constexpr):
    amax = tl.where(amax < TINY, TINY, amax)  # not `maximum`, which may drop a NaN
    return tl.div_rn(amax, FP8_MAX)


@triton.jit
def _inverse(amax, FP8_MAX: tl.constexpr, TINY: tl.constexpr):
    amax = tl.where(amax < TINY, TINY, amax)
    return tl.div_rn(FP8_MAX, amax)


@triton.jit
def _amax(x, axis: tl.constexpr, INTERPRET: tl.constexpr):
    amax = tl.max(tl.abs(x), axis)
    if INTERPRET:  # it reads an FP8 NaN as a number: let the scale carry it instead
        amax += tl.sum(x * 0.0, axis)
    return amax


@triton.jit
def _store(ptr, x, mask, E5M2: tl.constexpr, INTERPRET: tl.constexpr):
    if INTERPRET:
        tl.store(ptr, fp8_code(x, E5M2), mask=mask)
    else:
        tl.store(ptr, x.to(ptr.dtype.element_ty), mask=mask)


@triton.jit
def _place(table_ptr, most, tile, G, group_rows, WEIGHT: tl.constexpr, BLOCK: tl.constexpr):
    """(group, first row, rows left in its group) of a tile; for activations the row counts from the tensor's start."""
    if WEIGHT:
        per_group = tl.cdiv(group_rows, BLOCK)
        first = tile % per_group * BLOCK
        return tile // per_group, first, group_rows - first
    else:
        group, first = tl.load(table_ptr + tile), tl.load(table_ptr + most + tile)
        left = tl.load(table_ptr + 2 * most + tile) - first
        return group, first, tl.where(group < G, left, 0)


@triton.jit
def amax_kernel(x_ptr, row_amax_ptr, col_amax_ptr, table_ptr, most, G, group_rows, K, stride_g, stride_m, stride_k,
                ROWS: tl.constexpr, COLS: tl.constexpr, WHOLE: tl.constexpr, WEIGHT: tl.constexpr,
                BLOCK: tl.constexpr):  # fmt: skip
    """Raises amax, fp32 given as int32 bits: of all (WHOLE, at row_amax), of each row, of each group's columns."""
    tiles_k = tl.cdiv(K, BLOCK)
    tile, tile_k = tl.program_id(0) // tiles_k, tl.program_id(0) % tiles_k
    group, first, left = _place(table_ptr, most, tile, G, group_rows, WEIGHT, BLOCK)
    if left > 0:
        local = tl.arange(0, BLOCK)
        k = tile_k * BLOCK + local
        x_ptr += (
            group.to(tl.int64) * stride_g + first.to(tl.int64) * stride_m + (tile_k * BLOCK).to(tl.int64) * stride_k
        )
        inside = (local < left)[:, None] & (k < K)[None, :]
        x = tl.load(x_ptr + local[:, None] * stride_m + local[None, :] * stride_k, mask=inside, other=0.0)
        bits = x.to(tl.float32).to(tl.int32, bitcast=True) & 0x7FFFFFFF  # ordered as the magnitudes, NaN on top
        if WHOLE:
            tl.atomic_max(row_amax_ptr, tl.max(bits, None), sem="relaxed")
        else:
            if ROWS:
                row = group * group_rows + first + local if WEIGHT else first + local
                tl.atomic_max(row_amax_ptr + row, tl.max(bits, 1), mask=local < left, sem="relaxed")
            if COLS:
                tl.atomic_max(col_amax_ptr + group.to(tl.int64) * K + k, tl.max(bits, 0), mask=k < K, sem="relaxed")


@triton.jit
def quantize_kernel(x_ptr, q_ptr, s_ptr, qt_ptr, st_ptr, table_ptr, most, G, group_rows, T, K, stride_g, stride_m,
                    stride_k, positions, ROWS: tl.constexpr, COLS: tl.constexpr, SCALES: tl.constexpr,
                    WEIGHT: tl.constexpr, E5M2: tl.constexpr, FP8_MAX: tl.constexpr, TINY: tl.constexpr,
                    BLOCK: tl.constexpr, INTERPRET: tl.constexpr):  # fmt: skip
    """SCALES: `block` computes and stores them; `row` and `tensor` read amax at s_ptr and st_ptr. A tile without rows
    (of the tail, or beyond what is needed) writes zeros to `cols`: every byte of an output is defined."""
    tiles_k = tl.cdiv(K, BLOCK)
    tile, tile_k = tl.program_id(0) // tiles_k, tl.program_id(0) % tiles_k
    group, first, left = _place(table_ptr, most, tile, G, group_rows, WEIGHT, BLOCK)
    local = tl.arange(0, BLOCK)
    k = tile_k * BLOCK + local
    in_m, in_k = local < left, k < K
    x_ptr += group.to(tl.int64) * stride_g + first.to(tl.int64) * stride_m + (tile_k * BLOCK).to(tl.int64) * stride_k
    x = tl.load(x_ptr + local[:, None] * stride_m + local[None, :] * stride_k,
                mask=in_m[:, None] & in_k[None, :], other=0.0).to(tl.float32)  # fmt: skip
    start = group.to(tl.int64) * group_rows + first if WEIGHT else first.to(tl.int64)
    row = start + local
    shared: tl.constexpr = SCALES == "tensor" or (SCALES == "block" and WEIGHT)
    if SCALES == "tensor":
        whole = x * _inverse(tl.load(s_ptr), FP8_MAX, TINY)
    elif shared:
        amax = _amax(x, None, INTERPRET)
        tl.store(s_ptr + tile * tiles_k + tile_k, scale_of(amax, FP8_MAX, TINY))
        whole = x * _inverse(amax, FP8_MAX, TINY)
    if ROWS:
        if shared:
            q = whole
        elif SCALES == "row":
            q = x * _inverse(tl.load(s_ptr + row, mask=in_m, other=0.0), FP8_MAX, TINY)[:, None]
        else:
            amax = _amax(x, 1, INTERPRET)
            tl.store(s_ptr + tile_k.to(tl.int64) * T + row, scale_of(amax, FP8_MAX, TINY), mask=in_m)
            q = x * _inverse(amax, FP8_MAX, TINY)[:, None]
        width = tiles_k * BLOCK
        q_ptr += start * width + tile_k * BLOCK
        _store(q_ptr + local[:, None] * width + local[None, :], q, in_m[:, None], E5M2, INTERPRET)
    if COLS:
        if shared:
            q = whole
        elif SCALES == "row":
            at = st_ptr + group.to(tl.int64) * K + k
            q = x * _inverse(tl.load(at, mask=in_k & (left > 0), other=0.0), FP8_MAX, TINY)[None, :]
        else:
            amax = _amax(x, 0, INTERPRET)
            tl.store(st_ptr + tile.to(tl.int64) * K + k, scale_of(amax, FP8_MAX, TINY), mask=in_k)
            q = x * _inverse(amax, FP8_MAX, TINY)[None, :]
        qt_ptr += (tile_k * BLOCK).to(tl.int64) * positions + tile.to(tl.int64) * BLOCK
        _store(qt_ptr + local[:, None] * positions + local[None, :], tl.trans(q), in_k[:, None], E5M2, INTERPRET)


def quantize(
    x: torch.Tensor, tiles: Tiles, variant: str, encoding: str, rows: bool = True, cols: bool = True
) -> tuple[Operand, Operand]:
    """x[T, K], cut into `tiles` of 128 rows -> (along K, along each group's rows); what isn't asked for is empty.

    The scales are [⌈K⌉/128, T] and [tiles, K] for blockwise, [T] and [G, K] for rowwise, one [1] for tensorwise.
    """
    return _quantize(x[None], tiles, tiles.rows.numel() - 1, tiles.most, variant, encoding, rows, cols)


def quantize_weight(
    x: torch.Tensor, variant: str, encoding: str, rows: bool = True, cols: bool = True
) -> tuple[Operand, Operand]:
    """x[G, N, K] -> q[G·N, ⌈K⌉] and qᵀ[K, G·⌈N⌉], each expert by itself; blockwise: one scale[G·⌈N⌉/128, ⌈K⌉/128]."""
    groups, N, _ = x.shape
    return _quantize(x, None, groups, groups * padded(N) // BLOCK, variant, encoding, rows, cols)


def _quantize(
    x: torch.Tensor, tiles: Tiles | None, groups: int, most: int, variant: str, encoding: str, rows: bool, cols: bool
) -> tuple[Operand, Operand]:
    outer, group_rows, K = x.shape
    weight, total, blocks = tiles is None, outer * group_rows, padded(K) // BLOCK
    dtype = fp8_dtype(encoding)
    nothing = torch.empty(0, dtype=dtype, device=x.device)
    q = torch.empty((total, padded(K)), dtype=dtype, device=x.device) if rows else nothing
    qt = torch.empty((K, most * BLOCK), dtype=dtype, device=x.device) if cols else nothing
    s, st = _scales(x, variant, weight, (total, groups, K, most, blocks), rows, cols)
    out = Operand(q, s), Operand(qt, st)
    programs = most * blocks
    if not programs:
        return out
    table = x if tiles is None else tiles.table
    meta = {"ROWS": rows, "COLS": cols, "WEIGHT": weight, "BLOCK": BLOCK, **section("grouped_gemm_fp8", "quant")}
    place = (table, most, groups, group_rows)
    strides = (x.stride(0) if weight else 0, x.stride(1), x.stride(2))  # a table's rows count from the tensor's start
    if variant != "blockwise":
        row_bits, col_bits = s.view(torch.int32), st.view(torch.int32)
        amax_kernel[(programs,)](x, row_bits, col_bits, *place, K, *strides, WHOLE=variant == "tensorwise", **meta)
    if INTERPRET:  # it writes codes, not fp8 values
        q, qt = q.view(torch.uint8), qt.view(torch.uint8)
    quantize_kernel[(programs,)](x, q, s, qt, st, *place, total, K, *strides, most * BLOCK,
                                 SCALES={"blockwise": "block", "rowwise": "row", "tensorwise": "tensor"}[variant],
                                 E5M2=encoding == "e5m2", FP8_MAX=torch.finfo(dtype).max, TINY=TINY,
                                 INTERPRET=INTERPRET, **meta)  # fmt: skip
    return out


def _scales(
    x: torch.Tensor, variant: str, weight: bool, sizes: tuple[int, int, int, int, int], rows: bool, cols: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    """What the kernels write scales into: amax from 0 up, blockwise scales uninitialized."""
    total, groups, K, most, blocks = sizes
    if variant == "tensorwise" or (variant == "blockwise" and weight):
        shape = (1,) if variant == "tensorwise" else (most, blocks)
        one = torch.zeros(shape, dtype=torch.float32, device=x.device)
        return one, one
    if variant == "rowwise":
        both = torch.zeros(cols * groups * K + rows * total, dtype=torch.float32, device=x.device)  # one launch
        by_column, by_row = both.split((cols * groups * K, rows * total))
        return by_row, by_column.view(groups if cols else 0, K)
    return (
        torch.empty((blocks, total) if rows else (0,), dtype=torch.float32, device=x.device),
        torch.empty((most, K) if cols else (0,), dtype=torch.float32, device=x.device),
    )
