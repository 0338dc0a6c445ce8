"""The truth beside grouped_gemm: a product a group, in fp32, or fp64 for fp32 inputs."""

from __future__ import annotations

import torch


def step(a: torch.Tensor, b: torch.Tensor, group_lens: torch.Tensor, grad_out: torch.Tensor) -> dict[str, torch.Tensor]:
    """out[T, N] = each group's rows of a[T, K] times its b[g, N, K]ᵀ, and both gradients; 0 behind the groups."""
    wide = torch.float64 if a.dtype == torch.float32 else torch.float32
    a, b, grad_out = a.detach().to(wide), b.detach().to(wide), grad_out.detach().to(wide)
    out, da, db = torch.zeros_like(grad_out), torch.zeros_like(a), torch.zeros_like(b)
    first = 0
    for g, length in enumerate(group_lens.tolist()):
        rows = slice(first, first + length)
        out[rows], da[rows], db[g] = a[rows] @ b[g].T, grad_out[rows] @ b[g], grad_out[rows].T @ a[rows]
        first += length
    return {"out": out, "da": da, "db": db}
