"""Without a GPU the kernels run in Triton's interpreter, which is chosen when they are decorated: at import, so here.

Outside these tests the variable is as it was: other tests' processes must not inherit it.
"""

from __future__ import annotations

import os

import pytest
import torch

_BEFORE = os.environ.get("TRITON_INTERPRET")
if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"

import fp8_code_kernel  # noqa: E402, F401
import turbo_kernels.gemm.ops  # noqa: E402
import turbo_kernels.gemm_fp4.ops  # noqa: E402
import turbo_kernels.gemm_fp8.ops  # noqa: E402
import turbo_kernels.quantization.ops  # noqa: E402, F401

if _BEFORE is None:
    os.environ.pop("TRITON_INTERPRET", None)
else:
    os.environ["TRITON_INTERPRET"] = _BEFORE

torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def _interpreted(monkeypatch: pytest.MonkeyPatch) -> None:
    """The interpreter reads the variable again on its first launch."""
    if not torch.cuda.is_available():
        monkeypatch.setenv("TRITON_INTERPRET", "1")
