"""Who squares."""

from __future__ import annotations

import torch
from turbo_kernels.dispatch import AutoKernelDispatcher, Backend
from turbo_kernels.toy_square.triton_toy_square import square


def up_to_64(x: torch.Tensor) -> str | None:
    return None if x.numel() <= 64 else f"one tile of 64, got {x.numel()}"


run = AutoKernelDispatcher(
    "toy_square",
    "",
    "fp32",
    (
        Backend("TRITON", square, up_to_64),
        Backend("TORCH", lambda x: x * x),
    ),
)
