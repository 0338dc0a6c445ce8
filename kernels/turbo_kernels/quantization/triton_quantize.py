"""Quantization kernels: x[M, K] and, in the same launch, its transpose; layouts and formulas are in formats.py.

- Scaled per tensor or row: `amax_kernel` takes an integer maximum over the bits of |x| (exact in any order, so the
  result is deterministic, and a NaN's bits are the largest), `scaled_kernel` reads x again and writes the codes. Both
  axes take the same two launches.
- Blocks of 128: gemm_fp8's kernel.
- Microscaling: `mx_kernel`, one launch.
"""

# Triton's kernels take their tensors, sizes and strides one by one, and its decorators hide the types.
# pyright: reportArgumentType=false, reportGeneralTypeIssues=false

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import triton
import triton.language as tl

from turbo_kernels.arch import INTERPRET, fp8_max
from turbo_kernels.config import section
from turbo_kernels.gemm_fp8 import triton_quant
from turbo_kernels.gemm_fp8.triton_quant import TINY, Quantized
from turbo_kernels.quantization.formats import (
    MX,
    MX_BLOCK,
    code_dtype,
    limits,
    q_shape,
    scale_dtype,
    scale_shape,
)
from turbo_kernels.triton_codes import e2m1_code, e2m1_value, e8m0_value, float_code, float_value

Both = tuple[Quantized | None, Quantized | None]


@triton.jit
def fp8_code(x, E5M2: tl.constexpr):
    """fp32 -> OCP code, for the interpreter."""
    if E5M2:
        return float_code(x, 2, 15, 0x7B, 0x7F, 24)
    return float_code(x, 3, 7, 0x7E, 0x7F, 24)


@triton.jit
def fp8_value(code, E5M2: tl.constexpr):
    """OCP code -> fp32, for the interpreter."""
    magnitude = code & 0x7F
    if E5M2:
        value = float_value(code, 2, 15, 24)
        infinity = tl.where(code < 0x80, float("inf"), -float("inf"))
        return tl.where(magnitude > 0x7C, float("nan"), tl.where(magnitude == 0x7C, infinity, value))
    return tl.where(magnitude == 0x7F, float("nan"), float_value(code, 3, 7, 24))


@triton.jit
def _load(x_ptr, M, K, stride_m, stride_k, BLOCK_M: tl.constexpr, BLOCK_K: tl.constexpr):
    """(this program's tile of x, zero outside; its first row and column)."""
    tiles_k = tl.cdiv(K, BLOCK_K)
    first_m, first_k = tl.program_id(0) // tiles_k * BLOCK_M, tl.program_id(0) % tiles_k * BLOCK_K
    m, k = tl.arange(0, BLOCK_M), tl.arange(0, BLOCK_K)
    x_ptr += first_m.to(tl.int64) * stride_m + first_k.to(tl.int64) * stride_k
    inside = (first_m + m < M)[:, None] & (first_k + k < K)[None, :]
    return tl.load(x_ptr + m[:, None] * stride_m + k[None, :] * stride_k, mask=inside, other=0.0), first_m, first_k


@triton.jit
def _store(ptr, values, first_row, first_col, rows, cols):
    """Stores a tile at its place in a row-major [rows, cols]."""
    r, c = tl.arange(0, values.shape[0]), tl.arange(0, values.shape[1])
    ptr += first_row.to(tl.int64) * cols + first_col
    inside = (first_row + r < rows)[:, None] & (first_col + c < cols)[None, :]
    tl.store(ptr + r[:, None] * cols + c[None, :], values, mask=inside)


@triton.jit
def _encode(x, ptr, E5M2: tl.constexpr, INTERPRET: tl.constexpr):
    """fp32 within the format's range -> what `ptr` holds."""
    return fp8_code(x, E5M2) if INTERPRET else x.to(ptr.dtype.element_ty)


# -- one scale a tensor, row or column ---------------------------------------------------------------------------------


@triton.jit
def amax_kernel(x_ptr, row_ptr, col_ptr, M, K, stride_m, stride_k, WHOLE: tl.constexpr, ROWS: tl.constexpr,
                COLS: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_K: tl.constexpr):  # fmt: skip
    """max|x| as bits: of every row into row[M], of every column into col[K]; WHOLE: of all into row[0]."""
    x, first_m, first_k = _load(x_ptr, M, K, stride_m, stride_k, BLOCK_M, BLOCK_K)
    bits = x.to(tl.float32).to(tl.int32, bitcast=True) & 0x7FFFFFFF
    m, k = first_m + tl.arange(0, BLOCK_M), first_k + tl.arange(0, BLOCK_K)
    if WHOLE:
        tl.atomic_max(row_ptr, tl.max(bits), sem="relaxed")
    if ROWS:
        tl.atomic_max(row_ptr + m, tl.max(bits, 1), mask=m < M, sem="relaxed")
    if COLS:
        tl.atomic_max(col_ptr + k, tl.max(bits, 0), mask=k < K, sem="relaxed")


@triton.jit
def _scale(amax_bits, FP8_MAX: tl.constexpr, TINY: tl.constexpr):
    """(scale, 1/scale)."""
    amax = amax_bits.to(tl.float32, bitcast=True)
    amax = tl.where(amax < TINY, TINY, amax)  # not `maximum`, which may drop a NaN
    return tl.div_rn(amax, FP8_MAX), tl.div_rn(FP8_MAX, amax)


@triton.jit
def scaled_kernel(x_ptr, row_ptr, col_ptr, q_ptr, s_ptr, qt_ptr, st_ptr, M, K, stride_m, stride_k,
                  WHOLE: tl.constexpr, ROWS: tl.constexpr, COLS: tl.constexpr, E5M2: tl.constexpr,
                  FP8_MAX: tl.constexpr, TINY: tl.constexpr, INTERPRET: tl.constexpr, BLOCK_M: tl.constexpr,
                  BLOCK_K: tl.constexpr):  # fmt: skip
    """Codes and scales from the bits that amax_kernel left."""
    x, first_m, first_k = _load(x_ptr, M, K, stride_m, stride_k, BLOCK_M, BLOCK_K)
    x = x.to(tl.float32)
    m, k = first_m + tl.arange(0, BLOCK_M), first_k + tl.arange(0, BLOCK_K)
    if WHOLE:
        scale, inverse = _scale(tl.load(row_ptr), FP8_MAX, TINY)
        tl.store(s_ptr, scale, mask=tl.program_id(0) == 0)
        q = _encode(x * inverse, q_ptr, E5M2, INTERPRET)
        if ROWS:
            _store(q_ptr, q, first_m, first_k, M, K)
        if COLS:
            _store(qt_ptr, tl.trans(q), first_k, first_m, K, M)
    else:
        if ROWS:
            scale, inverse = _scale(tl.load(row_ptr + m, mask=m < M, other=0), FP8_MAX, TINY)
            tl.store(s_ptr + m, scale, mask=(m < M) & (first_k == 0))
            _store(q_ptr, _encode(x * inverse[:, None], q_ptr, E5M2, INTERPRET), first_m, first_k, M, K)
        if COLS:
            scale, inverse = _scale(tl.load(col_ptr + k, mask=k < K, other=0), FP8_MAX, TINY)
            tl.store(st_ptr + k, scale, mask=(k < K) & (first_m == 0))
            qt = tl.trans(_encode(x * inverse[None, :], qt_ptr, E5M2, INTERPRET))
            _store(qt_ptr, qt, first_k, first_m, K, M)


# -- microscaling ------------------------------------------------------------------------------------------------------


@triton.jit
def mx_scale(x, EMAX: tl.constexpr, CARRY: tl.constexpr):
    """fp32 [R, C] -> (x over its block's scale, [R, C]; E8M0 codes [R, C / 32]). EMAX, CARRY: formats.Limits."""
    blocks = tl.reshape(x, (x.shape[0], x.shape[1] // 32, 32))
    amax = tl.max(blocks.to(tl.int32, bitcast=True) & 0x7FFFFFFF, 2)  # as bits: a NaN's are the largest
    code = tl.where(amax >= 0x7F800000, 255, tl.maximum(((amax + CARRY) >> 23) - EMAX, 0))
    inverse = tl.where(code == 255, 0, (254 - code) << 23).to(tl.float32, bitcast=True)
    return tl.reshape(blocks * inverse[:, :, None], x.shape), code.to(tl.uint8)


@triton.jit
def pack_e2m1(x):
    """fp32 [R, C] -> E2M1 codes two a byte, [R, C / 2]."""
    low, high = tl.split(tl.reshape(e2m1_code(x), (x.shape[0], x.shape[1] // 2, 2)))
    return low | (high << 4)


@triton.jit
def _mx_store(x, q_ptr, s_ptr, first_row, first_col, rows, blocks, FP4: tl.constexpr, E5M2: tl.constexpr,
              EMAX: tl.constexpr, CARRY: tl.constexpr, LARGEST: tl.constexpr, INTERPRET: tl.constexpr):  # fmt: skip
    q, scale = mx_scale(x, EMAX, CARRY)
    _store(s_ptr, scale, first_row, first_col // 32, rows, blocks)
    if FP4:
        _store(q_ptr, pack_e2m1(q), first_row, first_col // 2, rows, blocks * 16)
    else:  # a hardware conversion may not saturate; it must not lose a NaN to the clamp either
        q = tl.clamp(q, -LARGEST, LARGEST, propagate_nan=tl.PropagateNan.ALL)
        _store(q_ptr, _encode(q, q_ptr, E5M2, INTERPRET), first_row, first_col, rows, blocks * 32)


@triton.jit
def mx_kernel(x_ptr, q_ptr, s_ptr, qt_ptr, st_ptr, M, K, stride_m, stride_k, ROWS: tl.constexpr, COLS: tl.constexpr,
              FP4: tl.constexpr, E5M2: tl.constexpr, EMAX: tl.constexpr, CARRY: tl.constexpr,
              LARGEST: tl.constexpr, INTERPRET: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_K: tl.constexpr):  # fmt: skip
    """Codes and E8M0 scales per 32 along K, and of the transpose along M."""
    x, first_m, first_k = _load(x_ptr, M, K, stride_m, stride_k, BLOCK_M, BLOCK_K)
    if ROWS:
        _mx_store(x.to(tl.float32), q_ptr, s_ptr, first_m, first_k, M, tl.cdiv(K, 32),
                  FP4, E5M2, EMAX, CARRY, LARGEST, INTERPRET)  # fmt: skip
    if COLS:
        _mx_store(tl.trans(x).to(tl.float32), qt_ptr, st_ptr, first_k, first_m, K, tl.cdiv(M, 32),
                  FP4, E5M2, EMAX, CARRY, LARGEST, INTERPRET)  # fmt: skip


# -- back --------------------------------------------------------------------------------------------------------------


@triton.jit
def dequantize_kernel(q_ptr, s_ptr, out_ptr, M, K, stride_q, stride_sm, stride_sk, SCALE_ROWS: tl.constexpr,
                      SCALE_COLS: tl.constexpr, E8M0: tl.constexpr, FP4: tl.constexpr, E5M2: tl.constexpr,
                      INTERPRET: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_K: tl.constexpr):  # fmt: skip
    """out[m, k] = value(q[m, k]) · scale[m / SCALE_ROWS, k / SCALE_COLS]."""
    tiles_k = tl.cdiv(K, BLOCK_K)
    first_m, first_k = tl.program_id(0) // tiles_k * BLOCK_M, tl.program_id(0) % tiles_k * BLOCK_K
    m, k = first_m + tl.arange(0, BLOCK_M), first_k + tl.arange(0, BLOCK_K)
    inside = (m < M)[:, None] & (k < K)[None, :]
    row = q_ptr + m.to(tl.int64)[:, None] * stride_q
    if FP4:
        codes = tl.load(row + k[None, :] // 2, mask=inside, other=0)
        value = e2m1_value(codes.to(tl.int32) >> (k % 2 * 4)[None, :])
    elif INTERPRET:
        value = fp8_value(tl.load(row + k[None, :], mask=inside, other=0), E5M2)
    else:
        value = tl.load(row + k[None, :], mask=inside, other=0.0).to(tl.float32)
    scale_rows, scale_cols = (m // SCALE_ROWS).to(tl.int64)[:, None] * stride_sm, (k // SCALE_COLS)[None, :] * stride_sk
    scale = tl.load(s_ptr + scale_rows + scale_cols, mask=inside, other=0)
    if E8M0:
        scale = e8m0_value(scale)
    _store(out_ptr, (value * scale).to(out_ptr.dtype.element_ty), first_m, first_k, M, K)


# -- launches ----------------------------------------------------------------------------------------------------------


def quantize(x: torch.Tensor, variant: str, encoding: str = "e4m3", rows: bool = True, cols: bool = False) -> Both:
    """x[M, K] of any strides -> (its codes along K, its transpose's along M), None for what isn't asked for.

    Shapes, scales and formulas: formats.py. The scales of `blockwise_weight`, as the one of `tensorwise`, serve both
    outputs.
    """
    return _QUANTIZE[variant](x, variant, encoding, rows, cols)


def _grid(M: int, K: int, config: Any) -> tuple[int]:
    return (-(-M // config["BLOCK_M"]) * -(-K // config["BLOCK_K"]),)


def _codes(q: torch.Tensor) -> torch.Tensor:
    """What a kernel stores to: the interpreter writes codes, not fp8 values."""
    return q.view(torch.uint8) if INTERPRET else q


def _empty(x: torch.Tensor, variant: str, encoding: str, rows: int, length: int) -> Quantized:
    q = torch.empty(q_shape(variant, rows, length), dtype=code_dtype(variant, encoding) or torch.uint8, device=x.device)
    scale = torch.empty(scale_shape(variant, rows, length), dtype=scale_dtype(variant), device=x.device)
    return Quantized(q, scale)


def _scaled(x: torch.Tensor, variant: str, encoding: str, rows: bool, cols: bool) -> Both:
    (M, K), whole = x.shape, variant == "tensorwise"
    amax = torch.zeros(1 if whole else M + K, dtype=torch.int32, device=x.device)
    row_amax, col_amax = amax, amax[:0] if whole else amax[M:]
    along_k = _empty(x, variant, encoding, M, K) if rows else None
    along_m = _empty(x, variant, encoding, K, M) if cols else None
    if whole and along_k and along_m:
        along_m = Quantized(along_m.q, along_k.scale)
    first, second = along_k or along_m, along_m or along_k
    assert first and second, "neither rows nor cols"
    if not x.numel():  # nothing was ever larger than the least amax
        for output in (first, second):
            output.scale.fill_(TINY).div_(fp8_max(encoding))
        return along_k, along_m
    common = {"WHOLE": whole}
    config = section("quantization", "amax")
    amax_kernel[_grid(M, K, config)](x, row_amax, col_amax, M, K, *x.stride(), ROWS=rows and not whole,
                                     COLS=cols and not whole, **common, **config)  # fmt: skip
    config = section("quantization", "scaled")
    scaled_kernel[_grid(M, K, config)](x, row_amax, col_amax, _codes(first.q), first.scale, _codes(second.q),
                                       second.scale, M, K, *x.stride(), ROWS=rows, COLS=cols, E5M2=encoding == "e5m2",
                                       FP8_MAX=fp8_max(encoding), TINY=TINY, INTERPRET=INTERPRET,
                                       **common, **config)  # fmt: skip
    return along_k, along_m


def _blockwise(x: torch.Tensor, variant: str, encoding: str, rows: bool, cols: bool) -> Both:
    if variant == "blockwise":
        along_k, along_m = triton_quant.quantize(x, rows, cols, encoding)
    else:
        along_k, along_m = triton_quant.quantize_weight(x, cols, encoding)
    return along_k if rows else None, along_m if cols else None


def _mx(x: torch.Tensor, variant: str, encoding: str, rows: bool, cols: bool) -> Both:
    M, K = x.shape
    along_k = _empty(x, variant, encoding, M, K) if rows else None
    along_m = _empty(x, variant, encoding, K, M) if cols else None
    first, second = along_k or along_m, along_m or along_k
    assert first and second, "neither rows nor cols"
    config, dtype = section("quantization", "mx"), code_dtype(variant, encoding)
    ends = limits(dtype)
    if x.numel():
        mx_kernel[_grid(M, K, config)](x, _codes(first.q), first.scale, _codes(second.q), second.scale, M, K,
                                       *x.stride(), ROWS=rows, COLS=cols, FP4=dtype is None, E5M2=encoding == "e5m2",
                                       EMAX=ends.emax, CARRY=ends.carry, LARGEST=ends.largest, INTERPRET=INTERPRET,
                                       **config)  # fmt: skip
    return along_k, along_m


_QUANTIZE: dict[str, Callable[..., Both]] = {
    "tensorwise": _scaled,
    "rowwise": _scaled,
    "blockwise": _blockwise,
    "blockwise_weight": _blockwise,
    "mxfp8": _mx,
    "mxfp4": _mx,
}


def scale_strides(variant: str, scale: torch.Tensor) -> tuple[int, int]:
    """The strides of a scale over (rows, columns) of what it scales, each in units of its blocks."""
    if variant == "tensorwise":
        return 0, 0
    if variant == "rowwise":
        return scale.stride(0), 0
    first, second = scale.stride()
    return (second, first) if variant == "blockwise" else (first, second)


# Elements that share a scale: (rows, columns). Where a stride is 0 the number doesn't matter.
SCALE_BLOCKS = {"blockwise": (1, 128), "blockwise_weight": (128, 128), "mxfp8": (1, MX_BLOCK), "mxfp4": (1, MX_BLOCK)}


def dequantize(q: torch.Tensor, scale: torch.Tensor, variant: str, encoding: str, columns: int,
               dtype: torch.dtype) -> torch.Tensor:  # fmt: skip
    """[M, columns] in `dtype` from one output of `quantize`, without its padding."""
    M = q.shape[0]
    out = torch.empty((M, columns), dtype=dtype, device=q.device)
    config, fp4 = section("quantization", "dequantize"), variant == "mxfp4"
    scale_rows, scale_cols = SCALE_BLOCKS.get(variant, (1, 1))
    if out.numel():
        dequantize_kernel[_grid(M, columns, config)](
            q if fp4 else _codes(q), scale, out, M, columns, q.stride(0), *scale_strides(variant, scale),
            SCALE_ROWS=scale_rows, SCALE_COLS=scale_cols, E8M0=variant in MX, FP4=fp4, E5M2=encoding == "e5m2",
            INTERPRET=INTERPRET, **config,
        )  # fmt: skip
    return out
