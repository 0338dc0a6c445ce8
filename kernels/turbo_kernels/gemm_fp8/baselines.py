"""What a user can assemble of an fp8 training step from torch alone: compiled quantization and torch._scaled_mm."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

import torch
from torch.nn import functional as F

from turbo_kernels.arch import fp8_dtype, fp8_max
from turbo_kernels.bench_kit import Baseline, compiled, differentiable
from turbo_kernels.case_kit import Tensors

BLOCK = 128
TINY = 1e-12


class Scaled(NamedTuple):
    """fp8 codes [R, C] and their scales, laid out as torch._scaled_mm wants those of its first operand."""

    q: torch.Tensor
    scale: torch.Tensor


def _codes(x: torch.Tensor, amax: torch.Tensor) -> Scaled:
    scale = amax.clamp_min(TINY) / fp8_max()
    return Scaled((x / scale).clamp(-fp8_max(), fp8_max()).to(fp8_dtype()), scale)


def _tensor(x: torch.Tensor) -> Scaled:
    wide = x.contiguous().float()
    return _codes(wide, wide.abs().amax())


def _rows(x: torch.Tensor) -> Scaled:
    """One scale a row, [R, 1]."""
    wide = x.contiguous().float()
    return _codes(wide, wide.abs().amax(1, keepdim=True))


def _blocks(x: torch.Tensor) -> Scaled:
    """One scale per 1×128, [R, C/128] with the rows next to each other."""
    R, C = x.shape
    wide = x.contiguous().float().view(R, C // BLOCK, BLOCK)
    q, scale = _codes(wide, wide.abs().amax(2, keepdim=True))
    return Scaled(q.view(R, C), scale.view(R, -1).t().contiguous().t())


def _squares(x: torch.Tensor) -> tuple[Scaled, Scaled]:
    """One scale per 128×128, of x and of xᵀ."""
    R, C = x.shape
    wide = x.float().view(R // BLOCK, BLOCK, C // BLOCK, BLOCK)
    q, scale = _codes(wide, wide.abs().amax((1, 3), keepdim=True))
    q, scale = q.view(R, C), scale.view(R // BLOCK, C // BLOCK)
    return Scaled(q, scale), Scaled(q.t().contiguous(), scale.t().contiguous())


def _both(quantize: Callable[[torch.Tensor], Scaled]) -> Callable[[torch.Tensor], tuple[Scaled, Scaled]]:
    return lambda x: (quantize(x), quantize(x.t()))


def _tensor_both(x: torch.Tensor) -> tuple[Scaled, Scaled]:
    """One scale for both layouts."""
    q, scale = _tensor(x)
    return Scaled(q, scale), Scaled(q.t().contiguous(), scale)


# variant -> (x[R, C] -> along C; weight[N, K] -> along K and along N)
RECIPES: dict[str, tuple[Callable[[torch.Tensor], Scaled], Callable[[torch.Tensor], tuple[Scaled, Scaled]]]] = {
    "tensorwise": (_tensor, _tensor_both),
    "rowwise": (_rows, _both(_rows)),
    "blockwise": (_blocks, _squares),
}


# variant of quantization -> x[R, C] along C and along R
LAYOUTS: dict[str, Callable[[torch.Tensor], tuple[Scaled, Scaled]]] = {
    "tensorwise": _tensor_both,
    "rowwise": _both(_rows),
    "blockwise": _both(_blocks),
    "blockwise_weight": _squares,
}


def _product(x: Scaled, y: Scaled) -> torch.Tensor:
    """x·yᵀ in bf16."""
    product = torch._scaled_mm  # pyright: ignore[reportPrivateImportUsage]
    return product(x.q, y.q.t(), x.scale, y.scale.t(), out_dtype=torch.bfloat16)


def baselines(inputs: Tensors, variant: str) -> Mapping[str, Baseline]:
    """bf16 by torch; and of the variants that torch has: a whole step in fp8, and its product alone."""
    found = {"bf16 F.linear": differentiable(F.linear, inputs, ("a", "b"))}
    if variant not in RECIPES:
        return found
    rows, weight = (compiled(f, inputs["a"].device.type) for f in RECIPES[variant])
    a, b, dy = (inputs[name].detach() for name in ("a", "b", "grad_out"))

    def forward() -> tuple[torch.Tensor, Scaled]:
        along_k, along_n = weight(b)
        return _product(rows(a), along_k), along_n

    def step() -> tuple[torch.Tensor, ...]:
        out, along_n = forward()
        return out, _product(rows(dy), along_n), _product(rows(dy.t()), rows(a.t()))

    ready: list[Scaled] = []

    def product() -> torch.Tensor:
        if not ready:
            ready.extend((rows(a), weight(b)[0]))
        return _product(*ready)

    return found | {
        f"fp8 torch._scaled_mm {variant}": Baseline(forward, step),
        f"torch._scaled_mm {variant}, quantized before": Baseline(product),
    }
