"""turbo-opt bench: one operator through the project's own command, the suite, and what is refused."""

from __future__ import annotations

import csv
import json
import os
from pathlib import Path
from xml.etree import ElementTree

import pytest

from tests.cli.conftest import TOP, Cli
from turbo_optimize.cli.bench import _filled
from turbo_optimize.effects.devices import CPU, Device
from turbo_optimize.projects.loader import load_project

HIDDEN = {"CUDA_VISIBLE_DEVICES": "", "HIP_VISIBLE_DEVICES": ""}


def test_one_operator_by_the_projects_own_command(cli: Cli, tmp_path: Path) -> None:
    done = cli("bench", "gemm", "--dtype", "fp16", "--shapes", "32x16x32", "-o", "b.csv", "--gpu", "cpu")
    assert done.returncode == 0, done.stderr
    with (tmp_path / "b.csv").open(newline="") as f:
        (row,) = csv.DictReader(f)
    assert (row["label"], row["Check"], row["N"]) == ("32x16x32", "PASS", "16")
    told = cli("bench", "--op", "gemm", "--shapes", "32x16x32", "--gpu", "cpu", "--json")
    assert [(r["label"], r["Check"]) for r in json.loads(told.stdout)] == [("32x16x32", "PASS")]


def test_the_suite_beside_torch(cli: Cli, tmp_path: Path) -> None:
    done = cli("bench", "--suite", "gemm", "--group", "dense", "--quick", "-d", "out", "--gpu", "cpu")
    assert done.returncode == 0, done.stdout + done.stderr
    lines = done.stdout.splitlines()
    assert max(len(x) for x in lines if not x.startswith("PASS")) <= 80
    with (tmp_path / "out/suite.csv").open(newline="") as f:
        rows = list(csv.DictReader(f))
    assert {(r["op"], r["phase"], r["check"], r["baseline"]) for r in rows} == {
        ("gemm", "forward", "PASS", "F.linear"), ("gemm", "step", "PASS", "F.linear"),
    }  # fmt: skip
    assert all(float(r["ratio"]) > 0 and "miniature" in r["shape"] and not r["tflops"] for r in rows)
    assert ElementTree.parse(tmp_path / "out/suite.svg").getroot().tag.endswith("svg")


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        ("", 2, "no operator given"),
        ("gem", 2, "no op 'gem' in"),
        ("gemm --quick", 2, "--quick is the suite's"),
        ("gemm -d x", 2, "--dir is the suite's"),
        ("gemm --gpu 7", 2, "no GPU 7 here — there are none, and cpu"),
        ("--suite conv", 2, "no operator 'conv'; there are gemm"),
        ("--suite gemm --dtype int4", 2, "gemm: no int4 there"),
        ("--suite gemm --group sparse", 2, "no group 'sparse'; there are dense, moe"),
    ],
)
def test_what_is_refused_in_one_line(cli: Cli, words: str, code: int, said: str) -> None:
    environment = {k: "" for k in HIDDEN if k in os.environ} | HIDDEN
    done = cli("bench", *words.split(), env=environment)
    assert (done.returncode, done.stdout) == (code, "")
    assert said in done.stderr and done.stderr.count("\n") == 1


def test_the_projects_shapes_follow_the_device() -> None:
    op = load_project(TOP / "project.yaml").ops["gemm_fp8"]
    line = _filled(op, "gemm_fp8", "blockwise", None, None, Path("/x y/o.csv"), Device("sm_90", "H200", "0"))
    assert "--shapes 4096x4096x4096,4096x28672x4096" in line
    assert line.endswith("--variant blockwise") and "--csv '/x y/o.csv'" in line
    assert "--shapes 64x64x64,64x64x128" in _filled(op, "gemm_fp8", None, None, None, Path("o.csv"), CPU)
