"""The truth beside gemm_fp4: the unquantized products in fp32, and the quantized ones with nothing else lost."""

from __future__ import annotations

import torch

from turbo_kernels.quantization.reference import dequantize, quantize


def step(a: torch.Tensor, b: torch.Tensor, grad_out: torch.Tensor) -> dict[str, torch.Tensor]:
    """out[M, N] = a[M, K]·b[N, K]ᵀ and both gradients, fp32, from inputs that nothing has quantized."""
    a, b, grad_out = a.detach().float(), b.detach().float(), grad_out.detach().float()
    return {"out": a @ b.T, "da": grad_out @ b, "db": grad_out.T @ a}


def quantized_step(a: torch.Tensor, b: torch.Tensor, grad_out: torch.Tensor) -> dict[str, torch.Tensor]:
    """The same in fp64 from mxfp4 operands, each quantized along the contracted dimension: all that a kernel may lose
    beyond this is the accumulation's and the output's rounding."""

    def product(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:  # x·yᵀ
        left, right = (dequantize(*quantize(t.detach(), "mxfp4", None), "mxfp4").double() for t in (x, y))
        return left @ right.T

    return {"out": product(a, b), "da": product(grad_out, b.T), "db": product(grad_out.T, a.T)}
