"""The truth beside quantization, in plain torch: codes and scales bit by bit (formats.py has the layouts)."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from turbo_kernels.gemm_fp8 import reference as blockwise
from turbo_kernels.gemm_fp8.reference import BLOCK, TINY
from turbo_kernels.quantization.formats import MX, MX_BLOCK, limits

E2M1_VALUES = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
Pair = tuple[torch.Tensor, torch.Tensor]


def quantize(x: torch.Tensor, variant: str, dtype: torch.dtype | None) -> Pair:
    """x[M, K] -> (q, scale) along K in an fp8 `dtype`, or in E2M1 (mxfp4) for None."""
    if variant in MX:
        return _microscaled(x, dtype)
    assert dtype is not None
    if variant.startswith("blockwise"):
        whole = variant == "blockwise_weight"
        q, scale = blockwise.quantize(x, dtype, whole)
        return q, scale[::BLOCK, ::BLOCK].contiguous() if whole else scale[:, ::BLOCK].T.contiguous()
    x = x.float()
    magnitude = x.abs().flatten() if variant == "tensorwise" else x.abs()
    if not x.numel():
        magnitude = magnitude.new_zeros((*magnitude.shape[:-1], 1))
    amax = magnitude.amax(dim=-1, keepdim=True).clamp_min(TINY)
    largest = torch.full_like(amax, torch.finfo(dtype).max)
    return (x * torch.div(largest, amax)).to(dtype), torch.div(amax, largest).flatten()


def _microscaled(x: torch.Tensor, dtype: torch.dtype | None) -> Pair:
    rows = x.shape[0]
    blocks = F.pad(x.float(), (0, -x.shape[1] % MX_BLOCK)).view(rows, -(-x.shape[1] // MX_BLOCK), MX_BLOCK)
    amax = blocks.abs().amax(dim=2, keepdim=True) if blocks.numel() else blocks[:, :, :1]
    mantissa, exponent = torch.frexp(amax)  # amax = mantissa · 2^exponent with a mantissa in [1/2, 1)
    _, emax, overflow = limits(dtype)
    scale = (exponent - 1 + (2 * mantissa >= overflow) - emax + 127).clamp_min(0)
    scale = torch.where(torch.isfinite(amax), torch.where(amax == 0, 0, scale), 255)
    inverse = torch.where(scale == 255, 0.0, torch.ldexp(torch.ones_like(amax), 127 - scale))
    q = (blocks * inverse).reshape(rows, -1)
    return pack(e2m1_codes(q)) if dtype is None else _saturated(q, dtype), scale.to(torch.uint8).view(rows, -1)


def _saturated(x: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    largest = torch.finfo(dtype).max
    return x.clamp(-largest, largest).to(dtype)  # clamp keeps NaN


def e2m1_codes(x: torch.Tensor) -> torch.Tensor:
    """fp32 -> E2M1 codes 0 to 15: the nearest value, of two the one with the even code; NaN becomes 0."""
    values = torch.tensor(E2M1_VALUES, device=x.device)
    code = torch.zeros(x.shape, dtype=torch.uint8, device=x.device)
    for i, middle in enumerate(((values[1:] + values[:-1]) / 2).tolist()):
        code += x.abs() >= middle if i % 2 else x.abs() > middle
    return torch.where(torch.isnan(x), 0, code | torch.signbit(x).to(torch.uint8) << 3)


def pack(codes: torch.Tensor) -> torch.Tensor:
    """Codes [M, K] two a byte, the lower k in the low nibble."""
    return codes[:, ::2] | codes[:, 1::2] << 4


def unpack(packed: torch.Tensor) -> torch.Tensor:
    """The fp32 values of packed E2M1 codes."""
    values = torch.tensor(E2M1_VALUES + tuple(-v for v in E2M1_VALUES), device=packed.device)
    return values[torch.stack((packed & 15, packed >> 4), dim=-1).flatten(-2).long()]


def scale_values(scale: torch.Tensor) -> torch.Tensor:
    """E8M0 -> fp32; fp32 stays."""
    if scale.dtype != torch.uint8:
        return scale
    value = torch.ldexp(torch.ones(scale.shape, device=scale.device), scale.int() - 127)
    return torch.where(scale == 255, torch.nan, value)


def dequantize(q: torch.Tensor, scale: torch.Tensor, variant: str) -> torch.Tensor:
    """fp32, with the padding."""
    values = unpack(q) if variant == "mxfp4" else q.float()
    scale = scale_values(scale)
    if variant in ("tensorwise", "rowwise"):
        return values * scale.view(-1, 1)
    if variant == "blockwise":
        scale = scale.T
    if variant == "blockwise_weight":
        scale = scale.repeat_interleave(BLOCK, dim=0)[: values.shape[0]]
    return values * scale.repeat_interleave(MX_BLOCK if variant in MX else BLOCK, dim=1)
