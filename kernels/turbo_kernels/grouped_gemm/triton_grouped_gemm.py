"""The three GEMMs of a grouped step: rows times their group's matrix (forward, dgrad), and the variable-K wgrad.

Any strides, accumulated in fp32. Groups' sizes are read on the device alone (triton_groups).
"""

# Triton's kernels take their tensors, sizes and strides one by one, and its decorators hide the types.
# pyright: reportArgumentType=false, reportGeneralTypeIssues=false

from __future__ import annotations

import torch
import triton
import triton.language as tl

from turbo_kernels.arch import INTERPRET
from turbo_kernels.config import section
from turbo_kernels.triton_groups import cut
from turbo_kernels.triton_tiles import tile_order


@triton.jit
def rows_kernel(a_ptr, b_ptr, c_ptr, table_ptr, most, G, N, K, stride_at, stride_ak, stride_bg, stride_bk, stride_bn,
                stride_ct, stride_cn, EVEN_N: tl.constexpr, EVEN_K: tl.constexpr, UPCAST: tl.constexpr,
                BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
                GROUP_M: tl.constexpr):  # fmt: skip
    """c[t, n] = Σ_k a[t, k]·b[group of t, k, n], and 0 for the rows behind the groups."""
    tile_m, tile_n = tile_order(tl.program_id(0), most, tl.cdiv(N, BLOCK_N), GROUP_M)
    group, first = tl.load(table_ptr + tile_m), tl.load(table_ptr + most + tile_m)
    end = tl.load(table_ptr + 2 * most + tile_m)
    if first < end:
        first_n = tile_n * BLOCK_N
        local_m, local_n, local_k = tl.arange(0, BLOCK_M), tl.arange(0, BLOCK_N), tl.arange(0, BLOCK_K)
        in_m, in_n = local_m < end - first, local_n < N - first_n
        # Rows past the group's end read its last one and are never stored: no mask on them in the loop.
        rows = tl.minimum(local_m, end - 1 - first)
        a = a_ptr + first.to(tl.int64) * stride_at + (rows[:, None] * stride_at + local_k[None, :] * stride_ak)
        b = b_ptr + group.to(tl.int64) * stride_bg + first_n.to(tl.int64) * stride_bn
        b += local_n[None, :] * stride_bn + local_k[:, None] * stride_bk
        acc = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
        for k in range(0, tl.where(group < G, K, 0), BLOCK_K):
            if EVEN_K:
                x = tl.load(a)
                y = tl.load(b) if EVEN_N else tl.load(b, mask=in_n[None, :], other=0.0)
            else:
                in_k = local_k < K - k
                x = tl.load(a, mask=in_k[None, :], other=0.0)
                y = tl.load(b, mask=in_n[None, :] & in_k[:, None], other=0.0)
            if UPCAST:  # the interpreter's dot is wrong on bf16
                x, y = x.to(tl.float32), y.to(tl.float32)
            acc = tl.dot(x, y, acc, input_precision="ieee")
            a += BLOCK_K * stride_ak
            b += BLOCK_K * stride_bk
        c = c_ptr + first.to(tl.int64) * stride_ct + first_n.to(tl.int64) * stride_cn
        c += local_m[:, None] * stride_ct + local_n[None, :] * stride_cn
        tl.store(c, acc.to(c_ptr.dtype.element_ty), mask=in_m[:, None] & in_n[None, :])


@triton.jit
def wgrad_kernel(x_ptr, y_ptr, c_ptr, rows_ptr, M, N, stride_xt, stride_xm, stride_yt, stride_yn, stride_cg, stride_cm,
                 stride_cn, UPCAST: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
                 GROUP_M: tl.constexpr):  # fmt: skip
    """c[g, m, n] = Σ over the rows t of group g of x[t, m]·y[t, n]; BLOCK_K rows a step."""
    tiles_m, tiles_n = tl.cdiv(M, BLOCK_M), tl.cdiv(N, BLOCK_N)
    group, tile = tl.program_id(0) // (tiles_m * tiles_n), tl.program_id(0) % (tiles_m * tiles_n)
    tile_m, tile_n = tile_order(tile, tiles_m, tiles_n, GROUP_M)
    first, end = tl.load(rows_ptr + group), tl.load(rows_ptr + group + 1)
    first_m, first_n = tile_m * BLOCK_M, tile_n * BLOCK_N
    local_m, local_n, local_t = tl.arange(0, BLOCK_M), tl.arange(0, BLOCK_N), tl.arange(0, BLOCK_K)
    in_m, in_n = local_m < M - first_m, local_n < N - first_n
    x = x_ptr + first.to(tl.int64) * stride_xt + first_m.to(tl.int64) * stride_xm
    y = y_ptr + first.to(tl.int64) * stride_yt + first_n.to(tl.int64) * stride_yn
    x += local_m[:, None] * stride_xm + local_t[None, :] * stride_xt
    y += local_n[None, :] * stride_yn + local_t[:, None] * stride_yt
    acc = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
    for t in range(first, end, BLOCK_K):
        in_t = local_t < end - t
        left = tl.load(x, mask=in_m[:, None] & in_t[None, :], other=0.0)
        right = tl.load(y, mask=in_n[None, :] & in_t[:, None], other=0.0)
        if UPCAST:
            left, right = left.to(tl.float32), right.to(tl.float32)
        acc = tl.dot(left, right, acc, input_precision="ieee")
        x += BLOCK_K * stride_xt
        y += BLOCK_K * stride_yt
    c = c_ptr + group.to(tl.int64) * stride_cg + first_m.to(tl.int64) * stride_cm + first_n.to(tl.int64) * stride_cn
    c += local_m[:, None] * stride_cm + local_n[None, :] * stride_cn
    tl.store(c, acc.to(c_ptr.dtype.element_ty), mask=in_m[:, None] & in_n[None, :])


def matmul(
    name: str, a: torch.Tensor, b: torch.Tensor, group_lens: torch.Tensor, out_dtype: torch.dtype
) -> torch.Tensor:
    """a[T, K] times each row's own b[G, K, N] (any strides) -> [T, N]; `name`: the configuration's section."""
    (T, K), (G, _, N) = a.shape, b.shape
    out = torch.empty((T, N), dtype=out_dtype, device=a.device)
    if not T or not N:
        return out
    config = section("grouped_gemm", name)
    tiles = cut(group_lens, T, config["BLOCK_M"])
    programs = tiles.most * -(-N // config["BLOCK_N"])
    rows_kernel[(programs,)](a, b, out, tiles.table, tiles.most, G, N, K, *a.stride(), *b.stride(), *out.stride(),
                             EVEN_N=N % config["BLOCK_N"] == 0, EVEN_K=K % config["BLOCK_K"] == 0, UPCAST=INTERPRET,
                             **config)  # fmt: skip
    return out


def wgrad(x: torch.Tensor, y: torch.Tensor, group_lens: torch.Tensor, out_dtype: torch.dtype) -> torch.Tensor:
    """x[T, M] and y[T, N] -> [G, M, N], each group's xᵀ·y over its own rows; exact zeros for an empty one."""
    (T, M), N, G = x.shape, y.shape[1], group_lens.numel()
    out = torch.empty((G, M, N), dtype=out_dtype, device=x.device)
    if not out.numel():
        return out
    config = section("grouped_gemm", "wgrad")
    tiles = cut(group_lens, T, config["BLOCK_K"])
    programs = G * -(-M // config["BLOCK_M"]) * -(-N // config["BLOCK_N"])
    wgrad_kernel[(programs,)](x, y, out, tiles.rows, M, N, *x.stride(), *y.stride(), *out.stride(), UPCAST=INTERPRET,
                              **config)  # fmt: skip
    return out
