"""The adapter of RMSNorm (docs/projects.md): inputs, the op through its public API, the truth and the judgement."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any

import torch
from torch.nn import functional as F

from turbo_kernels import case_kit
from turbo_kernels import check as checks
from turbo_kernels.bench_kit import Baseline, compiled, differentiable, row_cases
from turbo_kernels.case_kit import Tensors, rewrite
from turbo_kernels.normalization import reference as truth

__all__ = [
    "WEIGHTS",
    "baselines",
    "bench_cases",
    "check",
    "forward",
    "make_inputs",
    "reference",
    "rewrite",
    "step",
    "try_config",
]

bench_cases = row_cases("hidden", forward=2, step=5)
WEIGHTS = ("weight",)
EPS = 1e-6


def make_inputs(dims: dict[str, int], dtype: str, variant: str, seed: int, device: str) -> Tensors:
    rows, cols = dims["rows"], dims["cols"]
    sizes = {"x": (rows, cols), "weight": (cols,), "grad_out": (rows, cols)}
    return case_kit.normal_inputs(sizes, dtype, seed, device)


def forward(inputs: Tensors) -> Tensors:
    from turbo_kernels import ops

    return {"out": ops.rmsnorm(inputs["x"], inputs["weight"], EPS)}


def step(inputs: Tensors) -> Tensors:
    out = forward(inputs)["out"]
    out.backward(inputs["grad_out"])
    grads = {"dx": inputs["x"].grad, "dweight": inputs["weight"].grad}
    return {"out": out.detach(), **{name: g for name, g in grads.items() if g is not None}}


def reference(inputs: Tensors) -> Tensors:
    return truth.step(inputs["x"], inputs["weight"], inputs["grad_out"], EPS)


def check(outputs: Tensors, expected: Tensors, dtype: str, variant: str) -> tuple[bool, dict[str, float], str]:
    """All three are judged; the benchmark has columns for out and dx alone."""
    passed, metrics, detail = checks.judge(outputs, expected, checks.GATES[dtype], case_kit.torch_dtype(dtype))
    return passed, {name: db for name, db in metrics.items() if name != "dweight_snr"}, detail


def try_config(section: str, config: dict[str, Any]) -> AbstractContextManager[None]:
    from turbo_kernels.config import override

    return override("normalization", section, config)


def baselines(inputs: Tensors, variant: str) -> dict[str, Baseline]:
    def eager(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return F.rms_norm(x, weight.shape, weight, EPS)

    return {
        "F.rms_norm": differentiable(eager, inputs, ("x", "weight")),
        "F.rms_norm compiled": differentiable(compiled(eager, inputs["x"].device.type), inputs, ("x", "weight")),
    }
