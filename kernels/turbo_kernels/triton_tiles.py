"""Pieces shared by the GEMM kernels."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def tile_order(tile, tiles_m, tiles_n, GROUP_M: tl.constexpr):
    """Tile number -> (tile_m, tile_n), walking bands of GROUP_M tile rows so that both operands' panels stay in L2."""
    per_group = GROUP_M * tiles_n
    first_m = tile // per_group * GROUP_M
    rows = min(tiles_m - first_m, GROUP_M)
    within = tile % per_group
    return first_m + within % rows, within // rows
