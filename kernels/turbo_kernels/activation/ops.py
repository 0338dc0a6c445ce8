"""SwiGLU and GeGLU with their gradients."""

from __future__ import annotations

from typing import Any

import torch

from turbo_kernels.activation import backends
from turbo_kernels.library import operator
from turbo_kernels.row_kit import NAMES, as_rows

_GELU = {"none": "gelu", "tanh": "gelu_tanh"}


def swiglu(x: torch.Tensor, probs: torch.Tensor | None = None) -> torch.Tensor:
    """y[..., H] = silu(gate)·up·probs of x[..., 2H] = [gate | up] (Shazeer, arXiv:2002.05202); differentiable in both.

    Args:
        x: bf16, fp16 or fp32, any leading dimensions or none, any strides; computed in fp32, y in x's dtype.
        probs: a weight per token, the router's, of shape x.shape[:-1]; fp32 or x's dtype.
    """
    return _checked("swiglu", x, probs, "silu")


def geglu(x: torch.Tensor, probs: torch.Tensor | None = None, approximate: str = "none") -> torch.Tensor:
    """y[..., H] = gelu(gate)·up·probs of x[..., 2H] = [gate | up] (Shazeer, arXiv:2002.05202); differentiable in both.

    Args:
        x, probs: as for `swiglu`.
        approximate: "none", gelu(g) = g·Φ(g) by erf; or "tanh", g·½(1 + tanh(√(2/π)·(g + 0.044715·g³))).
    """
    if approximate not in _GELU:
        raise ValueError(f"geglu: approximate is {approximate!r}; there are {', '.join(_GELU)}")
    return _checked("geglu", x, probs, _GELU[approximate])


def _checked(op: str, x: torch.Tensor, probs: torch.Tensor | None, kind: str) -> torch.Tensor:
    if not x.ndim or not x.shape[-1] or x.shape[-1] % 2:
        raise ValueError(f"{op}: x has shape {tuple(x.shape)}; its last dimension is [gate | up], even and at least 2")
    if x.dtype not in NAMES:
        raise TypeError(f"{op}: x is {x.dtype}; give bf16, fp16 or fp32")
    if probs is not None:
        if probs.shape != x.shape[:-1]:
            raise ValueError(f"{op}: probs has shape {tuple(probs.shape)}; x has the tokens {tuple(x.shape[:-1])}")
        if probs.dtype not in (torch.float32, x.dtype):
            raise TypeError(f"{op}: probs is {probs.dtype}; give fp32 or x's {x.dtype}")
        if probs.device != x.device:
            raise ValueError(f"{op}: x is on {x.device}, probs on {probs.device}")
    return _glu(x, probs, kind)


def _flat(probs: torch.Tensor | None) -> torch.Tensor | None:
    return None if probs is None else probs.reshape(-1)


def _forward(x: torch.Tensor, probs: torch.Tensor | None, kind: str) -> torch.Tensor:
    return backends.forward(as_rows(x), _flat(probs), kind).view(*x.shape[:-1], x.shape[-1] // 2)


def _forward_fake(x: torch.Tensor, probs: torch.Tensor | None, kind: str) -> torch.Tensor:
    return x.new_empty((*x.shape[:-1], x.shape[-1] // 2))


def _setup(ctx: Any, inputs: tuple[Any, ...], output: torch.Tensor) -> None:
    x, probs, ctx.kind = inputs
    ctx.save_for_backward(x, probs)


def _backward(ctx: Any, grad_out: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
    x, probs = ctx.saved_tensors
    need_x, need_probs = ctx.needs_input_grad[:2]
    dx, dprobs = _glu_backward(grad_out, x, probs, ctx.kind, need_probs)
    return dx if need_x else None, dprobs if need_probs else None, None


def _backward_forward(grad_out: torch.Tensor, x: torch.Tensor, probs: torch.Tensor | None, kind: str,
                      need_dprobs: bool) -> tuple[torch.Tensor, torch.Tensor]:  # fmt: skip
    dx, dprobs = backends.backward(as_rows(grad_out), as_rows(x), _flat(probs), kind, need_dprobs)
    return dx.view(x.shape), dprobs.view(x.shape[:-1]) if need_dprobs else dprobs


def _backward_fake(grad_out: torch.Tensor, x: torch.Tensor, probs: torch.Tensor | None, kind: str,
                   need_dprobs: bool) -> tuple[torch.Tensor, torch.Tensor]:  # fmt: skip
    dtype = x.dtype if probs is None else probs.dtype
    return x.new_empty(x.shape), x.new_empty(x.shape[:-1] if need_dprobs else (0,), dtype=dtype)


_glu_backward = operator("glu_backward", _backward_forward, _backward_fake)
_glu = operator("glu", _forward, _forward_fake, _setup, _backward)
