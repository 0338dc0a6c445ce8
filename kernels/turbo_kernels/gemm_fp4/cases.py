"""The adapter of gemm_fp4 (docs/projects.md): inputs, the op through its public API, the truth and the judgement."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any

import torch
import torch.nn.functional as F

from turbo_kernels import case_kit
from turbo_kernels import check as checks
from turbo_kernels.bench_kit import Baseline, differentiable
from turbo_kernels.bench_kit import dense_cases as bench_cases
from turbo_kernels.case_kit import Tensors, rewrite
from turbo_kernels.gemm_fp4 import reference as truth

__all__ = ["baselines", "bench_cases", "check", "forward", "make_inputs", "reference", "rewrite", "step", "try_config"]


def make_inputs(dims: dict[str, int], dtype: str, variant: str, seed: int, device: str) -> Tensors:
    return case_kit.gemm_inputs(dims, dtype, seed, device)


def _run(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    from turbo_kernels import ops

    return ops.gemm_fp4(a, b, out_dtype=a.dtype)


def forward(inputs: Tensors) -> Tensors:
    return {"out": _run(inputs["a"], inputs["b"])}


def step(inputs: Tensors) -> Tensors:
    return case_kit.training_step(_run, inputs)


def reference(inputs: Tensors) -> Tensors:
    return truth.step(inputs["a"], inputs["b"], inputs["grad_out"])


def check(outputs: Tensors, expected: Tensors, dtype: str, variant: str) -> tuple[bool, dict[str, float], str]:
    return checks.judge(outputs, expected, checks.GATES["fp4"], case_kit.torch_dtype(dtype))


def weight_work(inputs: Tensors) -> object:
    """What depends on the weight alone: all that a cache of it could save."""
    from turbo_kernels.quantization.triton_quantize import quantize

    return quantize(inputs["b"], "mxfp4", rows=True, cols=True)


def try_config(section: str, config: dict[str, Any]) -> AbstractContextManager[None]:
    from turbo_kernels.config import override

    return override("gemm_fp4", section, config)


def baselines(inputs: Tensors, variant: str) -> dict[str, Baseline]:
    """What a user has without it: the product in the inputs' own dtype."""
    return {"F.linear": differentiable(F.linear, inputs, ("a", "b"))}
