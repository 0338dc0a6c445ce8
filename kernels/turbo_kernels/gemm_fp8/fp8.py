"""How an FP8 GEMM quantizes. Standard library only: `turbo_kernels.FP8Config` imports no torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

VARIANTS = ("blockwise", "tensorwise", "rowwise", "mxfp8")
# format -> the encodings of (activations and weights, gradients)
FORMATS: Mapping[str, tuple[str, str]] = MappingProxyType(
    {"e4m3": ("e4m3", "e4m3"), "e5m2": ("e5m2", "e5m2"), "hybrid": ("e4m3", "e5m2")}
)


@dataclass(frozen=True)
class FP8Config:
    """How an FP8 GEMM quantizes its operands; frozen, so that one serves a whole model.

    Attributes:
        variant: what shares a scale, along the contracted dimension: `blockwise` (1×128; a weight's 128×128),
            `tensorwise` (the tensor), `rowwise` (a row), `mxfp8` (1×32, the scale a power of two: OCP Microscaling).
        format: `e4m3` (3 mantissa bits), `e5m2` (2, more range), or `hybrid`: E4M3, gradients of y in E5M2.

    ValueError names what there is.
    """

    variant: str = "blockwise"
    format: str = "e4m3"

    def __post_init__(self) -> None:
        for what, given, known in (("variant", self.variant, VARIANTS), ("format", self.format, FORMATS)):
            if given not in known:
                raise ValueError(f"FP8Config: no {what} {given!r}; there are {', '.join(known)}")

    @property
    def encodings(self) -> tuple[str, str]:
        """Of (activations and weights, gradients): e4m3 or e5m2."""
        return FORMATS[self.format]
