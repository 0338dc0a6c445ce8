"""The GEMMs of a grouped fp8 step: rows times their group's matrix (forward, dgrad), and the variable-K wgrad.

Operands are K-major with their contraction padded to 128 (triton_grouped_quant), so nothing is masked along it. With
blockwise scales a block of 128 is scaled once, whatever BLOCK_K is; the other scales wait for the end. fp32 accumulates.
"""

# Triton's kernels take their tensors, sizes and strides one by one, and its decorators hide the types.
# pyright: reportArgumentType=false, reportGeneralTypeIssues=false

from __future__ import annotations

import torch
import triton
import triton.language as tl

from turbo_kernels.arch import INTERPRET
from turbo_kernels.config import section
from turbo_kernels.gemm_fp8.triton_quant import BLOCK, TINY
from turbo_kernels.grouped_gemm_fp8.triton_grouped_quant import Operand, scale_of
from turbo_kernels.triton_groups import Tiles, cut
from turbo_kernels.triton_tiles import tile_order


@triton.jit
def rows_kernel(a_ptr, b_ptr, c_ptr, sa_ptr, sb_ptr, table_ptr, most, G, T, N, K, stride_bg, stride_bn, stride_sa,
                stride_sbg, stride_sbn, stride_sbk, BLOCKWISE: tl.constexpr, A_MAX: tl.constexpr, B_MAX: tl.constexpr,
                TINY: tl.constexpr, INTERPRET: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
                BLOCK_K: tl.constexpr, GROUP_M: tl.constexpr):  # fmt: skip
    """c[t, n] = Σ_k a[t, k]·b[group of t, n, k] with their scales, and 0 for the rows behind the groups."""
    tile_m, tile_n = tile_order(tl.program_id(0), most, tl.cdiv(N, BLOCK_N), GROUP_M)
    group, first = tl.load(table_ptr + tile_m), tl.load(table_ptr + most + tile_m)
    end = tl.load(table_ptr + 2 * most + tile_m)
    if first < end:
        first_n = tile_n * BLOCK_N
        local_m, local_n, local_k = tl.arange(0, BLOCK_M), tl.arange(0, BLOCK_N), tl.arange(0, BLOCK_K)
        in_m, in_n = local_m < end - first, local_n < N - first_n
        # Rows and columns past the end read the last one and are never stored: no mask in the loop.
        rows_m, rows_n = tl.minimum(local_m, end - 1 - first), tl.minimum(local_n, N - 1 - first_n)
        expert = tl.where(group < G, group, 0).to(tl.int64)  # the tail loads scales, and multiplies 0 by them
        a = a_ptr + first.to(tl.int64) * K + rows_m[:, None] * K + local_k[None, :]
        b = b_ptr + expert * stride_bg + first_n.to(tl.int64) * stride_bn
        b += rows_n[None, :].to(tl.int64) * stride_bn + local_k[:, None]
        sa = sa_ptr + (first + rows_m) * stride_sa
        sb = sb_ptr + expert * stride_sbg
        scalar_b: tl.constexpr = BLOCKWISE and BLOCK_N <= 128
        if scalar_b:  # the tile lies in one block of N
            sb += first_n // 128 * stride_sbn
        elif BLOCKWISE:
            sb += (first_n + rows_n) // 128 * stride_sbn
        else:
            sb += (first_n + rows_n) * stride_sbn
        acc = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
        for _ in range(0, tl.where(group < G, K, 0), 128):
            if BLOCKWISE:
                scale_a, scale_b = tl.load(sa), tl.load(sb)
                product = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
                for k in tl.static_range(0, 128, BLOCK_K):
                    x, y = tl.load(a + k), tl.load(b + k)
                    if INTERPRET:
                        x, y = x.to(tl.float32), y.to(tl.float32)
                    product = tl.dot(x, y, product)
                if scalar_b:
                    acc += product * (scale_a * scale_b)[:, None]
                else:
                    acc += product * (scale_a[:, None] * scale_b[None, :])
                sa += T
                sb += stride_sbk
            else:
                for k in tl.static_range(0, 128, BLOCK_K):
                    x, y = tl.load(a + k), tl.load(b + k)
                    if INTERPRET:
                        x, y = x.to(tl.float32), y.to(tl.float32)
                    acc = tl.dot(x, y, acc)
            a += 128
            b += 128
        if not BLOCKWISE:
            acc *= scale_of(tl.load(sa), A_MAX, TINY)[:, None] * scale_of(tl.load(sb), B_MAX, TINY)[None, :]
            acc = tl.where(group < G, acc, 0.0)
        c = c_ptr + first.to(tl.int64) * N + first_n + local_m[:, None] * N + local_n[None, :]
        tl.store(c, acc.to(c_ptr.dtype.element_ty), mask=in_m[:, None] & in_n[None, :])


@triton.jit
def wgrad_kernel(x_ptr, y_ptr, c_ptr, sx_ptr, sy_ptr, tiles_ptr, M, N, positions_x, positions_y, stride_sx, stride_sxm,
                 stride_sy, stride_syn, BLOCKWISE: tl.constexpr, X_MAX: tl.constexpr, Y_MAX: tl.constexpr,
                 TINY: tl.constexpr, INTERPRET: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
                 BLOCK_K: tl.constexpr, GROUP_M: tl.constexpr):  # fmt: skip
    """c[g, m, n] = Σ over the tiles of group g of x[m, tile]·y[n, tile] with their scales: [tile, m] blockwise, else
    [g, m]. A group without tiles gets exact zeros."""
    tiles_m, tiles_n = tl.cdiv(M, BLOCK_M), tl.cdiv(N, BLOCK_N)
    group, within = tl.program_id(0) // (tiles_m * tiles_n), tl.program_id(0) % (tiles_m * tiles_n)
    tile_m, tile_n = tile_order(within, tiles_m, tiles_n, GROUP_M)
    first, end = tl.load(tiles_ptr + group), tl.load(tiles_ptr + group + 1)
    first_m, first_n = tile_m * BLOCK_M, tile_n * BLOCK_N
    local_m, local_n, local_k = tl.arange(0, BLOCK_M), tl.arange(0, BLOCK_N), tl.arange(0, BLOCK_K)
    rows_m, rows_n = tl.minimum(first_m + local_m, M - 1), tl.minimum(first_n + local_n, N - 1)
    x = x_ptr + first.to(tl.int64) * 128 + rows_m[:, None].to(tl.int64) * positions_x + local_k[None, :]
    y = y_ptr + first.to(tl.int64) * 128 + rows_n[None, :].to(tl.int64) * positions_y + local_k[:, None]
    which = first.to(tl.int64) if BLOCKWISE else group.to(tl.int64)
    sx = sx_ptr + which * stride_sx + rows_m * stride_sxm
    sy = sy_ptr + which * stride_sy + rows_n * stride_syn
    acc = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
    for _ in range(first, end):
        if BLOCKWISE:
            scale_x, scale_y = tl.load(sx), tl.load(sy)
            product = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
            for k in tl.static_range(0, 128, BLOCK_K):
                left, right = tl.load(x + k), tl.load(y + k)
                if INTERPRET:
                    left, right = left.to(tl.float32), right.to(tl.float32)
                product = tl.dot(left, right, product)
            acc += product * (scale_x[:, None] * scale_y[None, :])
            sx += stride_sx
            sy += stride_sy
        else:
            for k in tl.static_range(0, 128, BLOCK_K):
                left, right = tl.load(x + k), tl.load(y + k)
                if INTERPRET:
                    left, right = left.to(tl.float32), right.to(tl.float32)
                acc = tl.dot(left, right, acc)
        x += 128
        y += 128
    if not BLOCKWISE:
        acc *= scale_of(tl.load(sx), X_MAX, TINY)[:, None] * scale_of(tl.load(sy), Y_MAX, TINY)[None, :]
        acc = tl.where(first < end, acc, 0.0)  # another group's NaN mustn't reach an empty one through a tensor's scale
    c = c_ptr + group.to(tl.int64) * M * N + first_m.to(tl.int64) * N + first_n
    c += local_m[:, None] * N + local_n[None, :]
    inside = (local_m < M - first_m)[:, None] & (local_n < N - first_n)[None, :]
    tl.store(c, acc.to(c_ptr.dtype.element_ty), mask=inside)


def largest(operand: Operand) -> float:
    return torch.finfo(operand.q.dtype).max


def matmul(name: str, a: Operand, b: Operand, group_lens: torch.Tensor, tiles: Tiles, N: int, variant: str,
           out_dtype: torch.dtype) -> torch.Tensor:  # fmt: skip
    """a[T, ⌈K⌉] times each row's own expert -> [T, N]. `name`, the configuration's section, says how `b` lies:
    q[G·N, ⌈K⌉] forward; for dgrad the transposed copy q[N, G·⌈K⌉]. `tiles`: the table of 128 rows."""
    (T, K), G = a.q.shape, group_lens.numel()
    out = torch.empty((T, N), dtype=out_dtype, device=a.q.device)
    if not T or not N:
        return out
    config = section("grouped_gemm_fp8", name)
    if config["BLOCK_M"] != BLOCK:
        tiles = cut(group_lens, T, config["BLOCK_M"])
    strides = (N * K, K) if name == "forward" else (K, G * K)
    programs = tiles.most * -(-N // config["BLOCK_N"])
    rows_kernel[(programs,)](a.q, b.q, out, a.scale, b.scale, tiles.table, tiles.most, G, T, N, K, *strides,
                             0 if variant == "tensorwise" else 1, *_weight_scale_strides(name, b, N, K, variant),
                             BLOCKWISE=variant == "blockwise", A_MAX=largest(a), B_MAX=largest(b), TINY=TINY,
                             INTERPRET=INTERPRET, **config)  # fmt: skip
    return out


def _weight_scale_strides(name: str, b: Operand, N: int, K: int, variant: str) -> tuple[int, int, int]:
    """Over (experts, what is N to this GEMM, what is K)."""
    if variant == "blockwise":  # [experts × blocks of the weight's N, blocks of its K]
        columns = b.scale.shape[1]
        return (-(-N // BLOCK) * columns, columns, 1) if name == "forward" else (K // BLOCK * columns, 1, columns)
    return (N, 1, 0) if variant == "rowwise" else (0, 0, 0)


def wgrad(x: Operand, y: Operand, group_lens: torch.Tensor, tiles: Tiles, variant: str,
          out_dtype: torch.dtype) -> torch.Tensor:  # fmt: skip
    """x[M, P] and y[N, P], both the transposed copies -> [G, M, N], each group's product over its own rows."""
    M, N, G = x.q.shape[0], y.q.shape[0], group_lens.numel()
    out = torch.empty((G, M, N), dtype=out_dtype, device=x.q.device)
    if not out.numel():
        return out
    config = section("grouped_gemm_fp8", "wgrad")
    programs = G * -(-M // config["BLOCK_M"]) * -(-N // config["BLOCK_N"])
    scales = (0, 0, 0, 0) if variant == "tensorwise" else (M, 1, N, 1)
    wgrad_kernel[(programs,)](x.q, y.q, out, x.scale, y.scale, tiles.tiles, M, N, x.q.shape[1], y.q.shape[1], *scales,
                              BLOCKWISE=variant == "blockwise", X_MAX=largest(x), Y_MAX=largest(y), TINY=TINY,
                              INTERPRET=INTERPRET, **config)  # fmt: skip
    return out
