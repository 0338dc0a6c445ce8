"""The adapter of grouped_gemm_fp8 (docs/projects.md): inputs, the op through its public API, the truth, the judgement."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any

import torch

from turbo_kernels import check as checks
from turbo_kernels import grouped_kit
from turbo_kernels.bench_kit import moe_cases as bench_cases
from turbo_kernels.case_kit import Tensors, torch_dtype
from turbo_kernels.grouped_gemm_fp8 import SPEC
from turbo_kernels.grouped_gemm_fp8 import reference as truth
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
    "weight_work",
]


def make_inputs(dims: dict[str, int], dtype: str, variant: str, seed: int, device: str) -> Tensors:
    """Those of grouped_kit, and `variant`, whose length says which: a step sees only tensors, and must not wait for the
    device to read a value."""
    which = torch.zeros(1 + SPEC.variants.index(variant), dtype=torch.uint8, device=device)
    return grouped_kit.make_inputs(dims, dtype, seed, device) | {"variant": which}


def variant_of(inputs: Tensors) -> str:
    return SPEC.variants[inputs["variant"].numel() - 1]


def forward(inputs: Tensors) -> Tensors:
    from turbo_kernels import ops
    from turbo_kernels.gemm_fp8.fp8 import FP8Config

    config = FP8Config(variant_of(inputs))
    return {"out": ops.grouped_gemm_fp8(inputs["a"], inputs["b"], inputs["group_lens"], config=config)}


def step(inputs: Tensors) -> Tensors:
    return grouped_kit.training_step(lambda *_: forward(inputs)["out"], inputs)


def reference(inputs: Tensors) -> Tensors:
    return truth.step(inputs["a"], inputs["b"], inputs["group_lens"], inputs["grad_out"])


def check(outputs: Tensors, expected: Tensors, dtype: str, variant: str) -> tuple[bool, dict[str, float], str]:
    return grouped_kit.judge(outputs, expected, checks.GATES["fp8_e4m3"], torch_dtype(dtype))


def weight_work(inputs: Tensors) -> object:
    """What depends on the weight alone: all that a cache of it could save."""
    from turbo_kernels.grouped_gemm_fp8.triton_grouped_quant import quantize_weight

    return quantize_weight(inputs["b"], variant_of(inputs), "e4m3")


def try_config(section: str, config: dict[str, Any]) -> AbstractContextManager[None]:
    from turbo_kernels.config import override

    return override("grouped_gemm_fp8", section, config)
