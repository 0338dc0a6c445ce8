"""The adapter of gemm (docs/projects.md): inputs, the op through its public API, the truth and the judgement."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any

from torch.nn import functional as F

from turbo_kernels import case_kit
from turbo_kernels import check as checks
from turbo_kernels.bench_kit import Baseline, differentiable
from turbo_kernels.bench_kit import dense_cases as bench_cases
from turbo_kernels.case_kit import Tensors, rewrite
from turbo_kernels.gemm import reference as truth

__all__ = ["baselines", "bench_cases", "check", "forward", "make_inputs", "reference", "rewrite", "step", "try_config"]


def make_inputs(dims: dict[str, int], dtype: str, variant: str, seed: int, device: str) -> Tensors:
    return case_kit.gemm_inputs(dims, dtype, seed, device)


def forward(inputs: Tensors) -> Tensors:
    from turbo_kernels import ops

    return {"out": ops.gemm(inputs["a"], inputs["b"])}


def step(inputs: Tensors) -> Tensors:
    from turbo_kernels import ops

    return case_kit.training_step(ops.gemm, inputs)


def reference(inputs: Tensors) -> Tensors:
    return truth.step(inputs["a"], inputs["b"], inputs["grad_out"])


def check(outputs: Tensors, expected: Tensors, dtype: str, variant: str) -> tuple[bool, dict[str, float], str]:
    return checks.judge(outputs, expected, checks.GATES[dtype], case_kit.torch_dtype(dtype))


def try_config(section: str, config: dict[str, Any]) -> AbstractContextManager[None]:
    from turbo_kernels.config import override

    return override("gemm", section, config)


def baselines(inputs: Tensors, variant: str) -> dict[str, Baseline]:
    return {"F.linear": differentiable(F.linear, inputs, ("a", "b"))}
