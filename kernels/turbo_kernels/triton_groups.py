"""Rows sorted by group, cut into tiles on the device: which group, and which rows, a tile of a grouped GEMM has.

Tokens per group are a runtime tensor that the host never reads, so a launch is sized by an upper bound: cutting G groups
and the rows behind them into tiles of B rows takes at most ⌊(T + (G + 1)·(B − 1)) / B⌋ tiles, however the rows are
shared out. One small launch writes the table of tiles; a GEMM's program then finds its own with three loads.
"""

# Triton's kernels take their tensors, sizes and strides one by one, and its decorators hide the types.
# pyright: reportArgumentType=false, reportGeneralTypeIssues=false

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl


class Tiles(NamedTuple):
    """What `cut` returns, int32 on the groups' device.

    `table[3, most]`: each tile's group, its first row and its group's end; no tile holds rows of two groups. Group G is
    the tail, the rows behind the last group; the tiles that aren't needed follow as empty ones of it (first ≥ end).
    `rows[G + 1]` and `tiles[G + 1]`: where each group's rows and tiles begin; the last entry is the tail's.
    """

    table: torch.Tensor
    rows: torch.Tensor
    tiles: torch.Tensor

    @property
    def most(self) -> int:
        return self.table.shape[1]


@triton.jit
def cut_kernel(lens_ptr, table_ptr, rows_ptr, tiles_ptr, T, G, most, TILE_ROWS: tl.constexpr, BLOCK_G: tl.constexpr,
               CHUNK: tl.constexpr):  # fmt: skip
    """One program a group, the last for the tail. Lengths under 0 count as 0, rows over T as none: a wrong tensor must
    not make a GEMM read or write elsewhere, and the host can't look at it."""
    group = tl.program_id(0)
    i = tl.arange(0, BLOCK_G)
    lens = tl.load(lens_ptr + i, mask=i < G, other=0)
    lens = tl.minimum(tl.maximum(lens, 0), T)
    ends = tl.cumsum(lens, 0)
    starts = tl.minimum(ends - lens, T).to(tl.int32)
    ends = tl.minimum(ends, T).to(tl.int32)
    before = i < group
    first_row = tl.max(tl.where(before, ends, 0), 0)
    first_tile = tl.sum(tl.where(before, tl.cdiv(ends - starts, TILE_ROWS), 0), 0)
    tl.store(rows_ptr + group, first_row)
    tl.store(tiles_ptr + group, first_tile)
    tail = group >= G
    end = tl.where(tail, T, tl.max(tl.where(i == group, ends, 0), 0))
    count = tl.where(tail, most - first_tile, tl.cdiv(end - first_row, TILE_ROWS))
    local = tl.arange(0, CHUNK)
    for start in range(0, count, CHUNK):
        tile = start + local
        at = table_ptr + first_tile + tile
        inside = tile < count
        tl.store(at, tl.zeros((CHUNK,), tl.int32) + group, mask=inside)
        tl.store(at + most, first_row + tile * TILE_ROWS, mask=inside)
        tl.store(at + 2 * most, tl.zeros((CHUNK,), tl.int32) + end, mask=inside)


def most_tiles(rows: int, groups: int, tile_rows: int) -> int:
    """The tiles that `rows` rows in `groups` groups and a tail take at most."""
    return (rows + (groups + 1) * (tile_rows - 1)) // tile_rows


def cut(group_lens: torch.Tensor, rows: int, tile_rows: int) -> Tiles:
    """The tiles of `rows` rows, sorted by group, that `group_lens[G]` (int64) shares out; no host sync."""
    groups = group_lens.numel()
    most = most_tiles(rows, groups, tile_rows)
    table = torch.empty((3, most), dtype=torch.int32, device=group_lens.device)
    bounds = torch.empty((2, groups + 1), dtype=torch.int32, device=group_lens.device)
    cut_kernel[(groups + 1,)](group_lens.contiguous(), table, bounds[0], bounds[1], rows, groups, most,
                              TILE_ROWS=tile_rows, BLOCK_G=triton.next_power_of_2(max(groups, 1)), CHUNK=256)  # fmt: skip
    return Tiles(table, bounds[0], bounds[1])
