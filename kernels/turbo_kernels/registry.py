"""Every operator family. A new one is a folder and a line here; tests, benches and docs iterate this table."""

from __future__ import annotations

from turbo_kernels import (
    activation,
    gemm,
    gemm_fp4,
    gemm_fp8,
    grouped_gemm,
    grouped_gemm_fp8,
    normalization,
    quantization,
)
from turbo_kernels.spec import Spec

FAMILIES: tuple[Spec, ...] = (
    gemm.SPEC,
    gemm_fp8.SPEC,
    gemm_fp4.SPEC,
    grouped_gemm.SPEC,
    grouped_gemm_fp8.SPEC,
    quantization.SPEC,
    activation.SPEC,
    normalization.SPEC,
)


def family(name: str) -> Spec:
    """The family of that name; ValueError names the ones there are."""
    for spec in FAMILIES:
        if spec.name == name:
            return spec
    raise ValueError(f"no operator {name!r}; there are {', '.join(f.name for f in FAMILIES)}")
