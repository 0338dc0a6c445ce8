"""Blockwise FP8 quantization: one launch reads a tensor once and writes it in both K-major layouts.

A program takes a 128×128 tile of x[M, K]. `rows` is q[M, ⌈K⌉] scaled per 1×128 along K; `cols` is qᵀ[K, ⌈M⌉] scaled
per 1×128 along M (⌈·⌉: rounded up to 128, the padding zero, so that no GEMM masks its contraction). A weight (WHOLE)
has one scale per 128×128 and so the same codes in both. Scales are stored with the block index first,
`scale[block, row]`: a GEMM loads those of neighbouring rows in one transaction.
"""

# Triton's kernels take their tensors, sizes and strides one by one, and its decorators hide the types.
# pyright: reportArgumentType=false, reportGeneralTypeIssues=false

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl

from turbo_kernels.arch import INTERPRET, fp8_dtype, fp8_max
from turbo_kernels.config import section
from turbo_kernels.triton_codes import float_code

BLOCK = 128
TINY = 1e-12  # the least amax: an all-zero block gets a finite scale


class Quantized(NamedTuple):
    """`q` [rows, padded K] in fp8; `scale` fp32 [K blocks, rows], for a weight [row blocks, K blocks]; x ≈ q·scale."""

    q: torch.Tensor
    scale: torch.Tensor


@triton.jit
def e4m3fn_code(x):
    """fp32 -> the E4M3 (OCP) code, round to nearest even, saturating at ±448, NaN to NaN: in integer arithmetic,
    because the interpreter's own conversion rounds wrongly."""
    bits = x.to(tl.uint32, bitcast=True)
    magnitude = bits & 0x7FFFFFFF
    # Normal: drop 20 mantissa bits with ties to even, then move the exponent's bias from 127 to 7.
    normal = ((magnitude + 0x7FFFF + ((magnitude >> 20) & 1)) >> 20) - 960
    # Subnormal: adding 2^14 leaves an ulp of 2^-9, the subnormal step, and the hardware's own rounding.
    absolute = magnitude.to(tl.float32, bitcast=True)
    subnormal = (absolute + 16384.0).to(tl.uint32, bitcast=True) - 0x46800000
    code = tl.where(magnitude < 0x3C800000, subnormal, normal)  # 2^-6, the least normal
    code = tl.where(magnitude >= 0x43E00000, 0x7E, code)  # 448 and above
    code = tl.where(magnitude > 0x7F800000, 0x7F, code)
    return (code | (bits >> 24 & 0x80)).to(tl.uint8)


@triton.jit
def _scale(x, axis: tl.constexpr, FP8_MAX: tl.constexpr, TINY: tl.constexpr, INTERPRET: tl.constexpr):
    """(scale, 1/scale) along an axis, or of the whole tile for None."""
    amax = tl.max(tl.abs(x), axis)
    if INTERPRET:  # it reads an FP8 NaN as a number: let the scale carry it instead
        amax += tl.sum(x * 0.0, axis)
    amax = tl.where(amax < TINY, TINY, amax)  # not `maximum`, which may drop a NaN
    return tl.div_rn(amax, FP8_MAX), tl.div_rn(FP8_MAX, amax)


@triton.jit
def _store(ptr, x, mask, E5M2: tl.constexpr, INTERPRET: tl.constexpr):
    if INTERPRET and E5M2:
        tl.store(ptr, float_code(x, 2, 15, 0x7B, 0x7F, 24), mask=mask)
    elif INTERPRET:
        tl.store(ptr, e4m3fn_code(x), mask=mask)
    else:
        tl.store(ptr, x.to(ptr.dtype.element_ty), mask=mask)


@triton.jit
def quantize_kernel(x_ptr, q_ptr, s_ptr, qt_ptr, st_ptr, M, K, stride_m, stride_k,
                    ROWS: tl.constexpr, COLS: tl.constexpr, WHOLE: tl.constexpr, E5M2: tl.constexpr,
                    FP8_MAX: tl.constexpr, TINY: tl.constexpr, BLOCK: tl.constexpr,
                    INTERPRET: tl.constexpr):  # fmt: skip
    tiles_k = tl.cdiv(K, BLOCK)
    tile_m, tile_k = tl.program_id(0) // tiles_k, tl.program_id(0) % tiles_k
    local = tl.arange(0, BLOCK)
    m, k = tile_m * BLOCK + local, tile_k * BLOCK + local
    x_ptr += (tile_m * BLOCK).to(tl.int64) * stride_m + (tile_k * BLOCK).to(tl.int64) * stride_k
    inside = (m < M)[:, None] & (k < K)[None, :]
    x = tl.load(x_ptr + local[:, None] * stride_m + local[None, :] * stride_k, mask=inside, other=0.0).to(tl.float32)
    if WHOLE:
        scale, inverse = _scale(x, None, FP8_MAX, TINY, INTERPRET)
        tl.store(s_ptr + tl.program_id(0), scale)
    if ROWS:
        padded = tiles_k * BLOCK
        if WHOLE:
            q = x * inverse
        else:
            scale, inverse = _scale(x, 1, FP8_MAX, TINY, INTERPRET)
            tl.store(s_ptr + tile_k * M + m, scale, mask=m < M)
            q = x * inverse[:, None]
        q_ptr += (tile_m * BLOCK).to(tl.int64) * padded + tile_k * BLOCK
        _store(q_ptr + local[:, None] * padded + local[None, :], q, (m < M)[:, None], E5M2, INTERPRET)
    if COLS:
        padded = tl.cdiv(M, BLOCK) * BLOCK
        if WHOLE:
            q = x * inverse
        else:
            scale, inverse = _scale(x, 0, FP8_MAX, TINY, INTERPRET)
            tl.store(st_ptr + tile_m * K + k, scale, mask=k < K)
            q = x * inverse[None, :]
        qt_ptr += (tile_k * BLOCK).to(tl.int64) * padded + tile_m * BLOCK
        _store(qt_ptr + local[:, None] * padded + local[None, :], tl.trans(q), (k < K)[:, None], E5M2, INTERPRET)


def padded(n: int) -> int:
    return (n + BLOCK - 1) // BLOCK * BLOCK


def quantize(x: torch.Tensor, rows: bool = True, cols: bool = True,
             encoding: str = "e4m3") -> tuple[Quantized, Quantized]:  # fmt: skip
    """x[M, K] -> (along K, along M): q[M, ⌈K⌉] with scale[⌈K⌉/128, M] and qᵀ[K, ⌈M⌉] with scale[⌈M⌉/128, K].

    One scale per 1×128; codes in `encoding` (e4m3, e5m2). What isn't asked for is an empty placeholder.
    """
    M, K = x.shape
    q, s = _outputs(x, M, K, encoding) if rows else (x, x)
    qt, st = _outputs(x, K, M, encoding) if cols else (x, x)
    _launch(x, q, s, qt, st, rows, cols, False, encoding)
    return Quantized(q, s), Quantized(qt, st)


def quantize_weight(x: torch.Tensor, cols: bool = True, encoding: str = "e4m3") -> tuple[Quantized, Quantized]:
    """x[N, K] -> q[N, ⌈K⌉] and qᵀ[K, ⌈N⌉], both with the one scale[⌈N⌉/128, ⌈K⌉/128] per 128×128."""
    N, K = x.shape
    q = torch.empty((N, padded(K)), dtype=fp8_dtype(encoding), device=x.device)
    s = torch.empty((padded(N) // BLOCK, padded(K) // BLOCK), dtype=torch.float32, device=x.device)
    qt = torch.empty((K, padded(N)), dtype=fp8_dtype(encoding), device=x.device) if cols else x
    _launch(x, q, s, qt, s, True, cols, True, encoding)
    return Quantized(q, s), Quantized(qt, s)


def _outputs(x: torch.Tensor, rows: int, length: int, encoding: str) -> tuple[torch.Tensor, torch.Tensor]:
    columns = padded(length)
    q = torch.empty((rows, columns), dtype=fp8_dtype(encoding), device=x.device)
    return q, torch.empty((columns // BLOCK, rows), dtype=torch.float32, device=x.device)


def _launch(x: torch.Tensor, q: torch.Tensor, s: torch.Tensor, qt: torch.Tensor, st: torch.Tensor, rows: bool,
            cols: bool, whole: bool, encoding: str) -> None:  # fmt: skip
    M, K = x.shape
    programs = padded(M) // BLOCK * (padded(K) // BLOCK)
    if not programs:
        return
    if INTERPRET:  # it writes codes, not fp8 values
        q, qt = (t.view(torch.uint8) if t.dtype == fp8_dtype(encoding) else t for t in (q, qt))
    quantize_kernel[(programs,)](x, q, s, qt, st, M, K, x.stride(0), x.stride(1), ROWS=rows, COLS=cols, WHOLE=whole,
                                 E5M2=encoding == "e5m2", FP8_MAX=fp8_max(encoding), TINY=TINY, BLOCK=BLOCK,
                                 INTERPRET=INTERPRET,
                                 **section("gemm_fp8", "quant"))  # fmt: skip
