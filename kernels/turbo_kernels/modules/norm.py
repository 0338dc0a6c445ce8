"""RMSNorm as a layer."""

from __future__ import annotations

import torch

from turbo_kernels import ops


class RMSNorm(torch.nn.RMSNorm):
    """torch.nn.RMSNorm through `ops.rmsnorm`, with its arguments: `eps` is by default the input dtype's epsilon.

    ValueError without a weight (elementwise_affine=False).
    """

    weight: torch.nn.Parameter

    def __init__(self, normalized_shape: int | list[int] | torch.Size, eps: float | None = None,
                 elementwise_affine: bool = True, device: torch.device | str | None = None,
                 dtype: torch.dtype | None = None) -> None:  # fmt: skip
        if not elementwise_affine:
            raise ValueError("RMSNorm: elementwise_affine is False; ops.rmsnorm has a weight, leave it True")
        super().__init__(normalized_shape, eps, elementwise_affine, device, dtype)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if x.shape[-self.weight.ndim :] != self.weight.shape:
            raise ValueError(f"RMSNorm: x {tuple(x.shape)} doesn't end in {tuple(self.weight.shape)}")
        eps = torch.finfo(x.dtype).eps if self.eps is None else self.eps
        return ops.rmsnorm(x.flatten(-self.weight.ndim), self.weight.flatten(), eps).view(x.shape)
