"""What the adapters of GEMM-like operators share: inputs from a seed, rewriting in place, the training step.

Imports no kernel: the checker loads it too.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

Tensors = dict[str, torch.Tensor]

DTYPES: dict[str, torch.dtype] = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}


def torch_dtype(name: str) -> torch.dtype:
    if name not in DTYPES:
        raise ValueError(f"no dtype {name!r}; there are {', '.join(DTYPES)}")
    return DTYPES[name]


def gemm_inputs(dims: dict[str, int], dtype: str, seed: int, device: str) -> Tensors:
    """a[M, K] and b[N, K], which want gradients, and grad_out[M, N]: standard normal. Dense: B must be 1."""
    if dims.get("B", 1) != 1:
        raise ValueError(f"a dense GEMM has B = 1, got {dims['B']}")
    m, n, k = dims["M"], dims["N"], dims["K"]
    return normal_inputs({"a": (m, k), "b": (n, k), "grad_out": (m, n)}, dtype, seed, device)


def normal_inputs(sizes: dict[str, tuple[int, ...]], dtype: str, seed: int, device: str) -> Tensors:
    """Standard normal tensors of these sizes; all but grad_out want gradients."""
    tensors = {name: torch.empty(size, dtype=torch_dtype(dtype), device=device) for name, size in sizes.items()}
    rewrite(tensors, seed)
    return {name: t.requires_grad_(name != "grad_out") for name, t in tensors.items()}


@torch.no_grad()
def rewrite(inputs: Tensors, seed: int) -> None:
    """New contents in place, the same for the same seed on the same device."""
    generator = torch.Generator(next(iter(inputs.values())).device).manual_seed(seed)
    for name in sorted(inputs):
        if inputs[name].is_floating_point():
            inputs[name].normal_(generator=generator)


def training_step(op: Callable[[torch.Tensor, torch.Tensor], torch.Tensor], inputs: Tensors) -> Tensors:
    """Forward and backward; the gradients are those of `inputs`' own a and b, which start without any."""
    out = op(inputs["a"], inputs["b"])
    out.backward(inputs["grad_out"])
    grads = {"da": inputs["a"].grad, "db": inputs["b"].grad}
    return {"out": out.detach(), **{name: g for name, g in grads.items() if g is not None}}
