"""Blockwise-scaled FP8 GEMM: c[M, N] = Σ over blocks of 128 of K of (a_blk · b_blkᵀ) · scale_a · scale_b.

Both operands are K-major with K a multiple of 128 (triton_quant pads with zeros), so one kernel serves forward, dgrad
and wgrad. `a` has a scale per row and block, scale_a[block, row]; `b` either one per 128×128 (B_BLOCKED; two strides,
because dgrad reads the weight's scales transposed) or per row as `a`. A block's product is scaled once, whatever
BLOCK_K is, and accumulates in fp32.
"""

# Triton's kernels take their tensors, sizes and strides one by one, and its decorators hide the types.
# pyright: reportArgumentType=false, reportGeneralTypeIssues=false

from __future__ import annotations

import torch
import triton
import triton.language as tl

from turbo_kernels.arch import INTERPRET, processors
from turbo_kernels.config import section
from turbo_kernels.gemm_fp8.triton_quant import Quantized
from turbo_kernels.triton_tiles import tile_order


@triton.jit
def gemm_kernel(a_ptr, b_ptr, c_ptr, sa_ptr, sb_ptr, M, N, K, sb_n, sb_k, B_BLOCKED: tl.constexpr,
                INTERPRET: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
                GROUP_M: tl.constexpr):  # fmt: skip
    tile_m, tile_n = tile_order(tl.program_id(0), tl.cdiv(M, BLOCK_M), tl.cdiv(N, BLOCK_N), GROUP_M)
    first_m, first_n = tile_m * BLOCK_M, tile_n * BLOCK_N
    local_k = tl.arange(0, BLOCK_K)
    # Rows past the end read the last one and are never stored: no mask in the loop.
    rows_m = tl.minimum(tl.arange(0, BLOCK_M), M - 1 - first_m)
    rows_n = tl.minimum(tl.arange(0, BLOCK_N), N - 1 - first_n)
    a = a_ptr + first_m.to(tl.int64) * K + rows_m[:, None] * K + local_k[None, :]
    b = b_ptr + first_n.to(tl.int64) * K + rows_n[None, :] * K + local_k[:, None]
    sa = sa_ptr + first_m + rows_m
    scalar_b: tl.constexpr = B_BLOCKED and BLOCK_N <= 128
    if scalar_b:  # the tile lies in one block of N
        sb = sb_ptr + first_n // 128 * sb_n
    elif B_BLOCKED:
        sb = sb_ptr + (first_n + rows_n) // 128 * sb_n
    else:
        sb = sb_ptr + first_n + rows_n
    acc = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
    for _ in range(0, K, 128):
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
        a += 128
        b += 128
        sa += M
        sb += sb_k
    offs_m, offs_n = first_m + tl.arange(0, BLOCK_M), first_n + tl.arange(0, BLOCK_N)
    c = c_ptr + offs_m.to(tl.int64)[:, None] * N + offs_n[None, :]
    tl.store(c, acc.to(c_ptr.dtype.element_ty), mask=(offs_m < M)[:, None] & (offs_n < N)[None, :])


@triton.jit
def gemm_tma_kernel(a_ptr, b_ptr, c_ptr, sa_ptr, sb_ptr, M, N, K, sb_n, sb_k, B_BLOCKED: tl.constexpr,
                    INTERPRET: tl.constexpr, STORE_TMA: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
                    BLOCK_K: tl.constexpr, GROUP_M: tl.constexpr):  # fmt: skip
    """The same, persistent and through tensor descriptors: a program walks tiles pid, pid + programs, …"""
    a_desc = tl.make_tensor_descriptor(a_ptr, [M, K], [K, 1], [BLOCK_M, BLOCK_K])
    b_desc = tl.make_tensor_descriptor(b_ptr, [N, K], [K, 1], [BLOCK_N, BLOCK_K])
    if STORE_TMA:
        c_desc = tl.make_tensor_descriptor(c_ptr, [M, N], [N, 1], [BLOCK_M, BLOCK_N])
    scalar_b: tl.constexpr = B_BLOCKED and BLOCK_N <= 128
    tiles_m, tiles_n = tl.cdiv(M, BLOCK_M), tl.cdiv(N, BLOCK_N)
    # Never warp_specialize here: with 4 warps Triton 3.6 then computes half of the rows wrong, silently.
    for tile in tl.range(tl.program_id(0), tiles_m * tiles_n, tl.num_programs(0)):
        tile_m, tile_n = tile_order(tile, tiles_m, tiles_n, GROUP_M)
        first_m, first_n = tile_m * BLOCK_M, tile_n * BLOCK_N
        rows_n = tl.minimum(first_n + tl.arange(0, BLOCK_N), N - 1)
        sa = sa_ptr + tl.minimum(first_m + tl.arange(0, BLOCK_M), M - 1)
        if scalar_b:
            sb = sb_ptr + first_n // 128 * sb_n
        elif B_BLOCKED:
            sb = sb_ptr + rows_n // 128 * sb_n
        else:
            sb = sb_ptr + rows_n
        acc = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
        for block in range(0, K, 128):
            scale_a, scale_b = tl.load(sa), tl.load(sb)
            product = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
            for k in tl.static_range(0, 128, BLOCK_K):
                x, y = a_desc.load([first_m, block + k]), b_desc.load([first_n, block + k])
                if INTERPRET:
                    x, y = x.to(tl.float32), y.to(tl.float32)
                product = tl.dot(x, y.T, product)
            if scalar_b:
                acc += product * (scale_a * scale_b)[:, None]
            else:
                acc += product * (scale_a[:, None] * scale_b[None, :])
            sa += M
            sb += sb_k
        out = acc.to(c_ptr.dtype.element_ty)
        if STORE_TMA:
            c_desc.store([first_m, first_n], out)
        else:  # rows of c that aren't a multiple of 16 bytes have no descriptor
            offs_m, offs_n = first_m + tl.arange(0, BLOCK_M), first_n + tl.arange(0, BLOCK_N)
            c = c_ptr + offs_m.to(tl.int64)[:, None] * N + offs_n[None, :]
            tl.store(c, out, mask=(offs_m < M)[:, None] & (offs_n < N)[None, :])


def _workspace(size: int, alignment: int, stream: int | None) -> torch.Tensor:
    return torch.empty(size, dtype=torch.int8, device="cuda")


def gemm(
    name: str, a: Quantized, b: Quantized, out_dtype: torch.dtype, scale_strides: tuple[int, int] | None = None
) -> torch.Tensor:
    """c[M, N] = a·bᵀ for `a` scaled per 1×128 and `b` likewise, or per 128×128 where `scale_strides` gives its scales'
    strides over (blocks of N, blocks of K). `name` is the configuration's section: forward, dgrad or wgrad."""
    (M, K), N = a.q.shape, b.q.shape[0]
    c = torch.empty((M, N), dtype=out_dtype, device=a.q.device)
    if not M or not N:
        return c
    config = section("gemm_fp8", name)
    meta = {**config}
    persistent = meta.pop("PERSISTENT_TMA")
    tiles = -(-M // config["BLOCK_M"]) * -(-N // config["BLOCK_N"])
    blocked = scale_strides is not None
    args = (a.q, b.q, c, a.scale, b.scale, M, N, K, *(scale_strides or (1, N)))
    if persistent:
        if not INTERPRET:
            triton.set_allocator(_workspace)  # a context variable: it must be set in the thread that launches
        aligned = N * c.element_size() % 16 == 0
        gemm_tma_kernel[(min(tiles, processors()),)](
            *args, B_BLOCKED=blocked, INTERPRET=INTERPRET, STORE_TMA=aligned, **meta
        )
    else:
        gemm_kernel[(tiles,)](*args, B_BLOCKED=blocked, INTERPRET=INTERPRET, **meta)
    return c
