"""The adapter of quantization (docs/projects.md): inputs, the op through its public API, the truth and the judgement.

Codes and scales are outputs; what is judged is the matrix that plain torch reads back from them, along both axes.
Nothing is differentiable here, so a step is a forward.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any

import torch

from turbo_kernels import case_kit
from turbo_kernels import check as checks
from turbo_kernels.bench_kit import Baseline, compiled, row_cases
from turbo_kernels.case_kit import Tensors
from turbo_kernels.gemm_fp8.baselines import LAYOUTS
from turbo_kernels.quantization import SPEC
from turbo_kernels.quantization import reference as truth

__all__ = ["baselines", "bench_cases", "check", "forward", "make_inputs", "reference", "rewrite", "step", "try_config"]

# Codes of both layouts; scales, which are few, left out.
bench_cases = row_cases("hidden", forward=1, code_bytes={v: 1.0 if v == "mxfp4" else 2.0 for v in SPEC.variants})
GATE_OF = {"mxfp4": "fp4"}


def make_inputs(dims: dict[str, int], dtype: str, variant: str, seed: int, device: str) -> Tensors:
    """x, and the variant's number: `forward` is told nothing else."""
    x = torch.empty((dims["rows"], dims["cols"]), dtype=case_kit.torch_dtype(dtype), device=device)
    inputs = {"x": x, "variant": torch.tensor(SPEC.variants.index(variant))}
    rewrite(inputs, seed)
    return inputs


def rewrite(inputs: Tensors, seed: int) -> None:
    case_kit.rewrite({"x": inputs["x"]}, seed)


def forward(inputs: Tensors) -> Tensors:
    from turbo_kernels import ops

    got = ops.quantize(inputs["x"], SPEC.variants[int(inputs["variant"])], transpose=True)
    assert got.q_t is not None and got.scale_t is not None
    return {"out": got.q, "scale": got.scale, "transposed": got.q_t, "scale_t": got.scale_t}


step = forward


def reference(inputs: Tensors) -> Tensors:
    x = inputs["x"].float()
    return {"out": x, "transposed": x.t()}


def check(outputs: Tensors, expected: Tensors, dtype: str, variant: str) -> tuple[bool, dict[str, float], str]:
    read = {}
    for name, scale in (("out", "scale"), ("transposed", "scale_t")):
        if name in outputs and scale in outputs:
            read[name] = truth.dequantize(outputs[name], outputs[scale], variant)[:, : expected[name].shape[1]]
    passed, metrics, detail = checks.judge(
        read, expected, checks.GATES[GATE_OF.get(variant, "fp8_e4m3")], torch.float32
    )
    return passed, {"out_snr": metrics.get("out_snr", float("nan"))}, detail


def try_config(section: str, config: dict[str, Any]) -> AbstractContextManager[None]:
    from turbo_kernels.config import override

    return override("quantization", section, config)


def baselines(inputs: Tensors, variant: str) -> dict[str, Baseline]:
    """Of the variants that torch's own products take: what a user writes, compiled; both layouts."""
    if variant not in LAYOUTS:
        return {}
    x, both = inputs["x"], compiled(LAYOUTS[variant], inputs["x"].device.type)
    return {"torch.compile": Baseline(lambda: both(x))}
