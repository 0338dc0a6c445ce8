"""turbo_kernels: GPU operators with their references, checks and launch configurations.

`turbo_kernels.ops` is the public API (`ops.gemm`, `ops.gemm_fp8`); torch and triton are imported on first use.
"""

from __future__ import annotations

import importlib
from types import ModuleType

__all__ = ["ops"]  # pyright: ignore[reportUnsupportedDunderAll]


def __getattr__(name: str) -> ModuleType:
    if name == "ops":
        return importlib.import_module("turbo_kernels.ops")
    raise AttributeError(f"module 'turbo_kernels' has no attribute {name!r}")
