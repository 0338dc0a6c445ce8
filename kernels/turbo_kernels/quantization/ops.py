"""Quantization and its inverse."""

from __future__ import annotations

from typing import NamedTuple

import torch

from turbo_kernels.gemm_fp8.triton_quant import Quantized
from turbo_kernels.library import operator
from turbo_kernels.quantization import SPEC, backends
from turbo_kernels.quantization.formats import (
    ENCODINGS,
    code_dtype,
    q_shape,
    scale_dtype,
    scale_shape,
)

_FLOATS = (torch.bfloat16, torch.float16, torch.float32)
_ENCODING_OF = {
    torch.float8_e4m3fn: "e4m3",
    torch.float8_e4m3fnuz: "e4m3",
    torch.float8_e5m2: "e5m2",
    torch.float8_e5m2fnuz: "e5m2",
}
# One scale serves both outputs (transposed, where it has two dimensions), so the operator returns it once.
_SHARED_SCALE = ("tensorwise", "blockwise_weight")


class QuantizedTensor(NamedTuple):
    """What `quantize` returns; the last two are None unless `transpose`."""

    q: torch.Tensor
    scale: torch.Tensor
    q_t: torch.Tensor | None = None
    scale_t: torch.Tensor | None = None


def quantize(x: torch.Tensor, variant: str, encoding: str = "e4m3", transpose: bool = False) -> QuantizedTensor:
    """Codes and scales of x along its last dimension, and with `transpose` of its transpose, in one reading of x.

    Args:
        x: [..., K], bf16, fp16 or fp32, any strides; M is the product of the leading dimensions.
        variant: tensorwise (one fp32 scale), rowwise (one a row), blockwise (one per 1×128), blockwise_weight (one per
            128×128), mxfp8 or mxfp4 (an E8M0 exponent per 32). `quantization.formats` has shapes, padding and formulas.
        encoding: e4m3 or e5m2, FNUZ on gfx942 and OCP elsewhere; mxfp4 is E2M1 whatever is asked for.
        transpose: also returns q_t and scale_t, those of x[M, K]ᵀ.

    Returns:
        q: [..., K] (the last dimension padded, for mxfp4 two codes a byte) in fp8 or uint8; scale as formats.py says of
        [M, K]. Rounded to nearest even, saturating; a NaN or an infinity makes what shares its scale NaN at the latest
        when dequantized. Nothing here is differentiable: the results carry no gradient.

    ValueError for an unknown variant or encoding or a scalar; TypeError for another dtype.
    """
    if variant not in SPEC.variants:
        raise ValueError(f"quantize: no variant {variant!r}; there are {', '.join(SPEC.variants)}")
    if encoding not in ENCODINGS:
        raise ValueError(f"quantize: no encoding {encoding!r}; there are {', '.join(ENCODINGS)}")
    if x.dtype not in _FLOATS:
        raise TypeError(f"quantize: x is {x.dtype}; bf16, fp16 or fp32")
    if not x.ndim:
        raise ValueError("quantize: x is a scalar; at least one dimension")
    matrix = _matrix(x.detach())
    q, scale, q_t, scale_t = _quantize(matrix, variant, encoding, transpose)
    dtype = code_dtype(variant, encoding) or torch.uint8
    q = q.view(dtype).view(*x.shape[:-1], q.shape[1])
    if not transpose:
        return QuantizedTensor(q, scale)
    if variant in _SHARED_SCALE:
        scale_t = scale.t()
    return QuantizedTensor(q, scale, q_t.view(dtype), scale_t)


def dequantize(q: torch.Tensor, scale: torch.Tensor, variant: str, columns: int | None = None,
               dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:  # fmt: skip
    """The values of a `quantize`'s (q, scale), or of its (q_t, scale_t): value(code) · scale, in fp32, then `dtype`.

    Args:
        q: [..., K as stored], fp8 of this architecture, uint8 for mxfp4; the last dimension contiguous or not.
        scale: of the variant's shape for that q (quantization.formats), fp32 or (mx) uint8.
        columns: of the result; by default all that q has, padding included.
        dtype: bf16, fp16 or fp32.

    ValueError for an unknown variant, a scale of another shape or too many columns; TypeError for other dtypes.
    """
    if variant not in SPEC.variants:
        raise ValueError(f"dequantize: no variant {variant!r}; there are {', '.join(SPEC.variants)}")
    encoding = _ENCODING_OF.get(q.dtype, "e4m3")
    if q.dtype != (code_dtype(variant, encoding) or torch.uint8):
        raise TypeError(f"dequantize: q is {q.dtype}; {variant} has {_code_names(variant)} here")
    if scale.dtype != scale_dtype(variant) or dtype not in _FLOATS:
        raise TypeError(
            f"dequantize: scale {scale.dtype}, result {dtype}; {variant} has {scale_dtype(variant)} scales, "
            "results are bf16, fp16 or fp32"
        )
    if not q.ndim:
        raise ValueError("dequantize: q is a scalar; at least one dimension")
    stored = q.shape[-1] * (2 if variant == "mxfp4" else 1)
    columns = stored if columns is None else columns
    matrix = _matrix(q.detach())
    expected = scale_shape(variant, matrix.shape[0], stored)
    if tuple(scale.shape) != expected or not 0 <= columns <= stored:
        raise ValueError(
            f"dequantize: q {tuple(q.shape)}, scale {tuple(scale.shape)}, {columns} columns; "
            f"{variant} has a scale {expected} and at most {stored} columns there"
        )
    if q.device != scale.device:
        raise ValueError(f"dequantize: q is on {q.device}, its scale on {scale.device}")
    out = _dequantize(matrix.view(torch.uint8), scale.detach(), variant, encoding, columns, dtype)
    return out.view(*q.shape[:-1], columns)


def _matrix(x: torch.Tensor) -> torch.Tensor:
    return x.flatten(0, -2) if x.ndim > 1 else x[None]


def _code_names(variant: str) -> str:
    return " or ".join(sorted({str(code_dtype(variant, e) or torch.uint8) for e in ENCODINGS}))


Codes = tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]


def _quantize_forward(x: torch.Tensor, variant: str, encoding: str, transpose: bool) -> Codes:
    along_k, along_m = backends.quantize(x, variant, encoding, True, transpose)
    q, scale = _plain(along_k)
    if along_m is None:
        return q, scale, *_nothing(x, variant)
    q_t, scale_t = _plain(along_m)
    return q, scale, q_t, _nothing(x, variant)[1] if variant in _SHARED_SCALE else scale_t


def _plain(output: Quantized) -> tuple[torch.Tensor, torch.Tensor]:
    return output.q.view(torch.uint8), output.scale


def _nothing(x: torch.Tensor, variant: str) -> tuple[torch.Tensor, torch.Tensor]:
    return x.new_empty(0, dtype=torch.uint8), x.new_empty(0, dtype=scale_dtype(variant))


def _quantize_fake(x: torch.Tensor, variant: str, encoding: str, transpose: bool) -> Codes:
    M, K = x.shape

    def outputs(rows: int, length: int) -> tuple[torch.Tensor, torch.Tensor]:
        return (x.new_empty(q_shape(variant, rows, length), dtype=torch.uint8),
                x.new_empty(scale_shape(variant, rows, length), dtype=scale_dtype(variant)))  # fmt: skip

    q, scale = outputs(M, K)
    q_t, scale_t = outputs(K, M) if transpose else _nothing(x, variant)
    return q, scale, q_t, _nothing(x, variant)[1] if variant in _SHARED_SCALE else scale_t


def _dequantize_forward(q: torch.Tensor, scale: torch.Tensor, variant: str, encoding: str, columns: int,
                        dtype: torch.dtype) -> torch.Tensor:  # fmt: skip
    return backends.dequantize(q.view(code_dtype(variant, encoding) or torch.uint8), scale, variant, encoding, columns,
                               dtype)  # fmt: skip


def _dequantize_fake(q: torch.Tensor, scale: torch.Tensor, variant: str, encoding: str, columns: int,
                     dtype: torch.dtype) -> torch.Tensor:  # fmt: skip
    return q.new_empty((q.shape[0], columns), dtype=dtype)


_quantize = operator("quantize", _quantize_forward, _quantize_fake)
_dequantize = operator("dequantize", _dequantize_forward, _dequantize_fake)
