"""turbo_kernels: GPU operators with their references, checks and launch configurations.

`turbo_kernels.ops` is the public API (`ops.gemm`, `ops.gemm_fp8`), `turbo_kernels.backends` chooses what runs it
(`set_backend`, `autotune`, `reset`); torch and triton are imported on first use.
"""

from __future__ import annotations

import importlib
from types import ModuleType

__all__ = ["backends", "ops"]  # pyright: ignore[reportUnsupportedDunderAll]


def __getattr__(name: str) -> ModuleType:
    if name in __all__:
        return importlib.import_module(f"turbo_kernels.{name}")
    raise AttributeError(f"module 'turbo_kernels' has no attribute {name!r}")
