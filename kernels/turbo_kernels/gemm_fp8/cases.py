"""The adapter of gemm_fp8 (docs/projects.md): inputs, the op through its public API, the truth and the judgement.

A variant may carry its format: `rowwise`, `rowwise_e5m2`, `rowwise_hybrid`.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any

import torch

from turbo_kernels import case_kit
from turbo_kernels import check as checks
from turbo_kernels.bench_kit import dense_cases as bench_cases
from turbo_kernels.case_kit import Tensors, rewrite
from turbo_kernels.gemm_fp8 import reference as truth
from turbo_kernels.gemm_fp8.baselines import baselines
from turbo_kernels.gemm_fp8.fp8 import FORMATS, VARIANTS, FP8Config

__all__ = [
    "baselines", "bench_cases", "check", "forward", "make_inputs", "reference", "rewrite", "step", "try_config",
    "weight_work",
]  # fmt: skip

CONFIGS = [FP8Config(variant, format) for format in FORMATS for variant in VARIANTS]


def config_of(variant: str) -> FP8Config:
    """`<variant>` or `<variant>_<format>`; the default for "". ValueError names what there is."""
    return FP8Config(*variant.split("_")) if variant else FP8Config()


def make_inputs(dims: dict[str, int], dtype: str, variant: str, seed: int, device: str) -> Tensors:
    """Those of every GEMM; beside them, for all but the default, `config`, whose length says which: a step sees tensors
    alone, and must not wait for the device to read one."""
    inputs = case_kit.gemm_inputs(dims, dtype, seed, device)
    which = CONFIGS.index(config_of(variant))
    return inputs | ({"config": torch.zeros(which, dtype=torch.uint8, device=device)} if which else {})


def _config(inputs: Tensors) -> FP8Config:
    return CONFIGS[inputs["config"].numel() if "config" in inputs else 0]


def _run(inputs: Tensors, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    from turbo_kernels import ops

    return ops.gemm_fp8(a, b, config=_config(inputs))


def forward(inputs: Tensors) -> Tensors:
    return {"out": _run(inputs, inputs["a"], inputs["b"])}


def step(inputs: Tensors) -> Tensors:
    return case_kit.training_step(lambda a, b: _run(inputs, a, b), inputs)


def reference(inputs: Tensors) -> Tensors:
    return truth.step(inputs["a"], inputs["b"], inputs["grad_out"])


def check(outputs: Tensors, expected: Tensors, dtype: str, variant: str) -> tuple[bool, dict[str, float], str]:
    gate = checks.GATES[f"fp8_{config_of(variant).format}"]
    return checks.judge(outputs, expected, gate, case_kit.torch_dtype(dtype))


def weight_work(inputs: Tensors) -> object:
    """What depends on the weight alone: all that a cache of it could save."""
    from turbo_kernels.gemm_fp8.ops import SCHEMES

    config = _config(inputs)
    return SCHEMES[config.variant].weight(inputs["b"], True, config.encodings[0])


def try_config(section: str, config: dict[str, Any]) -> AbstractContextManager[None]:
    from turbo_kernels.config import override

    return override("gemm_fp8", section, config)
