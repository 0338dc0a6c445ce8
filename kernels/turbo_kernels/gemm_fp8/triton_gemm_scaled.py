"""FP8 GEMMs c[M, N] = a·bᵀ of operands scaled per tensor, per row, or per 32 elements (OCP Microscaling).

Both operands are K-major, so that each kernel serves forward, dgrad and wgrad; E4M3 and E5M2 in any combination.
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
from turbo_kernels.triton_codes import e8m0_value
from turbo_kernels.triton_tiles import tile_order

MX_BLOCK = 32
MX_INSTRUCTION = ("gfx950",)  # where the matrix unit takes E8M0 scales
# Rows that don't begin at multiples of 16 bytes are loaded byte by byte: a large tile of them doesn't fit into registers.
UNALIGNED = {"BLOCK_M": 64, "BLOCK_N": 64, "BLOCK_K": 32, "GROUP_M": 8, "num_warps": 4, "num_stages": 2}


@triton.jit
def scaled_gemm_kernel(a_ptr, b_ptr, c_ptr, sa_ptr, sb_ptr, M, N, K, ROWWISE: tl.constexpr, EVEN_K: tl.constexpr,
                       INTERPRET: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
                       GROUP_M: tl.constexpr):  # fmt: skip
    """Scales per tensor, or per row of a and of b: they leave the sum, so the loop has none."""
    tile_m, tile_n = tile_order(tl.program_id(0), tl.cdiv(M, BLOCK_M), tl.cdiv(N, BLOCK_N), GROUP_M)
    first_m, first_n = tile_m * BLOCK_M, tile_n * BLOCK_N
    local_k = tl.arange(0, BLOCK_K)
    # Rows past the end read the last one and are never stored: no mask in the loop.
    rows_m = tl.minimum(tl.arange(0, BLOCK_M), M - 1 - first_m)
    rows_n = tl.minimum(tl.arange(0, BLOCK_N), N - 1 - first_n)
    a = a_ptr + first_m.to(tl.int64) * K + rows_m[:, None] * K + local_k[None, :]
    b = b_ptr + first_n.to(tl.int64) * K + rows_n[None, :] * K + local_k[:, None]
    acc = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
    for k in range(0, K, BLOCK_K):
        if EVEN_K:
            x, y = tl.load(a), tl.load(b)
        else:
            in_k = local_k < K - k
            x, y = tl.load(a, mask=in_k[None, :], other=0.0), tl.load(b, mask=in_k[:, None], other=0.0)
        if INTERPRET:
            x, y = x.to(tl.float32), y.to(tl.float32)
        acc += tl.dot(x, y)  # added outside: sm_90's own sums of fp8 products keep fewer bits than fp32
        a += BLOCK_K
        b += BLOCK_K
    if ROWWISE:
        acc = acc * tl.load(sa_ptr + first_m + rows_m)[:, None] * tl.load(sb_ptr + first_n + rows_n)[None, :]
    else:
        acc *= tl.load(sa_ptr) * tl.load(sb_ptr)
    offs_m, offs_n = first_m + tl.arange(0, BLOCK_M), first_n + tl.arange(0, BLOCK_N)
    c = c_ptr + offs_m.to(tl.int64)[:, None] * N + offs_n[None, :]
    tl.store(c, acc.to(c_ptr.dtype.element_ty), mask=(offs_m < M)[:, None] & (offs_n < N)[None, :])


@triton.jit
def mx_gemm_kernel(a_ptr, b_ptr, c_ptr, sa_ptr, sb_ptr, M, N, K, A_FORMAT: tl.constexpr, B_FORMAT: tl.constexpr,
                   INSTRUCTION: tl.constexpr, EVEN_K: tl.constexpr, INTERPRET: tl.constexpr, BLOCK_M: tl.constexpr,
                   BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, GROUP_M: tl.constexpr):  # fmt: skip
    """E8M0 scales [row, block of 32], K a multiple of 32. With INSTRUCTION the matrix unit applies them; else a step is
    one block (BLOCK_K = 32), whose product is scaled in fp32."""
    tile_m, tile_n = tile_order(tl.program_id(0), tl.cdiv(M, BLOCK_M), tl.cdiv(N, BLOCK_N), GROUP_M)
    first_m, first_n = tile_m * BLOCK_M, tile_n * BLOCK_N
    local_k, local_block = tl.arange(0, BLOCK_K), tl.arange(0, BLOCK_K // 32)
    rows_m = tl.minimum(tl.arange(0, BLOCK_M), M - 1 - first_m)
    rows_n = tl.minimum(tl.arange(0, BLOCK_N), N - 1 - first_n)
    blocks = K // 32
    a = a_ptr + first_m.to(tl.int64) * K + rows_m[:, None] * K + local_k[None, :]
    b = b_ptr + first_n.to(tl.int64) * K + rows_n[None, :] * K + local_k[:, None]
    sa = sa_ptr + first_m.to(tl.int64) * blocks + rows_m * blocks
    sb = sb_ptr + first_n.to(tl.int64) * blocks + rows_n * blocks
    acc = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
    for k in range(0, K, BLOCK_K):
        if INSTRUCTION:
            scales_a, scales_b = sa[:, None] + local_block[None, :], sb[:, None] + local_block[None, :]
            if EVEN_K:
                x, y, scale_x, scale_y = tl.load(a), tl.load(b), tl.load(scales_a), tl.load(scales_b)
            else:
                in_k, in_block = local_k < K - k, local_block < blocks - k // 32
                x, y = tl.load(a, mask=in_k[None, :], other=0.0), tl.load(b, mask=in_k[:, None], other=0.0)
                scale_x = tl.load(scales_a, mask=in_block[None, :], other=0)
                scale_y = tl.load(scales_b, mask=in_block[None, :], other=0)
            acc = tl.dot_scaled(x, scale_x, A_FORMAT, y, scale_y, B_FORMAT, acc)
        else:
            x, y = tl.load(a), tl.load(b)
            if INTERPRET:
                x, y = x.to(tl.float32), y.to(tl.float32)
            acc += tl.dot(x, y) * e8m0_value(tl.load(sa))[:, None] * e8m0_value(tl.load(sb))[None, :]
        a += BLOCK_K
        b += BLOCK_K
        sa += BLOCK_K // 32
        sb += BLOCK_K // 32
    offs_m, offs_n = first_m + tl.arange(0, BLOCK_M), first_n + tl.arange(0, BLOCK_N)
    c = c_ptr + offs_m.to(tl.int64)[:, None] * N + offs_n[None, :]
    tl.store(c, acc.to(c_ptr.dtype.element_ty), mask=(offs_m < M)[:, None] & (offs_n < N)[None, :])


def tensorwise(name: str, a: Quantized, b: Quantized, out_dtype: torch.dtype) -> torch.Tensor:
    """c[M, N] = a·bᵀ, each with one scale. `name` says which launch of a step it is."""
    return _scaled(a, b, out_dtype, rowwise=False)


def rowwise(name: str, a: Quantized, b: Quantized, out_dtype: torch.dtype) -> torch.Tensor:
    """c[M, N] = a·bᵀ, each with a scale per row."""
    return _scaled(a, b, out_dtype, rowwise=True)


def _scaled(a: Quantized, b: Quantized, out_dtype: torch.dtype, rowwise: bool) -> torch.Tensor:
    (M, K), N = a.q.shape, b.q.shape[0]
    c = torch.empty((M, N), dtype=out_dtype, device=a.q.device)
    config = UNALIGNED if K % 16 else section("gemm_fp8", "scaled")
    tiles = -(-M // config["BLOCK_M"]) * -(-N // config["BLOCK_N"])
    if tiles:
        scaled_gemm_kernel[(tiles,)](a.q, b.q, c, a.scale, b.scale, M, N, K, ROWWISE=rowwise,
                                     EVEN_K=K % config["BLOCK_K"] == 0, INTERPRET=INTERPRET, **config)  # fmt: skip
    return c


def mxfp8(name: str, a: Quantized, b: Quantized, out_dtype: torch.dtype) -> torch.Tensor:
    """c[M, N] = a·bᵀ, each with an E8M0 scale per 32 along K."""
    (M, K), N = a.q.shape, b.q.shape[0]
    c = torch.empty((M, N), dtype=out_dtype, device=a.q.device)
    instruction = detect() in MX_INSTRUCTION
    config = section("gemm_fp8", "mx")
    if not instruction:
        config = {**config, "BLOCK_K": MX_BLOCK}
    tiles = -(-M // config["BLOCK_M"]) * -(-N // config["BLOCK_N"])
    if tiles:
        mx_gemm_kernel[(tiles,)](a.q, b.q, c, a.scale, b.scale, M, N, K, A_FORMAT=_format(a.q), B_FORMAT=_format(b.q),
                                 INSTRUCTION=instruction, EVEN_K=K % config["BLOCK_K"] == 0, INTERPRET=INTERPRET,
                                 **config)  # fmt: skip
    return c


def _format(q: torch.Tensor) -> str:
    return "e5m2" if q.dtype in (torch.float8_e5m2, torch.float8_e5m2fnuz) else "e4m3"
