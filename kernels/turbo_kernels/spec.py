"""What a family says of itself. Standard library only: reading the registry imports neither torch nor triton."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

# A parameter's legal values; the order is the one shown in errors.
Values = tuple[int | bool, ...]
Section = Mapping[str, Values]

AMD = ("gfx942", "gfx950")
EVERYWHERE = (*AMD, "sm_90", "cpu")
POWERS_TO_256: Values = (16, 32, 64, 128, 256)
GEMM_SECTION: Section = {
    "BLOCK_M": POWERS_TO_256,
    "BLOCK_N": POWERS_TO_256,
    "BLOCK_K": (16, 32, 64, 128, 256),
    "GROUP_M": (1, 2, 4, 8, 16, 32),
    "num_warps": (1, 2, 4, 8, 16),
    "num_stages": (1, 2, 3, 4, 5, 6, 7, 8),
}


@dataclass(frozen=True)
class Spec:
    """One operator family.

    `backends` maps a backend to the architectures it supports, `narrower` a (variant, backend) to those of a variant that
    has fewer; `sections` the launch configuration's sections to their
    parameters; `outputs` names what the training step returns, forward first; `public` the functions of `ops` that it
    gives, by default one of its own name; `schema_class` the class of its benchmark's columns (docs/projects.md).
    """

    name: str
    summary: str
    variants: tuple[str, ...]
    dtypes: tuple[str, ...]
    backends: Mapping[str, tuple[str, ...]]
    sections: Mapping[str, Section]
    outputs: tuple[str, ...] = ("out", "da", "db")
    public: tuple[str, ...] = ()
    schema_class: str = "gemm"
    narrower: Mapping[tuple[str, str], tuple[str, ...]] = field(default_factory=dict)

    def functions(self) -> tuple[str, ...]:
        return self.public or (self.name,)

    def architectures(self, variant: str, backend: str) -> tuple[str, ...]:
        """Those on which this backend has this variant."""
        return self.narrower.get((variant, backend), self.backends[backend])
