"""A linear layer of many experts."""

from __future__ import annotations

import math

import torch

from turbo_kernels import ops


class GroupedLinear(torch.nn.Module):
    """y[T, out_features]: each group's rows of x[T, in_features] times that group's weightᵀ, through `ops.grouped_gemm`.

    `weight` is [num_groups, out_features, in_features], `weight[g]` that of a torch.nn.Linear without bias, with its
    initial distribution.
    """

    def __init__(self, num_groups: int, in_features: int, out_features: int,
                 device: torch.device | str | None = None, dtype: torch.dtype | None = None) -> None:  # fmt: skip
        super().__init__()
        self.num_groups, self.in_features, self.out_features = num_groups, in_features, out_features
        shape = (num_groups, out_features, in_features)
        self.weight = torch.nn.Parameter(torch.empty(shape, device=device, dtype=dtype))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        bound = 1 / math.sqrt(self.in_features) if self.in_features else 0.0
        torch.nn.init.uniform_(self.weight, -bound, bound)

    def forward(self, input: torch.Tensor, group_lens: torch.Tensor) -> torch.Tensor:
        """`group_lens`: int64 [num_groups], how many rows each group has; the rows lie in the groups' order."""
        return ops.grouped_gemm(input, self.weight, group_lens)

    def extra_repr(self) -> str:
        return f"num_groups={self.num_groups}, in_features={self.in_features}, out_features={self.out_features}"
