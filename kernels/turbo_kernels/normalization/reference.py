"""The truth beside RMSNorm: plain torch in fp32, or fp64 for fp32 inputs (whose own rounding is the gate's size)."""

from __future__ import annotations

import torch


def rstd_of(x: torch.Tensor, eps: float) -> torch.Tensor:
    return (x.square().mean(-1, keepdim=True) + eps).rsqrt()


def step(x: torch.Tensor, weight: torch.Tensor, grad_out: torch.Tensor, eps: float) -> dict[str, torch.Tensor]:
    """out[..., H], dx[..., H] and dweight[H]: torch's own derivatives of the formula."""
    wide = torch.float64 if x.dtype == torch.float32 else torch.float32
    x, weight = (t.detach().to(wide).requires_grad_() for t in (x, weight))
    with torch.enable_grad():
        out = x * rstd_of(x, eps) * weight
    dx, dweight = torch.autograd.grad(out, (x, weight), grad_out.detach().to(wide))
    return {"out": out.detach(), "dx": dx, "dweight": dweight}
