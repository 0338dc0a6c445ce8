"""Without a GPU the kernels run in Triton's interpreter, which is chosen when they are decorated: at import, so here.

Outside these tests the variable is as it was: other tests' processes must not inherit it. With `-n` each worker gets a
GPU of its own. `-k "blockwise and TRITON"` selects by what stands in the tests' ids: op, variant, backend.
"""

from __future__ import annotations

import importlib
import os

import gpu_pinning
import pytest

gpu_pinning.pin()

import torch  # noqa: E402

_BEFORE = os.environ.get("TRITON_INTERPRET")
if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"

import fp8_code_kernel  # noqa: E402, F401
from turbo_kernels.registry import FAMILIES  # noqa: E402

for _family in FAMILIES:
    importlib.import_module(f"turbo_kernels.{_family.name}.ops")

if _BEFORE is None:
    os.environ.pop("TRITON_INTERPRET", None)
else:
    os.environ["TRITON_INTERPRET"] = _BEFORE

torch.set_num_threads(1)

ONLY = {
    "deterministic": "two runs must give the same bits",
    "dist": "several processes: gloo on the CPU, nccl on GPUs",
}


def pytest_addoption(parser: pytest.Parser) -> None:
    for marker, what in ONLY.items():
        parser.addoption(f"--{marker}-only", action="store_true", help=f"only tests marked {marker}: {what}")


def pytest_configure(config: pytest.Config) -> None:
    for marker, what in ONLY.items():
        config.addinivalue_line("markers", f"{marker}: {what}")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    asked = [marker for marker in ONLY if config.getoption(f"--{marker}-only")]
    if asked:
        kept = [item for item in items if any(item.get_closest_marker(marker) for marker in asked)]
        config.hook.pytest_deselected(items=[item for item in items if item not in kept])
        items[:] = kept


@pytest.fixture(autouse=True)
def _interpreted(monkeypatch: pytest.MonkeyPatch) -> None:
    """The interpreter reads the variable again on its first launch."""
    if not torch.cuda.is_available():
        monkeypatch.setenv("TRITON_INTERPRET", "1")
