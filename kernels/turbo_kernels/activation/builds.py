"""What the activations ship: forward and backward of every kind, with and without a weight per token."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

from turbo_kernels import config
from turbo_kernels.activation.reference import FUNCTIONS
from turbo_kernels.activation.triton_activation import backward_kernel, forward_kernel
from turbo_kernels.builds import Build

_DTYPES = ("bf16", "fp32")


def builds(arch: str) -> Iterator[Build]:
    launches = config.read("activation", arch)
    for (name, params), kind, probs, dtype in itertools.product(launches.items(), FUNCTIONS, (False, True), _DTYPES):
        backward = name == "backward"
        tensors = ("dy_ptr", "x_ptr", "dx_ptr") if backward else ("x_ptr", "y_ptr")
        gradient = {"DPROBS": probs} if backward else {}
        yield Build(
            label=f"activation {name} {kind} {dtype}{' probs' if probs else ''}",
            kernel=backward_kernel if backward else forward_kernel,
            types=dict.fromkeys(tensors, f"*{dtype}") | {"p_ptr": "*fp32", "dp_ptr": "*fp32"},
            constants={
                "KIND": kind, "PROBS": probs, "BLOCK_ROWS": params["BLOCK_ROWS"], "BLOCK_COLS": params["BLOCK_COLS"],
                **gradient,
            },
            options={"num_warps": params["num_warps"]},
            unit=frozenset({"T", "stride_p"}),
        )  # fmt: skip
