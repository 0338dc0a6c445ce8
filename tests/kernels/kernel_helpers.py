"""What the kernel tests share: inputs, the training step, and every section of an operator in one configuration."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import pytest
import torch
from turbo_kernels import case_kit
from turbo_kernels.config import load, override
from turbo_kernels.dispatch import AutoKernelDispatcher, Backend

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def inputs(m: int, n: int, k: int, dtype: str = "bf16", seed: int = 0) -> case_kit.Tensors:
    return case_kit.gemm_inputs({"B": 1, "M": m, "N": n, "K": k}, dtype, seed, DEVICE)


@contextmanager
def everywhere(op: str, **params: Any) -> Iterator[None]:
    """Inside, each section that has them runs with these parameters."""
    with ExitStack() as stack:
        for section, present in load(op).items():
            wanted = {k: v for k, v in params.items() if k in present}
            stack.enter_context(override(op, section, wanted))
        yield


@contextmanager
def through(backend: str) -> Iterator[None]:
    """Inside, every dispatcher runs this backend, which must say that it can."""

    def select(self: AutoKernelDispatcher, *args: Any) -> Backend:
        chosen = self.backends[backend]
        if why := chosen.can_handle(*args):
            raise RuntimeError(f"{self.op} {backend}: {why}")
        return chosen

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(AutoKernelDispatcher, "select", select)
        yield
