"""Who computes a gated activation: our kernels, or torch operators in fp32."""

from __future__ import annotations

import torch

from turbo_kernels.activation import triton_activation
from turbo_kernels.activation.reference import gated
from turbo_kernels.arch import unrunnable
from turbo_kernels.dispatch import AutoKernelDispatcher, Backend
from turbo_kernels.row_kit import NAMES


def _torch_forward(x: torch.Tensor, probs: torch.Tensor | None, kind: str) -> torch.Tensor:
    return gated(x.float(), None if probs is None else probs.float(), kind).to(x.dtype)


def _torch_backward(grad_out: torch.Tensor, x: torch.Tensor, probs: torch.Tensor | None, kind: str,
                    need_dprobs: bool) -> tuple[torch.Tensor, torch.Tensor]:  # fmt: skip
    wide, dy = x.detach().float().requires_grad_(), grad_out.float()
    with torch.enable_grad():
        y = gated(wide, None, kind)
    weighted = dy if probs is None else dy * probs.float().unsqueeze(-1)
    (dx,) = torch.autograd.grad(y, wide, weighted)
    dtype = x.dtype if probs is None else probs.dtype
    dprobs = (y.detach() * dy).sum(-1).to(dtype) if need_dprobs else x.new_empty(0, dtype=dtype)
    return dx.to(x.dtype), dprobs


# forward(x[T, 2H], probs[T] or None, kind) -> y[T, H]; kind: a key of reference.FUNCTIONS
forward = AutoKernelDispatcher(
    "activation", "", lambda x, *rest: NAMES[x.dtype],
    (Backend("TRITON", triton_activation.forward, lambda x, *rest: unrunnable(x)), Backend("TORCH", _torch_forward)),
)  # fmt: skip

# backward(grad_out[T, H], x[T, 2H], probs[T] or None, kind, need_dprobs) -> (dx[T, 2H], dprobs[T] or empty)
backward = AutoKernelDispatcher(
    "activation_backward", "", lambda grad_out, x, *rest: NAMES[x.dtype],
    (
        Backend("TRITON", triton_activation.backward, lambda grad_out, *rest: unrunnable(grad_out)),
        Backend("TORCH", _torch_backward),
    ),
)  # fmt: skip
