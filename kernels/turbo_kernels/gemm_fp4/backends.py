"""Who multiplies packed FP4: our kernel, or plain torch on the decoded operands."""

from __future__ import annotations

import torch

from turbo_kernels.arch import unrunnable
from turbo_kernels.dispatch import AutoKernelDispatcher, Backend
from turbo_kernels.gemm_fp4 import triton_gemm_fp4
from turbo_kernels.gemm_fp8.triton_quant import Quantized
from turbo_kernels.quantization import reference


def _torch_matmul(name: str, a: Quantized, b: Quantized, out_dtype: torch.dtype) -> torch.Tensor:
    left, right = (reference.dequantize(x.q, x.scale, "mxfp4") for x in (a, b))
    return (left @ right.t()).to(out_dtype)


def _triton_refuses(name: str, a: Quantized, b: Quantized, out_dtype: torch.dtype) -> str | None:
    return unrunnable(a.q)


# matmul(section, a[M, K], b[N, K], out_dtype) -> a·bᵀ [M, N]; both quantized along K
matmul = AutoKernelDispatcher(
    "gemm_fp4", "GEMM", "fp4",
    (Backend("TRITON", triton_gemm_fp4.matmul, _triton_refuses), Backend("TORCH", _torch_matmul)),
)  # fmt: skip
