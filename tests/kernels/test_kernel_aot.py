"""The kernels compile for gfx942, gfx950 and sm_90 with their matrix instruction, without a GPU."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent


def test_kernels_compile_for_every_architecture(tmp_path: Path) -> None:
    environment = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    environment |= {"TRITON_CACHE_DIR": str(tmp_path), "PYTHONPATH": str(HERE.parents[1] / "kernels")}
    command = [sys.executable, str(HERE / "aot.py")]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stdout + done.stderr[-2000:]
    lines = done.stdout.splitlines()
    for arch in ("gfx942", "gfx950", "sm_90"):
        assert sum(line.startswith(f"ok {arch} ") for line in lines) == 8
