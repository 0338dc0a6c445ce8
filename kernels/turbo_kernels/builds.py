"""What a family ships, as builds for GPUs that needn't be there: each kernel with its types, constants and configuration.

A family's `builds.py` has `builds(arch) -> Iterator[Build]`: one for every kernel of it in every shipped configuration of
that architecture. It imports Triton kernels and so must run in a process without TRITON_INTERPRET.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

FP8 = {"gfx942": "fp8e4b8", "gfx950": "fp8e4nv", "sm_90": "fp8e4nv"}  # E4M3, as Triton names it
BF8 = {"gfx942": "fp8e5b16", "gfx950": "fp8e5", "sm_90": "fp8e5"}  # E5M2
FP8_MAX = {"gfx942": 240.0, "gfx950": 448.0, "sm_90": 448.0}


@dataclass(frozen=True)
class Build:
    """One compilation of a `@triton.jit` kernel.

    `types` gives the pointers' types by argument name ("*bf16"); other arguments are i32. `constants` are the constexprs,
    the launch configuration's among them; `options` Triton's (num_warps, num_stages). Pointers and sizes are promised to
    be multiples of 16 except those in `unit`. `matrix` names the operands of the matrix instruction that must be
    emitted (`bf16`, `fp8`, `bf8`, …), or is None where the kernel multiplies nothing.
    """

    label: str
    kernel: Any
    types: Mapping[str, str]
    constants: Mapping[str, Any]
    options: Mapping[str, int]
    matrix: str | None = None
    unit: frozenset[str] = frozenset()


def split(params: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, int]]:
    """A section's parameters as (constants, Triton's options)."""
    options = {k: v for k, v in params.items() if k.startswith("num_")}
    return {k: v for k, v in params.items() if k not in options}, options
