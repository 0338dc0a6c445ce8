"""The options of these tests: which marks are kept, what -k selects, which GPU a worker gets."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from gpu_pinning import pinned

HERE = Path(__file__).parent


def collected(*options: str) -> list[str]:
    command = [sys.executable, "-m", "pytest", "--collect-only", "-q", "-p", "no:cacheprovider", *options]
    files = [str(HERE / f"test_{name}.py") for name in ("dist", "determinism", "pytest_options")]
    done = subprocess.run(
        [*command, *files],
        cwd=HERE.parents[1],
        env=os.environ,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    return [line for line in done.stdout.splitlines() if "::" in line]


def test_dist_only() -> None:
    found = collected("--dist-only")
    assert found and all("test_dist.py" in line for line in found)


def test_deterministic_only_by_op_variant_and_backend() -> None:
    found = collected("--deterministic-only", "-k", "gemm_fp8 and blockwise and TRITON")
    assert found and all(
        "[gemm_fp8-blockwise-TRITON]" in x or "[grouped_gemm_fp8-blockwise-TRITON]" in x for x in found
    )


@pytest.mark.parametrize(
    ("environ", "gpus", "expected"),
    [
        ({}, ["0", "1"], {}),
        ({"PYTEST_XDIST_WORKER": "master"}, ["0"], {}),
        ({"PYTEST_XDIST_WORKER": "gw0"}, [], {}),
        ({"PYTEST_XDIST_WORKER": "gw3"}, ["0", "1"], {"CUDA_VISIBLE_DEVICES": "1"}),
        ({"PYTEST_XDIST_WORKER": "gw1", "CUDA_VISIBLE_DEVICES": "4, GPU-7"}, ["0"], {"CUDA_VISIBLE_DEVICES": "GPU-7"}),
        ({"PYTEST_XDIST_WORKER": "gw1", "CUDA_VISIBLE_DEVICES": ""}, ["0"], {}),
        ({"PYTEST_XDIST_WORKER": "gw2", "HIP_VISIBLE_DEVICES": "5"}, ["0"], {"HIP_VISIBLE_DEVICES": "5"}),
    ],
)
def test_a_worker_gets_a_gpu(environ: dict[str, str], gpus: list[str], expected: dict[str, str]) -> None:
    assert pinned(environ, gpus) == expected
