"""How an FP8 GEMM quantizes."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class FP8Config:
    """`variant`: what shares a scale. `format`: `e4m3`, `e5m2`, or `hybrid` (E4M3 forward, gradients E5M2)."""

    variant: str = "blockwise"
    format: str = "e4m3"
