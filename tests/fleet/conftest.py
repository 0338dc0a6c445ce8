"""A real repository, and a program that plays the campaigns."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from turbo_optimize.effects.devices import Device
from turbo_optimize.effects.repo import Repo
from turbo_optimize.fleet import nightly
from turbo_optimize.fleet.config import Night, Target
from turbo_optimize.fleet.executors import local

FAKE = (sys.executable, "-S", str(Path(__file__).with_name("fake_start.py")))
Run = Callable[..., tuple[nightly.Record, Path]]


@pytest.fixture
def repo(tmp_path: Path) -> Repo:
    top = tmp_path / "repo"
    top.mkdir()
    for command in (["init", "-q"], ["commit", "-q", "--allow-empty", "-m", "first"]):
        identity = ["-c", "user.name=t", "-c", "user.email=t@t"]
        subprocess.run(["git", *identity, *command], cwd=top, check=True)
    return Repo.discover(top)


@pytest.fixture
def night(repo: Repo, tmp_path: Path) -> Run:
    """Runs a night of the given plays: {target name: what fake_start plays}; more keys go to Night or to the run."""

    def go(
        plays: Mapping[str, dict[str, Any]],
        targets: Mapping[str, dict[str, Any]] | None = None,
        devices: Sequence[Device] = (),
        **config: Any,
    ) -> tuple[nightly.Record, Path]:
        chosen = []
        for name, play in plays.items():
            file = tmp_path / f"{name}.play"
            file.write_text(json.dumps(play))
            own = {"name": name, "op": "gemm", "backend": "TRITON", "policy": str(file)}
            chosen.append(Target.model_validate(own | (targets or {}).get(name, {})))
        made = Night.model_validate({"name": "triton", "targets": chosen} | config)
        return nightly.run(
            made, repo, repo.top / "campaigns" / "nightly", local, devices=devices, start_command=FAKE,
            locks=tmp_path / "locks", now=datetime(2026, 6, 1, 3, 0, tzinfo=UTC),
        )  # fmt: skip

    return go


def runs(tmp_path: Path, *names: str) -> list[dict[str, Any]]:
    """What the played campaigns noted, in the order in which they began."""
    lines = [x for n in names for x in (tmp_path / f"{n}.runs").read_text().splitlines()]
    return sorted((json.loads(x) for x in lines), key=lambda r: r["began"])
