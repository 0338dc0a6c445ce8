"""turbo_kernels: GPU operators with their references, checks and launch configurations.

`turbo_kernels.ops` is the public API (`ops.gemm`, `ops.gemm_fp8`, …), `turbo_kernels.backends` chooses what runs it
(`set_backend`, `autotune`, `reset`), `FP8Config` says how an FP8 operator quantizes; torch and triton are imported on
first use.
"""

from __future__ import annotations

import importlib
from typing import Any

__all__ = ["FP8Config", "backends", "ops"]  # pyright: ignore[reportUnsupportedDunderAll]


def __getattr__(name: str) -> Any:
    if name == "FP8Config":
        return importlib.import_module("turbo_kernels.gemm_fp8.fp8").FP8Config
    if name in __all__:
        return importlib.import_module(f"turbo_kernels.{name}")
    raise AttributeError(f"module 'turbo_kernels' has no attribute {name!r}")
