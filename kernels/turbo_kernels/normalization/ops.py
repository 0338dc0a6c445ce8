"""RMSNorm with its gradients."""

from __future__ import annotations

from typing import Any

import torch

from turbo_kernels.library import operator
from turbo_kernels.normalization import backends
from turbo_kernels.row_kit import NAMES, as_rows


def rmsnorm(x: torch.Tensor, weight: torch.Tensor, eps: float = 1e-6) -> torch.Tensor:
    """y[..., H] = x·weight / √(mean(x²) + eps) over the last dimension (Zhang and Sennrich, arXiv:1910.07467).

    Args:
        x: [..., H], bf16, fp16 or fp32, any strides; computed in fp32, y in x's dtype.
        weight: [H], fp32 or x's dtype.

    Differentiable in both; backward saves x, weight and a number a row. Bitwise repeatable on one GPU.
    """
    if not x.ndim or not x.shape[-1] or weight.shape != x.shape[-1:]:
        raise ValueError(
            f"rmsnorm: x {tuple(x.shape)}, weight {tuple(weight.shape)}; give [..., H] and [H], H at least 1"
        )
    if x.dtype not in NAMES or weight.dtype not in (torch.float32, x.dtype):
        raise TypeError(f"rmsnorm: x {x.dtype}, weight {weight.dtype}; x is bf16, fp16 or fp32, the weight x's or fp32")
    if x.device != weight.device:
        raise ValueError(f"rmsnorm: x is on {x.device}, weight on {weight.device}")
    return _rmsnorm(x, weight, eps)[0]


def _forward(x: torch.Tensor, weight: torch.Tensor, eps: float) -> tuple[torch.Tensor, torch.Tensor]:
    y, rstd = backends.forward(as_rows(x), weight.contiguous(), eps)
    return y.view(x.shape), rstd


def _forward_fake(x: torch.Tensor, weight: torch.Tensor, eps: float) -> tuple[torch.Tensor, torch.Tensor]:
    return x.new_empty(x.shape), x.new_empty(x.shape.numel() // x.shape[-1], dtype=torch.float32)


def _setup(ctx: Any, inputs: tuple[Any, ...], output: tuple[torch.Tensor, torch.Tensor]) -> None:
    x, weight, _ = inputs
    ctx.mark_non_differentiable(output[1])
    ctx.set_materialize_grads(False)  # nor filled with zeros, which would be a launch
    ctx.save_for_backward(x, weight, output[1])


def _backward(ctx: Any, grad_out: torch.Tensor, _: Any) -> tuple[torch.Tensor | None, ...]:
    need_x, need_weight = ctx.needs_input_grad[:2]
    dx, dweight = _rmsnorm_backward(grad_out, *ctx.saved_tensors, need_weight)
    return dx if need_x else None, dweight if need_weight else None, None


def _backward_forward(grad_out: torch.Tensor, x: torch.Tensor, weight: torch.Tensor, rstd: torch.Tensor,
                      need_dweight: bool) -> tuple[torch.Tensor, torch.Tensor]:  # fmt: skip
    dx, dweight = backends.backward(as_rows(grad_out), as_rows(x), weight.contiguous(), rstd, need_dweight)
    return dx.view(x.shape), dweight


def _backward_fake(grad_out: torch.Tensor, x: torch.Tensor, weight: torch.Tensor, rstd: torch.Tensor,
                   need_dweight: bool) -> tuple[torch.Tensor, torch.Tensor]:  # fmt: skip
    return x.new_empty(x.shape), weight.new_empty(weight.shape if need_dweight else (0,))


_rmsnorm_backward = operator("rmsnorm_backward", _backward_forward, _backward_fake)
_rmsnorm = operator("rmsnorm", _forward, _forward_fake, _setup, _backward)
