"""What a copy of the library must do with the backend TOY of gemm in it."""

from __future__ import annotations

import sys

import pytest
import torch
from kernel_helpers import DEVICE
from turbo_kernels import backends, ops
from turbo_kernels.gemm.backends import multiply

A, B = torch.randn(8, 16, device=DEVICE), torch.randn(4, 16, device=DEVICE)


def test_toy_backend(monkeypatch):
    assert "TOY" in multiply.backends
    assert multiply.select("forward", A, B.t(), torch.empty(8, 4, device=DEVICE)).name == "TRITON"
    assert "turbo_kernels.gemm.toy_backend" not in sys.modules
    monkeypatch.setenv("TURBO_GEMM_BACKEND", "fp32:toy")
    a, b = A.clone().requires_grad_(), B.clone().requires_grad_()
    out = ops.gemm(a, b)
    assert torch.equal(out, (A.double() @ B.double().t()).float())
    out.sum().backward()
    assert a.grad.shape == A.shape
    monkeypatch.delenv("TURBO_GEMM_BACKEND")
    backends.set_backend("TOY", op="gemm")
    with pytest.raises(backends.BackendError, match=r"gemm: TOY .* fp32 only, got torch.bfloat16; TRITON, "):
        ops.gemm(A.bfloat16(), B.bfloat16())


def test_autotune_judges_it(monkeypatch, tmp_path):
    monkeypatch.setenv("TURBO_CACHE_DIR", str(tmp_path))
    backends.reset()
    backends.autotune(True)
    ops.gemm(A, B)
    (choice,) = backends.MANAGER.tuned.values()
    assert choice in multiply.backends
    (file,) = tmp_path.rglob("*.json")
    assert '"TOY"' in file.read_text()
