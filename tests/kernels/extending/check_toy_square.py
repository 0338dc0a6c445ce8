"""What a copy of the library must do with toy_square in it."""

from __future__ import annotations

import pytest
import torch
from kernel_helpers import DEVICE
from turbo_kernels import backends, ops
from turbo_kernels.registry import family


def test_toy_square(caplog):
    from turbo_kernels.toy_square.backends import run

    assert "toy_square" in ops.__all__
    assert family("toy_square").outputs == ("out", "dx")
    x = torch.arange(6.0, device=DEVICE).requires_grad_()
    ops.toy_square(x).sum().backward()
    assert torch.equal(x.grad, 2 * x)
    assert run.select(x).name == "TRITON"
    big = torch.ones(65, device=DEVICE)
    assert run.select(big).name == "TORCH"
    assert caplog.messages == [
        "toy_square: TRITON can't run this input (one tile of 64, got 65); TORCH runs it instead"
    ]
    backends.set_backend("TORCH", op="toy_square")
    assert run.select(x).name == "TORCH"
    backends.set_backend("TRITON", op="toy_square")
    with pytest.raises(backends.BackendError, match="one tile of 64, got 65; TORCH could"):
        ops.toy_square(big)
    compiled = torch.compile(ops.toy_square, backend="aot_eager", fullgraph=True)
    assert torch.equal(compiled(x), x * x)
    torch.library.opcheck(torch.ops.turbo.toy_square.default, (x,))
