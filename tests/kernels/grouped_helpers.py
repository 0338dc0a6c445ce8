"""What the tests of grouped GEMMs share: inputs for given groups, and every product through one backend."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from kernel_helpers import DEVICE
from turbo_kernels import grouped_kit
from turbo_kernels.case_kit import Tensors
from turbo_kernels.dispatch import AutoKernelDispatcher


def inputs(lens: list[int], n: int, k: int, dtype: str = "bf16", rows: int | None = None, seed: int = 0) -> Tensors:
    """Standard normal inputs for these groups; rows behind them where `rows` asks for more."""
    rows = sum(lens) if rows is None else rows
    made = grouped_kit.make_inputs({"B": len(lens), "M": -(-rows // len(lens)), "N": n, "K": k}, dtype, seed, DEVICE)
    for name in ("a", "grad_out"):
        made[name] = made[name].detach()[:rows].clone().requires_grad_(name == "a")
    made["group_lens"] = torch.tensor(lens, device=DEVICE)
    return made


def force(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """Every product through the named backend, which must say that it can."""

    def select(self: AutoKernelDispatcher, *args: Any) -> Any:
        chosen = self.backends[name]
        if why := chosen.can_handle(*args):
            raise RuntimeError(f"{self.op} {name}: {why}")
        return chosen

    monkeypatch.setattr(AutoKernelDispatcher, "select", select)
