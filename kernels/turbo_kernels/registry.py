"""Every operator family. A new one is a folder and a line here; tests, benches and docs iterate this table."""

from __future__ import annotations

import importlib

from turbo_kernels.spec import Spec

_FOLDERS = (
    "gemm",
    "gemm_fp8",
    "gemm_fp4",
    "grouped_gemm",
    "grouped_gemm_fp8",
    "quantization",
    "activation",
    "normalization",
)
FAMILIES: tuple[Spec, ...] = tuple(importlib.import_module(f"turbo_kernels.{folder}").SPEC for folder in _FOLDERS)


def family(name: str) -> Spec:
    """The family of that name; ValueError names the ones there are."""
    for spec in FAMILIES:
        if spec.name == name:
            return spec
    raise ValueError(f"no operator {name!r}; there are {', '.join(f.name for f in FAMILIES)}")
