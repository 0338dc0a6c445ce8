"""The truth beside gemm_fp8: the unquantized product in fp32, and blockwise quantization and its inverse in plain torch."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F

BLOCK = 128
TINY = 1e-12


def step(a: torch.Tensor, b: torch.Tensor, grad_out: torch.Tensor) -> dict[str, torch.Tensor]:
    """out[M, N] = a[M, K]·b[N, K]ᵀ and both gradients, fp32, from inputs that nothing has quantized."""
    a, b, grad_out = a.detach().float(), b.detach().float(), grad_out.detach().float()
    return {"out": a @ b.T, "da": grad_out @ b, "db": grad_out.T @ a}


def quantize(x: torch.Tensor, dtype: torch.dtype, whole: bool) -> tuple[torch.Tensor, torch.Tensor]:
    """x[M, K] -> q[M, ⌈K⌉] in `dtype` and the fp32 scale that each element has, of the same shape.

    One scale per 1×128 along K, or per 128×128 (`whole`). scale = max|x|/max(dtype); q = x · (max(dtype)/max|x|).
    """
    M, K = x.shape
    pad_m, pad_k = -M % BLOCK if whole else 0, -K % BLOCK
    x = F.pad(x.float(), (0, pad_k, 0, pad_m))
    rows = BLOCK if whole else 1
    blocks = x.view(x.shape[0] // rows, rows, x.shape[1] // BLOCK, BLOCK)
    amax = blocks.abs().amax(dim=(1, 3), keepdim=True).clamp_min(TINY)
    largest = torch.full_like(amax, torch.finfo(dtype).max)
    q = (blocks * torch.div(largest, amax)).to(dtype)
    scale = torch.div(amax, largest).expand_as(blocks)
    return q.reshape(x.shape)[:M], scale.reshape(x.shape)[:M]


def _spread(blocks: torch.Tensor, size: int) -> torch.Tensor:
    return blocks.repeat_interleave(size, -1)


def _power(code: torch.Tensor) -> torch.Tensor:
    """E8M0 -> fp32: 2^(code − 127), 255 is NaN."""
    power = torch.ldexp(torch.ones_like(code, dtype=torch.float32), code.int() - 127)
    return power.masked_fill(code == 255, torch.nan)


# How a stored scale lies over its codes [rows, K]; `weight_t` is a transposed weight's, whose scales aren't transposed.
_SCALES: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "tensorwise": lambda scale: scale,
    "rowwise": lambda scale: scale[:, None],
    "blockwise": lambda scale: _spread(scale.t(), BLOCK),
    "weight": lambda scale: _spread(_spread(scale.t(), BLOCK).t(), BLOCK),
    "weight_t": lambda scale: _spread(_spread(scale, BLOCK).t(), BLOCK),
    "mxfp8": lambda scale: _spread(_power(scale), 32),
}


def values(q: torch.Tensor, scale: torch.Tensor, layout: str) -> torch.Tensor:
    """fp32 q · scale, of q's shape; `layout`: a variant, `weight` or `weight_t`."""
    spread = _SCALES[layout](scale)
    return q.float() * (spread[: q.shape[0]] if spread.ndim == 2 else spread)
