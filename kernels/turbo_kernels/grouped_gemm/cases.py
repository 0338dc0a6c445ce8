"""The adapter of grouped_gemm (docs/projects.md): inputs, the op through its public API, the truth and the judgement."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any

from turbo_kernels import check as checks
from turbo_kernels import grouped_kit
from turbo_kernels.bench_kit import moe_cases as bench_cases
from turbo_kernels.case_kit import Tensors, torch_dtype
from turbo_kernels.grouped_gemm import reference as truth
from turbo_kernels.grouped_kit import FILLS, baselines, rewrite

__all__ = [
    "FILLS",
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


def make_inputs(dims: dict[str, int], dtype: str, variant: str, seed: int, device: str) -> Tensors:
    return grouped_kit.make_inputs(dims, dtype, seed, device)


def forward(inputs: Tensors) -> Tensors:
    from turbo_kernels import ops

    return {"out": ops.grouped_gemm(inputs["a"], inputs["b"], inputs["group_lens"])}


def step(inputs: Tensors) -> Tensors:
    from turbo_kernels import ops

    return grouped_kit.training_step(ops.grouped_gemm, inputs)


def reference(inputs: Tensors) -> Tensors:
    return truth.step(inputs["a"], inputs["b"], inputs["group_lens"], inputs["grad_out"])


def check(outputs: Tensors, expected: Tensors, dtype: str, variant: str) -> tuple[bool, dict[str, float], str]:
    return grouped_kit.judge(outputs, expected, checks.GATES[dtype], torch_dtype(dtype))


def try_config(section: str, config: dict[str, Any]) -> AbstractContextManager[None]:
    from turbo_kernels.config import override

    return override("grouped_gemm", section, config)
