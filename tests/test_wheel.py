"""A wheel built from the tree works outside of it: everything that is read at run time travels in it."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from tests import toy

TOP = Path(__file__).parents[1]
# where a tree of the checkout lies in the wheel
TREES = {
    "rules": "turbo_optimize/_data/rules", "templates": "turbo_optimize/_data/templates", "turbo_optimize": "turbo_optimize",
    "kernels/turbo_kernels": "turbo_kernels",
}  # fmt: skip
FILES = {"project.yaml": "turbo_optimize/_data/project.yaml", "SHAPES.yaml": "turbo_optimize/_data/SHAPES.yaml"}
OFFLINE = (
    "No matching distribution found",
    "Could not find a version",
    "No module named pip",
    "Connection",
    "connection",
)


def build(out: Path) -> Path:
    """The wheel. Skips where its build backend can't be had."""
    if importlib.util.find_spec("hatchling") and importlib.util.find_spec("build"):
        words = ["build", "--wheel", "--no-isolation", "--outdir", str(out), str(TOP)]
    else:
        words = [
            "pip",
            "wheel",
            "--no-deps",
            "--quiet",
            "--disable-pip-version-check",
            "--wheel-dir",
            str(out),
            str(TOP),
        ]
    done = subprocess.run([sys.executable, "-m", *words], cwd=out, capture_output=True, text=True, check=False)
    told = done.stdout + done.stderr
    if done.returncode and any(word in told for word in OFFLINE):
        pytest.skip(
            f"hatchling, which builds the wheel, isn't here and can't be fetched: {told.strip().splitlines()[-1]}"
        )
    assert done.returncode == 0, told
    (found,) = out.glob("*.whl")
    return found


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The unpacked wheel."""
    folder = tmp_path_factory.mktemp("wheel")
    unpacked = folder / "unpacked"
    with zipfile.ZipFile(build(folder)) as z:
        z.extractall(unpacked)
    return unpacked


def run(wheel: Path, cwd: Path, *args: str) -> subprocess.CompletedProcess[str]:
    """turbo-opt of the wheel; the checkout can't be imported."""
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("GIT_", "PYTHON"))}
    env = clean | {"PYTHONPATH": str(wheel), "COLUMNS": "80"}
    command = [sys.executable, "-s", "-P", "-m", "turbo_optimize.cli.app", *args]
    return subprocess.run(command, cwd=cwd, env=env, capture_output=True, text=True, check=False, timeout=120)


def expected() -> dict[str, Path]:
    """Path in the wheel -> file of the checkout."""
    trees = {
        f"{there}/{p.relative_to(TOP / here)}": p
        for here, there in TREES.items()
        for p in (TOP / here).rglob("*")
        if p.is_file() and "__pycache__" not in p.parts
    }
    return trees | {there: TOP / here for here, there in FILES.items()}


def test_everything_travels_and_nothing_else(wheel: Path) -> None:
    files = expected()
    there = {str(p.relative_to(wheel)) for p in wheel.rglob("*") if p.is_file()}
    info = {x for x in there if ".dist-info/" in x}
    assert there - info == set(files)
    assert all((wheel / name).read_bytes() == p.read_bytes() for name, p in files.items())
    assert sum(name.startswith("turbo_kernels/") and name.endswith(".json") for name in files) >= 8
    assert any(x.endswith("licenses/LICENSE") for x in info)


def test_the_console_script(wheel: Path) -> None:
    (entry,) = wheel.glob("*.dist-info/entry_points.txt")
    assert "turbo-opt = turbo_optimize.cli.app:main" in entry.read_text()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("--help", "Unattended, honest optimization campaigns"),
        ("--version", "turbo-opt 0."),
        ("rules G01", "# G01 scope"),
        ("rules", "C23"),
        ("ops", "_data/project.yaml"),
        ("doctor", "findings"),
    ],
)
def test_commands_that_need_no_repository(wheel: Path, tmp_path: Path, words: str, said: str) -> None:
    done = run(wheel, tmp_path, *words.split())
    assert done.returncode == 0, done.stderr
    assert said in done.stdout
    assert done.stderr == ""
    assert str(TOP) not in done.stdout.replace(sys.executable, "python")  # the environment may lie in the checkout
    assert not list(tmp_path.iterdir())


def test_start_outside_a_repository_says_what_it_needs(wheel: Path, tmp_path: Path) -> None:
    done = run(wheel, tmp_path, "start", "--op", "gemm_fp8")
    assert done.returncode == 1
    assert done.stdout == ""
    assert done.stderr.startswith(f"turbo-opt: {tmp_path} is not inside a git checkout")
    assert "cd into a clone" in done.stderr
    assert done.stderr.count("\n") == 1
    assert not list(tmp_path.iterdir())


def test_a_campaign_on_somebodys_repository(wheel: Path, tmp_path: Path) -> None:
    repo = toy.make(tmp_path)
    done = run(wheel, repo, "start", *toy.TOY, "--max-rounds", "1", "--name", "c")
    assert done.returncode == 0, done.stderr
    assert (repo / "campaigns/c/report/report.md").is_file()
    assert toy.git(repo, "status", "--porcelain") == ""
    assert run(wheel, repo, "verify").returncode == 0


def test_the_version_of_a_checkout(tmp_path: Path) -> None:
    done = run(TOP, tmp_path, "--version")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("turbo-opt ")
    assert done.stderr == ""
