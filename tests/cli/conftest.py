"""The command line as a user runs it: a process, in a folder of its own."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests import toy

TOP = Path(__file__).parents[2]
Cli = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def cli(tmp_path: Path) -> Cli:
    """turbo-opt in `cwd` (an empty folder outside of any repository); `env` adds variables."""

    def go(*args: str, cwd: Path = tmp_path, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
        all_env = {**os.environ, "PYTHONPATH": f"{TOP}:{TOP / 'kernels'}", "COLUMNS": "80"} | (env or {})
        command = [sys.executable, "-m", "turbo_optimize.cli.app", *args]
        return subprocess.run(command, cwd=cwd, env=all_env, capture_output=True, text=True, check=False, timeout=120)

    return go


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A repository with one commit and the product's own project file."""
    top = tmp_path / "checkout"
    top.mkdir()
    (top / "project.yaml").write_text((TOP / "project.yaml").read_text())
    identity = ["-c", "user.name=t", "-c", "user.email=t@t"]
    for command in (["init", "-q"], ["add", "-A"], [*identity, "commit", "-q", "-m", "first"]):
        subprocess.run(["git", *command], cwd=top, check=True)
    return top


@pytest.fixture(scope="session")
def _finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A toy repository with a finished campaign of five rounds: 2 and 5 accepted, 3 slower, 4 wrong."""
    for _ in range(3):  # a machine that is busy elsewhere may hide a gain; what these tests are about isn't that
        top = tmp_path_factory.mktemp("finished")
        repo = toy.make(top)
        done = toy.run(repo, "start", *toy.TOY, "--patches", str(toy.patches(top)), "--name", "done", "--yes", "--json")
        assert done.returncode == 0, done.stderr
        if json.loads(done.stdout.splitlines()[-1])["accepted"] == 2:
            return repo
    raise AssertionError("three campaigns in a row didn't accept both faster patches")


@pytest.fixture
def finished(_finished: Path, tmp_path: Path) -> Path:
    """A copy of that repository, to be changed at will."""
    return shutil.copytree(_finished, tmp_path / "toy", symlinks=True)


@pytest.fixture
def waiting(tmp_path: Path) -> Path:
    """A toy repository with a manual campaign whose round 2 waits for an edit."""
    repo = toy.make(tmp_path)
    done = toy.run(repo, "start", *toy.TOY, "--proposer", "manual", "--name", "hand", "--yes")
    assert done.returncode == 0, done.stderr
    return repo
