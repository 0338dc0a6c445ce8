"""The truth beside gemm: plain products, in fp32, or fp64 for fp32 inputs (whose own rounding is the gate's size)."""

from __future__ import annotations

import torch


def step(a: torch.Tensor, b: torch.Tensor, grad_out: torch.Tensor) -> dict[str, torch.Tensor]:
    """out[M, N] = a[M, K]·b[N, K]ᵀ and both gradients."""
    wide = torch.float64 if a.dtype == torch.float32 else torch.float32
    a, b, grad_out = a.detach().to(wide), b.detach().to(wide), grad_out.detach().to(wide)
    return {"out": a @ b.T, "da": grad_out @ b, "db": grad_out.T @ a}
