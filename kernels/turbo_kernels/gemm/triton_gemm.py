"""One strided GEMM for forward and both gradients: c[m, n] = Σ_k a[m, k]·b[k, n] + bias[n], any strides, in fp32."""

# Triton's kernels take their tensors, sizes and strides one by one, and its decorators hide the types.
# pyright: reportArgumentType=false, reportGeneralTypeIssues=false

from __future__ import annotations

import torch
import triton
import triton.language as tl

from turbo_kernels.arch import INTERPRET
from turbo_kernels.config import section
from turbo_kernels.triton_tiles import tile_order


@triton.jit
def gemm_kernel(a_ptr, b_ptr, c_ptr, bias_ptr, M, N, K, stride_am, stride_ak, stride_bk, stride_bn, stride_cm,
                stride_cn, EVEN_MN: tl.constexpr, EVEN_K: tl.constexpr, UPCAST: tl.constexpr,
                BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, GROUP_M: tl.constexpr):  # fmt: skip
    tile_m, tile_n = tile_order(tl.program_id(0), tl.cdiv(M, BLOCK_M), tl.cdiv(N, BLOCK_N), GROUP_M)
    first_m, first_n = tile_m * BLOCK_M, tile_n * BLOCK_N
    local_m, local_n, local_k = tl.arange(0, BLOCK_M), tl.arange(0, BLOCK_N), tl.arange(0, BLOCK_K)
    a = a_ptr + first_m.to(tl.int64) * stride_am + (local_m[:, None] * stride_am + local_k[None, :] * stride_ak)
    b = b_ptr + first_n.to(tl.int64) * stride_bn + (local_n[None, :] * stride_bn + local_k[:, None] * stride_bk)
    in_m, in_n = first_m + local_m < M, first_n + local_n < N
    acc = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
    for k in range(0, K, BLOCK_K):
        if EVEN_MN and EVEN_K:
            x, y = tl.load(a), tl.load(b)
        elif EVEN_K:
            x, y = tl.load(a, mask=in_m[:, None], other=0.0), tl.load(b, mask=in_n[None, :], other=0.0)
        else:
            in_k = local_k < K - k
            x = tl.load(a, mask=in_m[:, None] & in_k[None, :], other=0.0)
            y = tl.load(b, mask=in_n[None, :] & in_k[:, None], other=0.0)
        if UPCAST:  # the interpreter's dot is wrong on bf16
            x, y = x.to(tl.float32), y.to(tl.float32)
        acc = tl.dot(x, y, acc, input_precision="ieee")
        a += BLOCK_K * stride_ak
        b += BLOCK_K * stride_bk
    if bias_ptr is not None:
        acc += tl.load(bias_ptr + first_n + local_n, mask=in_n, other=0.0).to(tl.float32)[None, :]
    c = c_ptr + first_m.to(tl.int64) * stride_cm + first_n.to(tl.int64) * stride_cn
    c += local_m[:, None] * stride_cm + local_n[None, :] * stride_cn
    tl.store(c, acc.to(c_ptr.dtype.element_ty), mask=in_m[:, None] & in_n[None, :])


def gemm_into(name: str, a: torch.Tensor, b: torch.Tensor, c: torch.Tensor,
              bias: torch.Tensor | None = None) -> torch.Tensor:  # fmt: skip
    """Writes a[M, K]·b[K, N] + bias[N] into c[M, N] and returns c.

    a, b and c are views of any strides, bias is contiguous; `name`: the configuration's section.
    """
    (M, K), N = a.shape, b.shape[1]
    config = section("gemm", name)
    block_m, block_n = config["BLOCK_M"], config["BLOCK_N"]
    tiles = -(-M // block_m) * -(-N // block_n)
    if tiles:
        gemm_kernel[(tiles,)](a, b, c, bias, M, N, K, *a.stride(), *b.stride(), *c.stride(),
                              EVEN_MN=M % block_m == 0 and N % block_n == 0, EVEN_K=K % config["BLOCK_K"] == 0,
                              UPCAST=INTERPRET, **config)  # fmt: skip
    return c
