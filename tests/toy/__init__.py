"""A whole project that is measured in milliseconds: real git, real processes, real clocks, and no torch.

    repo = make(tmp_path)                                    # a committed repository
    run(repo, "start", *TOY, "--patches", str(patches(tmp_path)))

Its kernel sleeps. `SPEED` and `LANES` of its launch configuration say for how long, and one SPEED computes garbage:

    SPEED  1: as it is   2: ×2   3: ×6 and wrong   4: ×4   5: ×0.5 (slower)
    LANES  1: as it is   2: ×2   3: ×0.5
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

FILES = Path(__file__).parent / "files"
CHECKOUT = Path(__file__).parents[2]
TOY = ("--op", "toy", "--backend", "TRITON", "--gpu", "cpu")
CONFIG = "kernels/toy/configs/cpu.json"
KERNEL = "kernels/toy/kernel.py"
WHEN = "2026-06-01T00:00:00 +0000"  # of the first commit: the same bytes give the same id everywhere


def git(repo: Path, *args: str, env: Mapping[str, str] | None = None, check: bool = True) -> str:
    """Plain git in `repo`, as a user types it; its standard output without the last newline."""
    clean = {k: v for k, v in os.environ.items() if not k.startswith("GIT_")}
    env = clean | dict(env or {})
    done = subprocess.run(["git", *args], cwd=repo, env=env, capture_output=True, text=True, check=False)
    if check and done.returncode:
        raise AssertionError(f"git {' '.join(args)}: {done.stderr}")
    return done.stdout.removesuffix("\n")


def config_text(speed: int = 1, lanes: int = 1) -> str:
    return json.dumps({"step": {"SPEED": speed, "LANES": lanes}}, indent=2) + "\n"


def make(path: Path, name: str = "toy") -> Path:
    """A committed git repository at `path / name`: kernel, launch configuration, adapter, commands, quick template."""
    repo = path / name
    shutil.copytree(FILES, repo, ignore=shutil.ignore_patterns("__pycache__"))
    (repo / CONFIG).parent.mkdir(parents=True, exist_ok=True)
    (repo / CONFIG).write_text(config_text())
    (repo / ".gitignore").write_text("*.ignored\n__pycache__/\n")
    git(repo, "init", "--quiet", "--initial-branch=main")
    git(repo, "config", "user.name", "Toy Maker")
    git(repo, "config", "user.email", "toy@example.com")
    git(repo, "add", "--all")
    git(repo, "commit", "--quiet", "-m", "A toy", env={"GIT_AUTHOR_DATE": WHEN, "GIT_COMMITTER_DATE": WHEN})
    return repo


def patch_text(repo: Path, changes: Mapping[str, str], subject: str = "") -> str:
    """A patch that turns files of HEAD into `changes` (path -> whole new text); the checkout stays as it is."""
    out = [f"Subject: [PATCH] {subject}\n\n---\n"] if subject else []
    for name, text in changes.items():
        old = git(repo, "rev-parse", f"HEAD:{name}")
        new = subprocess.run(
            ["git", "hash-object", "-w", "--stdin"], cwd=repo, input=text, capture_output=True, text=True, check=True
        ).stdout.strip()
        diff = git(repo, "diff", "--no-color", old, new)
        out.append(diff.replace(f"a/{old}", f"a/{name}").replace(f"b/{new}", f"b/{name}") + "\n")
    return "".join(out)


def _config_patch(subject: str, before: int, after: int) -> str:
    return (
        f"Subject: [PATCH] {subject}\n\n---\ndiff --git a/{CONFIG} b/{CONFIG}\n--- a/{CONFIG}\n+++ b/{CONFIG}\n"
        f'@@ -1,6 +1,6 @@\n {{\n   "step": {{\n-    "SPEED": {before},\n+    "SPEED": {after},\n'
        '     "LANES": 1\n   }\n }\n'
    )


def patches(path: Path) -> Path:
    """A folder of four patches: ×2 (accepted), slower (rolled back), wrong (fails its check), ×4 (accepted)."""
    folder = path / "patches"
    folder.mkdir(parents=True, exist_ok=True)
    todo = (("twice as fast", 1, 2), ("slower", 2, 5), ("fast and wrong", 2, 3), ("four times as fast", 2, 4))
    for number, (subject, before, after) in enumerate(todo, start=1):
        (folder / f"{number:04}-{subject.replace(' ', '-')}.patch").write_text(_config_patch(subject, before, after))
    return folder


def environment(env: Mapping[str, str] | None = None) -> dict[str, str]:
    """What `run` gives a command: this checkout on PYTHONPATH, nothing of a surrounding git."""
    clean = {k: v for k, v in os.environ.items() if not k.startswith("GIT_")}
    return clean | {"PYTHONPATH": str(CHECKOUT), "COLUMNS": "200"} | dict(env or {})


def command(*args: str) -> list[str]:
    return [sys.executable, "-m", "turbo_optimize.cli.app", *args]


def run(
    repo: Path, *args: str, env: Mapping[str, str] | None = None, timeout: float = 120.0
) -> subprocess.CompletedProcess[str]:
    """`turbo-opt ARGS` in `repo`."""
    return subprocess.run(
        command(*args), cwd=repo, env=environment(env), capture_output=True, text=True, timeout=timeout, check=False
    )


def campaign_of(repo: Path) -> Path:
    """The folder of the repository's only campaign."""
    found = sorted(p.parent for p in (repo / "campaigns").glob("*/journal.jsonl"))
    assert len(found) == 1, found
    return found[0]
