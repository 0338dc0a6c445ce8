"""Linear layers: torch.nn.Linear's parameters, our products."""

from __future__ import annotations

import torch

from turbo_kernels import ops
from turbo_kernels.gemm_fp8.fp8 import FP8Config


class Linear(torch.nn.Linear):
    """torch.nn.Linear through `ops.gemm`: y[..., out_features] = x[..., in_features]·weightᵀ + bias.

    Weight and input have one dtype: bf16, fp16 or fp32. The bias is added in fp32.
    """

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        y = ops.gemm(input.reshape(-1, input.shape[-1]), self.weight, bias=self.bias)
        return y.view(*input.shape[:-1], self.out_features)


class LinearFP8(torch.nn.Linear):
    """torch.nn.Linear through `ops.gemm_fp8`, forward and both gradients in fp8; the parameters stay bf16 or fp16.

    Args:
        config: how activations, weight and gradients are quantized.

    y has the input's dtype; the bias is added to it there.
    """

    def __init__(self, in_features: int, out_features: int, bias: bool = True,
                 device: torch.device | str | None = None, dtype: torch.dtype | None = None,
                 config: FP8Config | None = None) -> None:  # fmt: skip
        super().__init__(in_features, out_features, bias, device, dtype)
        self.config = config or FP8Config()

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        rows = input.reshape(-1, input.shape[-1])
        y = ops.gemm_fp8(rows, self.weight, config=self.config, out_dtype=input.dtype)
        y = y.view(*input.shape[:-1], self.out_features)
        return y if self.bias is None else y + self.bias

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, config={self.config}"
