"""The truth beside the gated activations: plain torch in fp32, or fp64 for fp32 inputs (whose rounding is the gate's size)."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch.nn import functional as F

FUNCTIONS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "silu": F.silu,
    "gelu": F.gelu,
    "gelu_tanh": lambda gate: F.gelu(gate, approximate="tanh"),
}


def gated(x: torch.Tensor, probs: torch.Tensor | None, kind: str) -> torch.Tensor:
    """f(gate)·up of x[..., 2H] = [gate | up], times probs[...] where given, in the inputs' own precision."""
    gate, up = x.chunk(2, -1)
    y = FUNCTIONS[kind](gate) * up
    return y if probs is None else y * probs.unsqueeze(-1)


def step(x: torch.Tensor, grad_out: torch.Tensor, kind: str, probs: torch.Tensor | None = None
         ) -> dict[str, torch.Tensor]:  # fmt: skip
    """out[..., H], dx[..., 2H] and, with probs, dprobs[...]: torch's own derivatives of the formula."""
    wide = torch.float64 if x.dtype == torch.float32 else torch.float32
    given = {"x": x, "probs": probs}
    leaves = {name: t.detach().to(wide).requires_grad_() for name, t in given.items() if t is not None}
    with torch.enable_grad():
        out = gated(leaves["x"], leaves.get("probs"), kind)
    grads = torch.autograd.grad(out, list(leaves.values()), grad_out.detach().to(wide))
    return {"out": out.detach(), **{f"d{name}": g for name, g in zip(leaves, grads, strict=True)}}
