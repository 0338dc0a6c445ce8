"""What the operators along rows (activation, normalization) share on the host's side."""

from __future__ import annotations

import torch

from turbo_kernels.case_kit import DTYPES

NAMES = {dtype: name for name, dtype in DTYPES.items()}


def as_rows(x: torch.Tensor) -> torch.Tensor:
    """x[..., H] as [rows, H] with neighbouring elements in a row: a view where the strides allow, else a copy."""
    rows = x.reshape(-1, x.shape[-1])
    return rows if rows.stride(1) == 1 or rows.shape[1] == 1 else rows.contiguous()
