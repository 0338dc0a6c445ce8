"""mxfp4 GEMM: c[M, N] = Σ_k a[m, k]·b[n, k], both E2M1 codes packed along K with an E8M0 scale per 32.

One kernel serves forward, dgrad and wgrad: each operand comes quantized along the contracted dimension. Where the matrix
units take scaled FP4 (gfx950), they get codes and scales as they lie. Elsewhere a tile is decoded to bf16, which holds
E2M1·2^k exactly, and multiplied there: the low nibbles of both operands, then the high ones, since the order of a sum's
terms is free and no interleaving is needed. Accumulation is fp32.
"""

# Triton's kernels take their tensors, sizes and strides one by one, and its decorators hide the types.
# pyright: reportArgumentType=false, reportGeneralTypeIssues=false

from __future__ import annotations

import torch
import triton
import triton.language as tl

from turbo_kernels.arch import INTERPRET, detect
from turbo_kernels.config import section
from turbo_kernels.gemm_fp8.triton_quant import Quantized
from turbo_kernels.triton_codes import e2m1_value, e8m0_value
from turbo_kernels.triton_tiles import tile_order

SCALED_FP4 = ("gfx950",)  # architectures whose matrix units multiply E2M1 with E8M0 scales


@triton.jit
def decode(codes, scale, dtype: tl.constexpr):
    """[R, C] packed codes and their [R, C / 16] scales -> the values of the low nibbles and of the high ones, [R, C]."""
    blocks: tl.constexpr = codes.shape[1] // 16
    factor = tl.broadcast_to(e8m0_value(scale)[:, :, None], (codes.shape[0], blocks, 16))
    factor = tl.reshape(factor, codes.shape)
    return (e2m1_value(codes) * factor).to(dtype), (e2m1_value(codes >> 4) * factor).to(dtype)


@triton.jit
def gemm_kernel(a_ptr, b_ptr, c_ptr, sa_ptr, sb_ptr, M, N, K, EVEN_K: tl.constexpr, SCALED: tl.constexpr,
                INTERPRET: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
                GROUP_M: tl.constexpr):  # fmt: skip
    """K is a multiple of 32; SCALED: through the scaled FP4 instruction."""
    tile_m, tile_n = tile_order(tl.program_id(0), tl.cdiv(M, BLOCK_M), tl.cdiv(N, BLOCK_N), GROUP_M)
    first_m, first_n = tile_m * BLOCK_M, tile_n * BLOCK_N
    # Rows past the end read the last one and are never stored: no mask for them in the loop.
    rows_m = tl.minimum(first_m + tl.arange(0, BLOCK_M), M - 1).to(tl.int64)[:, None]
    rows_n = tl.minimum(first_n + tl.arange(0, BLOCK_N), N - 1).to(tl.int64)[:, None]
    byte, block = tl.arange(0, BLOCK_K // 2)[None, :], tl.arange(0, BLOCK_K // 32)[None, :]
    bytes_k, blocks_k = K // 2, K // 32
    a, b = a_ptr + rows_m * bytes_k + byte, b_ptr + rows_n * bytes_k + byte
    sa, sb = sa_ptr + rows_m * blocks_k + block, sb_ptr + rows_n * blocks_k + block
    acc = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
    for k in range(0, K, BLOCK_K):
        if EVEN_K:
            x, y, scale_x, scale_y = tl.load(a), tl.load(b), tl.load(sa), tl.load(sb)
        else:  # a code of 0 is worth 0 under any finite scale
            in_k, in_blocks = byte < (K - k) // 2, block < (K - k) // 32
            x, y = tl.load(a, mask=in_k, other=0), tl.load(b, mask=in_k, other=0)
            scale_x, scale_y = tl.load(sa, mask=in_blocks, other=0), tl.load(sb, mask=in_blocks, other=0)
        if SCALED:
            acc = tl.dot_scaled(x, scale_x, "e2m1", y.T, scale_y, "e2m1", acc)
        else:
            dtype: tl.constexpr = tl.float32 if INTERPRET else tl.bfloat16  # the interpreter's dot is wrong on bf16
            x_low, x_high = decode(x, scale_x, dtype)
            y_low, y_high = decode(y, scale_y, dtype)
            acc = tl.dot(x_low, y_low.T, acc)
            acc = tl.dot(x_high, y_high.T, acc)
        a += BLOCK_K // 2
        b += BLOCK_K // 2
        sa += BLOCK_K // 32
        sb += BLOCK_K // 32
    offs_m, offs_n = first_m + tl.arange(0, BLOCK_M), first_n + tl.arange(0, BLOCK_N)
    c = c_ptr + offs_m.to(tl.int64)[:, None] * N + offs_n[None, :]
    tl.store(c, acc.to(c_ptr.dtype.element_ty), mask=(offs_m < M)[:, None] & (offs_n < N)[None, :])


def matmul(name: str, a: Quantized, b: Quantized, out_dtype: torch.dtype) -> torch.Tensor:
    """c[M, N] = a·bᵀ of packed a[M, K] and b[N, K]; `name` is the configuration's section."""
    M, N, K = a.q.shape[0], b.q.shape[0], 2 * a.q.shape[1]
    c = torch.empty((M, N), dtype=out_dtype, device=a.q.device)
    config = section("gemm_fp4", name)
    tiles = -(-M // config["BLOCK_M"]) * -(-N // config["BLOCK_N"])
    if tiles:
        gemm_kernel[(tiles,)](a.q, b.q, c, a.scale, b.scale, M, N, K, EVEN_K=K % config["BLOCK_K"] == 0,
                              SCALED=detect() in SCALED_FP4, INTERPRET=INTERPRET, **config)  # fmt: skip
    return c
