"""Who quantizes: our kernels, or plain torch."""

from __future__ import annotations

import torch

from turbo_kernels.arch import unrunnable
from turbo_kernels.dispatch import AutoKernelDispatcher, Backend
from turbo_kernels.gemm_fp8.triton_quant import Quantized
from turbo_kernels.quantization import reference, triton_quantize
from turbo_kernels.quantization.formats import code_dtype
from turbo_kernels.quantization.triton_quantize import Both


def _torch_quantize(x: torch.Tensor, variant: str, encoding: str, rows: bool, cols: bool) -> Both:
    dtype = code_dtype(variant, encoding)
    along_k = Quantized(*reference.quantize(x, variant, dtype)) if rows else None
    along_m = Quantized(*reference.quantize(x.t(), variant, dtype)) if cols else None
    if along_m and variant == "blockwise_weight":  # one scale serves both outputs
        along_m = Quantized(along_m.q, along_m.scale.t())
    return along_k, along_m


def _torch_dequantize(q: torch.Tensor, scale: torch.Tensor, variant: str, encoding: str, columns: int,
                      dtype: torch.dtype) -> torch.Tensor:  # fmt: skip
    return reference.dequantize(q, scale, variant)[:, :columns].to(dtype, memory_format=torch.contiguous_format)


def _precision(variant: str) -> str:
    return "fp4" if variant == "mxfp4" else "fp8"


# quantize(x[M, K], variant, encoding, rows, cols) -> (Quantized | None, Quantized | None)
quantize = AutoKernelDispatcher(
    "quantize", "", lambda x, variant, *rest: _precision(variant),
    (Backend("TRITON", triton_quantize.quantize, lambda x, *rest: unrunnable(x)), Backend("TORCH", _torch_quantize)),
)  # fmt: skip

# dequantize(q[M, …], scale, variant, encoding, columns, dtype) -> [M, columns]
dequantize = AutoKernelDispatcher(
    "dequantize", "", lambda q, scale, variant, *rest: _precision(variant),
    (
        Backend("TRITON", triton_quantize.dequantize, lambda q, *rest: unrunnable(q)),
        Backend("TORCH", _torch_dequantize),
    ),
)  # fmt: skip
