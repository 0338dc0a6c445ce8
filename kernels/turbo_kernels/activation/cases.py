"""The adapter of the gated activations (docs/projects.md): inputs, the op through its public API, truth and judgement.

`cols` is the width of the output, H: x is [rows, 2H]. Among the inputs x goes by its variant's name: what is called
with them must know which one it is.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any

import torch

from turbo_kernels import case_kit
from turbo_kernels import check as checks
from turbo_kernels.activation import SPEC
from turbo_kernels.activation import reference as truth
from turbo_kernels.bench_kit import Baseline, compiled, differentiable, row_cases
from turbo_kernels.case_kit import Tensors, rewrite

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

bench_cases = row_cases("ffn", forward=3, step=8)  # x is two wide, and so is its gradient
WEIGHTS = ()  # no input is updated in training
_KINDS = {"swiglu": "silu", "geglu": "gelu"}


def make_inputs(dims: dict[str, int], dtype: str, variant: str, seed: int, device: str) -> Tensors:
    rows, cols = dims["rows"], dims["cols"]
    return case_kit.normal_inputs({variant: (rows, 2 * cols), "grad_out": (rows, cols)}, dtype, seed, device)


def _variant(inputs: Tensors) -> str:
    return next(v for v in SPEC.variants if v in inputs)


def forward(inputs: Tensors) -> Tensors:
    from turbo_kernels import ops

    variant = _variant(inputs)
    return {"out": getattr(ops, variant)(inputs[variant])}


def step(inputs: Tensors) -> Tensors:
    out = forward(inputs)["out"]
    out.backward(inputs["grad_out"])
    dx = inputs[_variant(inputs)].grad
    return {"out": out.detach()} | ({} if dx is None else {"dx": dx})


def reference(inputs: Tensors) -> Tensors:
    variant = _variant(inputs)
    return truth.step(inputs[variant], inputs["grad_out"], _KINDS[variant])


def check(outputs: Tensors, expected: Tensors, dtype: str, variant: str) -> tuple[bool, dict[str, float], str]:
    return checks.judge(outputs, expected, checks.GATES[dtype], case_kit.torch_dtype(dtype))


def try_config(section: str, config: dict[str, Any]) -> AbstractContextManager[None]:
    from turbo_kernels.config import override

    return override("activation", section, config)


def baselines(inputs: Tensors, variant: str) -> dict[str, Baseline]:
    def eager(x: torch.Tensor) -> torch.Tensor:
        return truth.gated(x, None, _KINDS[variant])

    return {
        "torch eager": differentiable(eager, inputs, (variant,)),
        "torch.compile": differentiable(compiled(eager, inputs[variant].device.type), inputs, (variant,)),
    }
