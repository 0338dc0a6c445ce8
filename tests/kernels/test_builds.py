"""Every kernel that ships compiles for gfx942, gfx950 and sm_90, none of them here: no spills, within shared memory, on its
matrix instruction. By default the first build of every kernel and kind of operands (`--subset`); all of them where
TURBO_ALL_BUILDS=1 (minutes)."""

from __future__ import annotations

import csv
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from turbo_kernels.compile_report import ARCHS, has_builds
from turbo_kernels.registry import FAMILIES

HERE = Path(__file__).parent
EVERYTHING = os.environ.get("TURBO_ALL_BUILDS") == "1"
OPS = [f.name for f in FAMILIES]


def compiling(tmp_path: Path, *command: str) -> subprocess.CompletedProcess[str]:
    environment = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    environment |= {"TRITON_CACHE_DIR": str(tmp_path), "PYTHONPATH": str(HERE.parents[1] / "kernels")}
    return subprocess.run(
        [sys.executable, *command], env=environment, capture_output=True, text=True, timeout=580, check=False
    )


def report(tmp_path: Path, *options: str) -> subprocess.CompletedProcess[str]:
    return compiling(tmp_path, "-m", "turbo_kernels.compile_report", *options)


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    done = report(tmp_path_factory.mktemp("builds"), "--json", *([] if EVERYTHING else ["--subset"]))
    assert done.returncode in (0, 1), done.stderr[-2000:]
    return json.loads(done.stdout)["rows"]


@pytest.mark.parametrize("arch", ARCHS)
@pytest.mark.parametrize("op", OPS)
def test_what_ships_is_sound(rows: list[dict[str, Any]], op: str, arch: str) -> None:
    own = [r for r in rows if (r["op"], r["arch"]) == (op, arch)]
    assert own, (
        f"turbo_kernels/{op}/builds.py yields nothing for {arch}" if has_builds(op) else f"{op} has no builds.py"
    )
    assert not [f"{r['build']}: {r['problem']}" for r in own if r["problem"]]
    assert all(r["registers"] > 0 and r["code_bytes"] > 0 and r["spills"] == 0 for r in own)


def test_unsound_builds_are_named(tmp_path: Path) -> None:
    done = compiling(tmp_path, str(HERE / "unsound_builds.py"))
    assert done.returncode == 0, done.stderr[-2000:]
    found = {label: "; ".join(said) for label, said in json.loads(done.stdout).items()}
    assert "spills" in found["spills"] and "bytes of scratch" in found["spills"]
    assert "registers" in found["AMD spills"]
    assert "over 232448" in found["shared"]
    assert "over 65536" in found["LDS"]
    assert found["other operands"].startswith("no matrix instruction on fp8: wgmma")
    assert found["other AMD operands"].startswith("no matrix instruction on fp8: v_mfma")
    assert "start another one for gfx950" in found["a second architecture"]
    assert "no argument TURBO" in found["no such argument"]


def test_the_table_and_its_csv(tmp_path: Path) -> None:
    out, assembly = tmp_path / "r.csv", tmp_path / "asm"
    done = report(tmp_path, "--op", "gemm", "--arch", "gfx942", "--subset", "--csv", str(out), "--asm", str(assembly))
    assert done.returncode == 0, done.stdout + done.stderr
    table, last = done.stdout.splitlines()[:-1], done.stdout.splitlines()[-1]
    assert max(map(len, table)) <= 80
    assert last.startswith("3 builds, 0 unsound (triton ")
    with out.open(newline="") as f:
        written = list(csv.DictReader(f))
    assert [r["operands"] for r in written] == ["bf16", "fp16", "fp32"]
    assert all(r["matrix"].startswith("v_mfma_f32_") and int(r["matrix_count"]) > 0 for r in written)
    assert len(list(assembly.glob("*.gfx942.amdgcn"))) == 3


@pytest.mark.parametrize(
    ("options", "said"),
    [(["--arch", "gfx90a"], "no architecture 'gfx90a'; there are gfx942"), (["--op", "conv"], "no operator 'conv'")],
)
def test_what_is_refused(tmp_path: Path, options: list[str], said: str) -> None:
    done = report(tmp_path, *options)
    assert done.returncode == 2
    assert said in done.stderr and done.stderr.count("\n") == 1
