"""The gated feed-forward layer of Llama-like models."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from turbo_kernels import ops
from turbo_kernels.modules.linear import Linear

_HALVES = ("gate_proj", "up_proj")


class SwiGLUMLP(torch.nn.Module):
    """y = down(silu(gate(x))·up(x)), x[..., dim], `hidden` wide inside; gate and up are one product.

    The state_dict is the usual one, gate_proj, up_proj and down_proj: it is split when saved and joined when loaded.

    Args:
        linear: makes the linear layers, called as torch.nn.Linear(in, out, bias=, device=, dtype=) is.
    """

    def __init__(self, dim: int, hidden: int, bias: bool = False, linear: Callable[..., torch.nn.Module] = Linear,
                 device: torch.device | str | None = None, dtype: torch.dtype | None = None) -> None:  # fmt: skip
        super().__init__()
        self.gate_up_proj = linear(dim, 2 * hidden, bias=bias, device=device, dtype=dtype)
        self.down_proj = linear(hidden, dim, bias=bias, device=device, dtype=dtype)
        self.register_state_dict_post_hook(_split)
        self.register_load_state_dict_pre_hook(_join)

    def forward(self, x: torch.Tensor, probs: torch.Tensor | None = None) -> torch.Tensor:
        """`probs`: a weight per token, x.shape[:-1]."""
        return self.down_proj(ops.swiglu(self.gate_up_proj(x), probs))


def _split(module: torch.nn.Module, state: dict[str, Any], prefix: str, metadata: Any) -> None:
    for key in [k for k in state if k.startswith(f"{prefix}gate_up_proj.")]:
        name, joined = key.removeprefix(f"{prefix}gate_up_proj."), state.pop(key)
        for half, part in zip(_HALVES, joined.chunk(2), strict=True):
            state[f"{prefix}{half}.{name}"] = part


def _join(module: torch.nn.Module, state: dict[str, Any], prefix: str, *rest: Any) -> None:
    """Where only one half is there it stays, and is reported as what is missing and what is unexpected."""
    gate, up = (f"{prefix}{half}." for half in _HALVES)
    for key in [k for k in state if k.startswith(gate)]:
        name = key.removeprefix(gate)
        if up + name in state:
            state[f"{prefix}gate_up_proj.{name}"] = torch.cat([state.pop(key), state.pop(up + name)])
