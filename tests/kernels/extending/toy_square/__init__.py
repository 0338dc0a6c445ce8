"""Squares."""

from turbo_kernels.spec import Spec

SPEC = Spec(
    name="toy_square",
    summary="y = x·x",
    variants=("default",),
    dtypes=("fp32",),
    backends={"TRITON": ("cpu",), "TORCH": ("cpu",)},
    sections={},
    outputs=("out", "dx"),
)
