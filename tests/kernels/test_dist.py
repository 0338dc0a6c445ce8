"""Several processes: a data-parallel step through ops.gemm is the single process's step on the whole batch."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

HERE = Path(__file__).parent
RANKS = 2


@pytest.mark.dist
def test_data_parallel_gemm_TRITON_is_one_process_on_the_whole_batch(tmp_path: Path) -> None:
    environment = os.environ | {"PYTHONPATH": str(HERE.parents[1] / "kernels"), "GLOO_SOCKET_IFNAME": "lo"}
    out = tmp_path / "weights.pt"
    ranks = [
        subprocess.Popen(
            [sys.executable, str(HERE / "data_parallel.py"), str(rank), str(RANKS), str(tmp_path / "meet"), str(out)],
            env=environment, stderr=subprocess.PIPE, text=True,
        )
        for rank in range(RANKS)
    ]  # fmt: skip
    try:
        said = [rank.communicate(timeout=240)[1] for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
    assert [rank.returncode for rank in ranks] == [0] * RANKS, said[0][-2000:] + said[1][-2000:]
    found = torch.load(out)
    first, second = found["ranks"]
    assert torch.equal(first, second), "the ranks' weights have drifted apart"
    assert (first - found["start"]).abs().max() > 1e-3, "nothing was learned"
    torch.testing.assert_close(first, found["alone"], rtol=1e-5, atol=1e-6)
