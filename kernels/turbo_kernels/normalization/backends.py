"""Who computes RMSNorm: our kernels, or torch operators in fp32."""

from __future__ import annotations

from typing import Any

import torch

from turbo_kernels.arch import unrunnable
from turbo_kernels.dispatch import AutoKernelDispatcher, Backend
from turbo_kernels.normalization import triton_rmsnorm
from turbo_kernels.normalization.reference import rstd_of
from turbo_kernels.row_kit import NAMES


def _torch_forward(x: torch.Tensor, weight: torch.Tensor, eps: float) -> tuple[torch.Tensor, torch.Tensor]:
    rstd = rstd_of(x.float(), eps)
    return (x.float() * rstd * weight.float()).to(x.dtype), rstd.squeeze(-1)


def _torch_backward(grad_out: torch.Tensor, x: torch.Tensor, weight: torch.Tensor, rstd: torch.Tensor,
                    need_dweight: bool) -> tuple[torch.Tensor, torch.Tensor]:  # fmt: skip
    scale, dy = rstd.unsqueeze(-1), grad_out.float()
    xhat, g = x.float() * scale, dy * weight.float()
    dx = scale * (g - xhat * (g * xhat).mean(-1, keepdim=True))
    dweight = (dy * xhat).sum(0).to(weight.dtype) if need_dweight else weight.new_empty(0)
    return dx.to(x.dtype), dweight


def _triton_takes(x: torch.Tensor, *rest: Any) -> str | None:
    most = triton_rmsnorm.MAX_COLS[x.element_size()]
    if x.shape[1] > most:
        return f"a program holds a whole row: at most {most} elements of {x.dtype}, got {x.shape[1]}"
    return unrunnable(x)


# forward(x[T, H], weight[H], eps) -> (y[T, H], rstd fp32 [T])
forward = AutoKernelDispatcher(
    "rmsnorm", "", lambda x, *rest: NAMES[x.dtype],
    (Backend("TRITON", triton_rmsnorm.forward, _triton_takes), Backend("TORCH", _torch_forward)),
)  # fmt: skip

# backward(grad_out[T, H], x[T, H], weight[H], rstd[T], need_dweight) -> (dx[T, H], dweight[H] or empty)
backward = AutoKernelDispatcher(
    "rmsnorm_backward", "", lambda grad_out, x, *rest: NAMES[x.dtype],
    (Backend("TRITON", triton_rmsnorm.backward, _triton_takes), Backend("TORCH", _torch_backward)),
)  # fmt: skip
