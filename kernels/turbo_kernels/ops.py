"""The public operators, found by name in the registry and imported on first use.

What runs them is chosen in `turbo_kernels.backends`: `set_backend("TRITON", op="gemm")`, `autotune(True)`, `using(…)` for a
with block, `reset()`; or by TURBO_GEMM_BACKEND and its like (docs/dispatch.md).
"""

from __future__ import annotations

import importlib
from typing import Any

from turbo_kernels.registry import FAMILIES

_FAMILY = {function: f.name for f in FAMILIES for function in f.functions()}

__all__ = list(_FAMILY)  # pyright: ignore[reportUnsupportedDunderAll]


def __getattr__(name: str) -> Any:
    if name in _FAMILY:
        return getattr(importlib.import_module(f"turbo_kernels.{_FAMILY[name]}.ops"), name)
    raise AttributeError(f"turbo_kernels.ops has no operator {name!r}; there are {', '.join(__all__)}")
