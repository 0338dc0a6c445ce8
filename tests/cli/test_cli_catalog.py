"""turbo-opt ops, rules, tips."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest
import yaml

from tests.cli.conftest import TOP, Cli
from turbo_optimize.cli.ops import rows
from turbo_optimize.core.hardware import ARCHS
from turbo_optimize.core.models import Project
from turbo_optimize.core.rules import catalog
from turbo_optimize.projects.loader import load_project


# -- ops ---------------------------------------------------------------------------------------------------------------
def project(**backend: object) -> Project:
    own = load_project(TOP / "project.yaml")
    op = own.ops["gemm"]
    changed = op.backends["TRITON"].model_copy(update=backend)
    return own.model_copy(update={"ops": {"gemm": op.model_copy(update={"backends": {"TRITON": changed}})}})


def test_every_cell_is_a_tick_or_a_reason():
    (row,) = rows(project(), list(ARCHS), ["sm_90"])
    assert row.gpus == {"gfx942": "not here", "gfx950": "not here", "sm_90": None, "cpu": None}
    (row,) = rows(project(gpus=("gfx942", "sm_90")), list(ARCHS), ["sm_90"])
    assert row.gpus["gfx950"] == "it is for gfx942, sm_90"
    assert row.gpus["cpu"] == "it is for gfx942, sm_90"
    (row,) = rows(project(unavailable="needs its package"), list(ARCHS), ["sm_90"])
    assert set(row.gpus.values()) == {"needs its package"}


def test_ops_outside_of_a_repository_and_inside(cli: Cli, checkout: Path):
    done = cli("ops")
    assert done.returncode == 0, done.stderr
    assert max(len(x) for x in done.stdout.splitlines() if not x.startswith("from ")) <= 80
    assert "gemm_fp8" in done.stdout
    assert "✓" in done.stdout
    (checkout / "project.yaml").write_text((TOP / "project.yaml").read_text().replace("gemm_fp8:", "my_op:"))
    found = json.loads(cli("ops", "--json", "--gpu", "cpu", cwd=checkout).stdout)
    said = yaml.safe_load((checkout / "project.yaml").read_text())["ops"]
    rows = [(r["op"], r["variant"], r["backend"], r["gpus"]) for r in found]
    assert rows == [(op, v, b, {"cpu": None}) for op, o in said.items() for v in o["variants"] for b in o["backends"]]
    assert ("my_op", "blockwise", "TRITON", {"cpu": None}) in rows


def test_ops_errors_are_one_line(cli: Cli, checkout: Path):
    done = cli("ops", "--gpu", "MI30X")
    assert (done.returncode, done.stdout) == (2, "")
    assert "MI300X" in done.stderr
    done = cli("ops", "--project", "nothing.yaml")
    assert done.returncode == 1
    assert done.stderr.startswith("turbo-opt: nothing.yaml: no such file")
    (checkout / "project.yaml").unlink()
    assert "has no project.yaml" in cli("ops", cwd=checkout).stderr


# -- rules -------------------------------------------------------------------------------------------------------------
def test_all_rules(cli: Cli):
    done = cli("rules")
    assert done.returncode == 0
    assert max(map(len, done.stdout.splitlines())) <= 80
    told = json.loads(cli("rules", "--json").stdout)
    assert {r["code"]: r["title"] for r in told} == catalog()
    assert all(code in done.stdout for code in catalog())


def test_a_rules_page_is_plain_markdown_in_a_pipe(cli: Cli):
    page = (TOP / "rules" / "D02-core-shape-veto.md").read_text()
    assert cli("rules", "d02").stdout == page
    assert json.loads(cli("rules", "D02", "--json").stdout) == {"code": "D02", "title": "core shape veto", "page": page}


def test_a_rules_page_is_rendered_on_a_terminal(cli: Cli):
    out = cli("rules", "D02", env={"FORCE_COLOR": "1"}).stdout
    assert "\x1b[" in out
    assert "## What" not in out


def test_an_unknown_rule_names_the_nearest(cli: Cli):
    done = cli("rules", "D2")
    assert done.returncode == 2
    assert "no rule 'D2' — did you mean D02" in done.stderr


# -- tips --------------------------------------------------------------------------------------------------------------
@pytest.fixture
def tips(checkout: Path) -> Path:
    for where in ("gfx942/gemm_fp8_blockwise/triton", "gfx942/gemm/triton", "sm_90/gemm/hip"):
        file = checkout / "campaigns" / "tips" / where / "tips.md"
        file.parent.mkdir(parents=True)
        file.write_text(f"# Tips\n\n## a campaign\n\n- [red]first[/red] of {where}\n- second\nno tip\n")
    return checkout


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        ([], ["gemm", "gemm_fp8_blockwise", "gemm"]),
        (["--gpu", "MI300X"], ["gemm", "gemm_fp8_blockwise"]),
        (["--op", "gemm"], ["gemm", "gemm"]),
        (["--op", "gemm_fp8"], ["gemm_fp8_blockwise"]),
        (["--op", "gemm_fp8_blockwise"], ["gemm_fp8_blockwise"]),
        (["--backend", "HIP"], ["gemm"]),
        (["--op", "gemm_fp8", "--backend", "HIP"], []),
    ],
)
def test_tips_are_filtered(cli: Cli, tips: Path, flags: list[str], expected: list[str]):
    found = json.loads(cli("tips", "--json", *flags, cwd=tips).stdout)
    assert [t["op"] for t in found] == expected
    assert all(t["tips"][1:] == ["second"] for t in found)


def test_tips_are_shown_as_they_are(cli: Cli, tips: Path):
    out = cli("tips", "--op", "gemm_fp8", cwd=tips).stdout
    assert "gfx942  gemm_fp8_blockwise  triton" in out
    assert "- [red]first[/red] of gfx942/gemm_fp8_blockwise/triton" in out


def test_no_tips_and_no_repository(cli: Cli, checkout: Path):
    done = cli("tips", cwd=checkout)
    assert done.returncode == 0
    assert "no tips for this yet" in done.stdout
    outside = cli("tips")
    assert outside.returncode == 1
    assert "not inside a git checkout" in outside.stderr


def test_tips_need_no_project_file(cli: Cli, tips: Path):
    subprocess.run(["git", "rm", "-q", "project.yaml"], cwd=tips, check=True)
    assert [t["op"] for t in json.loads(cli("tips", "--json", "--op", "gemm", cwd=tips).stdout)] == ["gemm", "gemm"]
