"""FP8 GEMM with its gradients: quantization is part of every step, nothing is cached between calls."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import torch
from torch.autograd.function import once_differentiable

from turbo_kernels.arch import fp8_dtype, require_runnable
from turbo_kernels.gemm_fp8.backends import MULTIPLY
from turbo_kernels.gemm_fp8.fp8 import FORMATS, VARIANTS, FP8Config
from turbo_kernels.gemm_fp8.triton_quant import Quantized, quantize, quantize_weight
from turbo_kernels.library import operator, runs_eagerly
from turbo_kernels.quantization.formats import q_shape, scale_shape
from turbo_kernels.quantization.triton_quantize import Both
from turbo_kernels.quantization.triton_quantize import quantize as quantize_as

_INPUTS = (torch.bfloat16, torch.float16)
_OUTPUTS = (torch.bfloat16, torch.float16, torch.float32)
_BY_VARIANT: dict[str | None, FP8Config] = {None: FP8Config(), **{v: FP8Config(v) for v in VARIANTS}}


class Scheme(NamedTuple):
    """A variant's quantization: x -> (along its rows' length, its transpose likewise)."""

    activation: Callable[[torch.Tensor, bool, bool, str], Both]  # (x, rows, cols, encoding); gradients too
    weight: Callable[[torch.Tensor, bool, str], Both]  # (x, cols, encoding)


def _same_for_all(variant: str) -> Scheme:
    return Scheme(
        lambda x, rows, cols, encoding: quantize_as(x, variant, encoding, rows, cols),
        lambda x, cols, encoding: quantize_as(x, variant, encoding, True, cols),
    )


SCHEMES = {
    "blockwise": Scheme(quantize, quantize_weight),
    **{variant: _same_for_all(variant) for variant in ("tensorwise", "rowwise", "mxfp8")},
}


def gemm_fp8(a: torch.Tensor, b: torch.Tensor, trans_b: bool = True, variant: str | None = None,
             out_dtype: torch.dtype = torch.bfloat16, config: FP8Config | None = None,
             trans_a: bool = False) -> torch.Tensor:  # fmt: skip
    """y[M, N] = op(a)·op(b) in fp8 with fp32 accumulation; differentiable in both operands, their gradients in fp8 too.

    Args:
        a: activations [M, K], or [K, M] with trans_a; bf16 or fp16, any strides.
        b: weight [N, K] (trans_b) or [K, N].
        variant: short for FP8Config(variant).
        out_dtype: bf16, fp16 or fp32.
        config: what shares a scale, and the fp8 formats; blockwise E4M3 by default.

    Backward saves only fp8 copies (of aᵀ and bᵀ, written by the forward's own quantization).
    """
    config = _config(config, variant)
    if a.ndim != 2 or b.ndim != 2 or a.shape[0 if trans_a else 1] != b.shape[1 if trans_b else 0]:
        raise ValueError(
            f"gemm_fp8: shapes {tuple(a.shape)} and {tuple(b.shape)} don't multiply "
            f"with trans_a={trans_a}, trans_b={trans_b}"
        )
    if a.dtype not in _INPUTS or b.dtype not in _INPUTS or out_dtype not in _OUTPUTS:
        raise TypeError(f"gemm_fp8: a {a.dtype}, b {b.dtype}, out {out_dtype}; inputs are bf16 or fp16, out also fp32")
    if a.device != b.device:
        raise ValueError(f"gemm_fp8: a is on {a.device}, b on {b.device}; give one device")
    require_runnable(a)
    if trans_a:
        a = a.t()
    if runs_eagerly(a, b):
        return _GemmFp8.apply(a, b, trans_b, out_dtype, config)  # type: ignore[return-value]
    need_a, need_b = (torch.is_grad_enabled() and x.requires_grad for x in (a, b))
    return _gemm_fp8(a, b, trans_b, out_dtype, config.variant, config.format, need_a, need_b)[0]


def _config(config: FP8Config | None, variant: str | None) -> FP8Config:
    if variant not in _BY_VARIANT:
        raise ValueError(f"gemm_fp8: no variant {variant!r}; there are {', '.join(VARIANTS)}")
    if config is None:
        return _BY_VARIANT[variant]
    if variant not in (None, config.variant):
        raise ValueError(f"gemm_fp8: variant {variant!r} and {config}; give one of them")
    return config


def _forward(a: torch.Tensor, b: torch.Tensor, trans_b: bool, out_dtype: torch.dtype, config: FP8Config, need_a: bool,
             need_b: bool) -> tuple[torch.Tensor, Quantized | None, Quantized | None]:  # fmt: skip
    """y, aᵀ for b's gradient, and bᵀ for a's."""
    scheme, encoding = SCHEMES[config.variant], FORMATS[config.format][0]
    qa, qat = scheme.activation(a, True, need_b, encoding)
    qb, qbt = scheme.weight(b if trans_b else b.t(), need_a, encoding)
    out = MULTIPLY[config.variant]("forward", qa, qb, out_dtype)
    return out, qat if need_b else None, qbt if need_a else None


def _gradients(grad_out: torch.Tensor, qat: Quantized | None, qbt: Quantized | None, trans_b: bool,
               dtypes: tuple[torch.dtype, torch.dtype],
               config: FP8Config) -> tuple[torch.Tensor | None, torch.Tensor | None]:  # fmt: skip
    """(da, db), each where there is what it needs."""
    multiply, scheme = MULTIPLY[config.variant], SCHEMES[config.variant]
    rows, cols = scheme.activation(grad_out, qbt is not None, qat is not None, FORMATS[config.format][1])
    da = db = None
    if qbt is not None:  # da[M, K] = dy[M, N] · b[N, K]
        da = multiply("dgrad", rows, qbt, dtypes[0])
    if qat is not None:  # db[N, K] = dyᵀ[N, M] · a[M, K], or its transpose for a [K, N] weight
        db = multiply("wgrad", *((cols, qat) if trans_b else (qat, cols)), dtypes[1])
    return da, db


class _GemmFp8(torch.autograd.Function):
    """The eager path: what backward needs stays in ctx, where the registered operator has to return it."""

    @staticmethod
    def forward(ctx: Any, a: torch.Tensor, b: torch.Tensor, trans_b: bool, out_dtype: torch.dtype,
                config: FP8Config) -> torch.Tensor:  # fmt: skip
        out, qat, qbt = _forward(a, b, trans_b, out_dtype, config, *ctx.needs_input_grad[:2])
        ctx.save_for_backward(*(qat or (None, None)), *(qbt or (None, None)))
        ctx.trans_b, ctx.dtypes, ctx.config = trans_b, (a.dtype, b.dtype), config
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_out: torch.Tensor) -> tuple[torch.Tensor | None, ...]:  # type: ignore[override]
        aq, a_scale, bq, b_scale = ctx.saved_tensors
        qat = None if aq is None else Quantized(aq, a_scale)
        qbt = None if bq is None else Quantized(bq, b_scale)
        return *_gradients(grad_out, qat, qbt, ctx.trans_b, ctx.dtypes, ctx.config), None, None, None


# -- the registered operators: fp8 codes travel as uint8, what nobody needs as an empty tensor ---------------------------

Kept = tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]


def _pack(x: torch.Tensor, kept: Quantized | None) -> tuple[torch.Tensor, torch.Tensor]:
    if kept is None:
        return x.new_empty(0, dtype=torch.uint8), x.new_empty(0, dtype=torch.float32)
    return kept.q.view(torch.uint8), kept.scale


def _registered(a: torch.Tensor, b: torch.Tensor, trans_b: bool, out_dtype: torch.dtype, variant: str, format: str,
                need_a: bool, need_b: bool) -> Kept:  # fmt: skip
    out, qat, qbt = _forward(a, b, trans_b, out_dtype, FP8Config(variant, format), need_a, need_b)
    return out, *_pack(a, qat), *_pack(b, qbt)


def _registered_fake(a: torch.Tensor, b: torch.Tensor, trans_b: bool, out_dtype: torch.dtype, variant: str,
                     format: str, need_a: bool, need_b: bool) -> Kept:  # fmt: skip
    (M, K), N = a.shape, b.shape[0 if trans_b else 1]
    scale_dtype = torch.uint8 if variant == "mxfp8" else torch.float32
    # A weight's blocks are the same for both of its layouts, and stored once.
    b_scale = scale_shape("blockwise_weight", N, K) if variant == "blockwise" else scale_shape(variant, K, N)

    def kept(needed: bool, length: int, scales: tuple[int, ...]) -> tuple[torch.Tensor, torch.Tensor]:
        if not needed:
            return _pack(a, None)
        return (a.new_empty(q_shape(variant, K, length), dtype=torch.uint8), a.new_empty(scales, dtype=scale_dtype))

    return (
        a.new_empty((M, N), dtype=out_dtype),
        *kept(need_b, M, scale_shape(variant, K, M)),
        *kept(need_a, N, b_scale),
    )


def _setup(ctx: Any, inputs: tuple[Any, ...], output: Kept) -> None:
    a, b, *ctx.rest = inputs
    ctx.dtypes = a.dtype, b.dtype
    ctx.save_for_backward(*output[1:])
    ctx.mark_non_differentiable(*output[1:])
    ctx.set_materialize_grads(False)


def _backward(ctx: Any, grad_out: torch.Tensor | None, *unused: Any) -> tuple[torch.Tensor | None, ...]:
    trans_b, _, variant, format, need_a, need_b = ctx.rest
    nothing = (None,) * len(ctx.rest)
    if grad_out is None:
        return None, None, *nothing
    da, db = _registered_gradients(grad_out, *ctx.saved_tensors, trans_b, *ctx.dtypes, variant, format, need_a, need_b)
    return da if need_a else None, db if need_b else None, *nothing


def _gradients_forward(
    grad_out: torch.Tensor, aq: torch.Tensor, a_scale: torch.Tensor, bq: torch.Tensor, b_scale: torch.Tensor,
    trans_b: bool, a_dtype: torch.dtype, b_dtype: torch.dtype, variant: str, format: str, need_a: bool, need_b: bool,
) -> tuple[torch.Tensor, torch.Tensor]:  # fmt: skip
    dtype = fp8_dtype(FORMATS[format][0])
    qat = Quantized(aq.view(dtype), a_scale) if need_b else None
    qbt = Quantized(bq.view(dtype), b_scale) if need_a else None
    da, db = _gradients(grad_out, qat, qbt, trans_b, (a_dtype, b_dtype), FP8Config(variant, format))
    empty = partial(grad_out.new_empty, 0)
    return empty() if da is None else da, empty() if db is None else db


def _gradients_fake(
    grad_out: torch.Tensor, aq: torch.Tensor, a_scale: torch.Tensor, bq: torch.Tensor, b_scale: torch.Tensor,
    trans_b: bool, a_dtype: torch.dtype, b_dtype: torch.dtype, variant: str, format: str, need_a: bool, need_b: bool,
) -> tuple[torch.Tensor, torch.Tensor]:  # fmt: skip
    (M, N), K = grad_out.shape, (aq if need_b else bq).shape[0]
    da = grad_out.new_empty((M, K), dtype=a_dtype) if need_a else grad_out.new_empty(0)
    db = grad_out.new_empty((N, K) if trans_b else (K, N), dtype=b_dtype) if need_b else grad_out.new_empty(0)
    return da, db


_registered_gradients = operator("gemm_fp8_gradients", _gradients_forward, _gradients_fake)
_gemm_fp8 = operator("gemm_fp8", _registered, _registered_fake, _setup, _backward)
