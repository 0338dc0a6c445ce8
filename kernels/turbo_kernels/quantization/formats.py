"""The variants' layouts and the small formats, told once for kernels, references and checks. No Triton here.

`rows` output of x[M, K] (`cols`: the same of x's transpose, so with M and K exchanged):

| variant | q | scale | one scale per |
|---|---|---|---|
| tensorwise | [M, K] fp8 | fp32 [1] | tensor |
| rowwise | [M, K] fp8 | fp32 [M] | row |
| blockwise | [M, ⌈K⌉128] fp8 | fp32 [⌈K/128⌉, M], block first | 1×128 |
| blockwise_weight | [M, ⌈K⌉128] fp8 | fp32 [⌈M/128⌉, ⌈K/128⌉] | 128×128, the same for q and its transpose |
| mxfp8 | [M, ⌈K⌉32] fp8 | E8M0 uint8 [M, ⌈K/32⌉] | 1×32 |
| mxfp4 | uint8 [M, ⌈K⌉32 / 2], two E2M1 codes a byte, the lower k in the low nibble | E8M0 uint8 [M, ⌈K/32⌉] | 1×32 |

⌈K⌉n is K rounded up to n, the padding zero.

fp32 scales are max|x| / max(format), of at least 1e-12 / max(format), and q = x · (max(format) / max|x|).

E8M0 scales are those of OCP Microscaling Formats v1.0, section 6.3, 2^(⌊log2 max|x|⌋ − emax) with emax the exponent of
the format's largest power of two (8, 15, 2 for E4M3, E5M2, E2M1; 7 for FNUZ E4M3), but for one step more where max|x|
over that scale would round beyond the format's largest value (from 464, 61440, 7; FNUZ E4M3 from 248), and so saturate:
the specification's own choice shortens every block's largest values, by up to a quarter in E2M1, a bias (4% of a product
of normal numbers, 16% of uniform ones) that this halves or removes. The least scale is 2^-127. A block of 32 with a NaN
or an infinity gets the scale NaN (255).
"""

from __future__ import annotations

from typing import NamedTuple

import torch

from turbo_kernels.arch import fp8_dtype

MX_BLOCK = 32
BLOCK = 128
ENCODINGS = ("e4m3", "e5m2")
BLOCKWISE = ("blockwise", "blockwise_weight")
MX = ("mxfp8", "mxfp4")


def round_up(n: int, multiple: int) -> int:
    return -(-n // multiple) * multiple


class Limits(NamedTuple):
    """Where a format ends: its largest value, the exponent of its largest power of two, and the first value that rounds
    beyond the largest, over that power."""

    largest: float
    emax: int
    overflow: float

    @property
    def carry(self) -> int:
        """Added to fp32 bits, it carries into the exponent from the mantissa `overflow` on."""
        return round((2 - self.overflow) * 2**23)


def limits(dtype: torch.dtype | None) -> Limits:
    """Those of an fp8 dtype, or of E2M1 for None."""
    largest, ulp = (6.0, 0.5) if dtype is None else (torch.finfo(dtype).max, torch.finfo(dtype).eps)
    emax = int(largest).bit_length() - 1
    return Limits(largest, emax, largest / 2**emax + ulp / 2)


@torch.compiler.assume_constant_result  # asking the device isn't for a compiler to trace
def code_dtype(variant: str, encoding: str) -> torch.dtype | None:
    """What a variant's codes are: an fp8 dtype, or None for packed E2M1."""
    return None if variant == "mxfp4" else fp8_dtype(encoding)


def q_shape(variant: str, rows: int, length: int) -> tuple[int, int]:
    if variant in BLOCKWISE:
        return rows, round_up(length, BLOCK)
    if variant in MX:
        return rows, round_up(length, MX_BLOCK) // (2 if variant == "mxfp4" else 1)
    return rows, length


def scale_shape(variant: str, rows: int, length: int) -> tuple[int, ...]:
    return {
        "tensorwise": (1,),
        "rowwise": (rows,),
        "blockwise": (-(-length // BLOCK), rows),
        "blockwise_weight": (-(-rows // BLOCK), -(-length // BLOCK)),
    }.get(variant, (rows, -(-length // MX_BLOCK)))


def scale_dtype(variant: str) -> torch.dtype:
    return torch.uint8 if variant in MX else torch.float32
