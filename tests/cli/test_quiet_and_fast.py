"""How fast and how quiet: closed pipes, no colours where nobody sees them, help at once, 80 columns, long campaigns."""

from __future__ import annotations

import contextlib
import fcntl
import os
import pty
import re
import resource
import shlex
import shutil
import struct
import subprocess
import sys
import termios
import time
from pathlib import Path

import pytest

from tests.cli.conftest import TOP, Cli
from tests.cli.test_cli_records import record
from tests.factory import make_events
from turbo_optimize.cli.app import COMMANDS

LONGEST = "gemm_fp8_blockwise_triton_gfx942_20260601"


def seconds(command: list[str], cwd: Path, times: int = 5) -> float:
    """The best of several runs, on the clock: what a busy machine adds is not the command's."""
    return min(_run(command, cwd)[0] for _ in range(times))


def _run(command: list[str], cwd: Path) -> tuple[float, float]:
    """Seconds on the clock, and of processor time with its children's."""
    start, before = time.perf_counter(), resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(command, cwd=cwd, env=environment(), capture_output=True, check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return time.perf_counter() - start, cpu_s


def environment(**more: str) -> dict[str, str]:
    return {"PYTHONPATH": str(TOP), "PATH": "/usr/bin:/bin", "LANG": "C.UTF-8", "COLUMNS": "80", **more}


def command(*words: str) -> list[str]:
    return [sys.executable, "-m", "turbo_optimize.cli.app", *words]


@pytest.fixture(scope="module")
def long(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A repository with a campaign of 1,000 rounds, and a later one of 100 that commands find without a name."""
    top = tmp_path_factory.mktemp("long")
    shutil.copy(TOP / "project.yaml", top)
    identity = ["-c", "user.name=t", "-c", "user.email=t@t"]
    for args in (["init", "-q"], [*identity, "commit", "-q", "--allow-empty", "-m", "first"]):
        subprocess.run(["git", *args], cwd=top, check=True)
    record(top, make_events(1000), "long")
    record(top, make_events(100, undo=(5,)), LONGEST)
    return top


COLOUR = re.compile(r"\x1b\[([0-9]+;)*(3[0-8]|4[0-8]|9[0-7]|10[0-7])[;m]")


# -- quiet -------------------------------------------------------------------------------------------------------------
PIPES = (
    "log | head -1", "log --events | head -1", "log --events --json | head -1", "list | head", "list --json | head -1",
    "show 1 | head -1", "show 5 | head -1", "status | head -1", "status --json | head -1", "rules | head -1",
    "rules G01 | head -1", "ops | head -1", "doctor | head -1", "--help | head -1", "start --help | head -1",
    "log --events --json | true", "rules G01 | true", "--help | true",
)  # fmt: skip


@pytest.mark.parametrize("pipe", PIPES)
def test_a_closed_pipe_is_quiet(long: Path, pipe: str) -> None:
    words, _, reader = pipe.partition(" | ")
    line = f"{shlex.join(command(*words.split()))} | {reader} >/dev/null"
    done = subprocess.run(["bash", "-c", line], cwd=long, env=environment(), capture_output=True, text=True, check=True)
    assert (done.stderr, done.stdout) == ("", "")


SHOWN = (
    "--help",
    "start --help",
    "status",
    "list",
    "log",
    "log --events",
    "show 5",
    "rules",
    "rules G01",
    "ops",
    "doctor",
    "verify",
)


@pytest.mark.parametrize("words", SHOWN)
def test_no_escape_codes_into_a_pipe_or_with_no_color(cli: Cli, long: Path, words: str) -> None:
    piped = cli(*words.split(), cwd=long)
    assert piped.stdout
    assert "\x1b" not in piped.stdout + piped.stderr
    told = on_a_terminal(long, *words.split(), NO_COLOR="1")
    assert told
    assert not COLOUR.search(told)


def on_a_terminal(cwd: Path, *words: str, **more: str) -> str:
    """What a command prints on a terminal of 80 columns."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 50, 80, 0, 0))
    env = environment(TERM="xterm-256color", **more)
    with subprocess.Popen(command(*words), cwd=cwd, env=env, stdin=theirs, stdout=theirs, stderr=theirs):
        os.close(theirs)
        told = b""
        with contextlib.suppress(OSError):  # how a terminal says that its last writer has left
            while chunk := os.read(ours, 65536):
                told += chunk
        os.close(ours)
    return told.decode()


def test_a_terminal_gets_colours(long: Path) -> None:
    assert COLOUR.search(on_a_terminal(long, "ops"))


# -- fast --------------------------------------------------------------------------------------------------------------
def test_help_answers_in_under_300_ms(tmp_path: Path) -> None:
    assert seconds(command("--help"), tmp_path, times=8) < 0.3


HEAVY = (
    "torch",
    "triton",
    "pandas",
    "numpy",
    "git",
    "jinja2",
    "yaml",
    "pydantic",
    "turbo_optimize.core.models",
    "turbo_optimize.engine",
)


def test_help_imports_nothing_heavy(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-X", "importtime", *command("--help")[1:]],
        cwd=tmp_path, env=environment(), capture_output=True, text=True, check=True,
    )  # fmt: skip
    imported = {line.rpartition("|")[2].strip() for line in done.stderr.splitlines() if line.startswith("import time:")}
    assert "typer" in imported
    assert imported.isdisjoint(HEAVY)


@pytest.mark.parametrize("words", ["status", "report", "list"])
def test_a_thousand_rounds_take_under_two_seconds(long: Path, words: str) -> None:
    """Of processor time: one thread works, so on an idle machine the clock says the same. The first run that is left
    in peace shows it; on a busy machine another may be needed."""
    name = [] if words == "list" else ["long"]
    took: list[float] = []
    while len(took) < 12 and min(took, default=2.0) >= 2.0:
        took.append(_run(command(words, *name), long)[1])
    assert min(took) < 2.0, took


def test_a_report_again_writes_nothing(cli: Cli, long: Path) -> None:
    assert cli("report", LONGEST, cwd=long).returncode == 0
    before = {p: p.stat().st_mtime_ns for p in (long / "campaigns" / LONGEST).rglob("*")}
    assert len(before) > 200
    assert cli("report", LONGEST, cwd=long).returncode == 0
    assert {p: p.stat().st_mtime_ns for p in (long / "campaigns" / LONGEST).rglob("*")} == before


# -- 80 columns --------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("name", COMMANDS)
def test_every_commands_help_fits_80_columns(cli: Cli, tmp_path: Path, name: str) -> None:
    done = cli(name, "--help", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    assert COMMANDS[name][1].split(":")[0].rstrip(".") in " ".join(done.stdout.split())
    fits(done.stdout)


def fits(text: str, columns: int = 80) -> None:
    wide = [line for line in text.splitlines() if len(line.rstrip()) > columns]
    assert not wide, wide[0]


@pytest.mark.parametrize(
    "words",
    ["--help", "status", "list", "log", "log --events", "show 1", "show 5", "show 100", "rules", "ops", "doctor"],
)
def test_tables_fit_80_columns(cli: Cli, long: Path, words: str) -> None:
    done = cli(*words.split(), cwd=long)
    assert done.returncode == 0, done.stderr
    fits("\n".join(line for line in done.stdout.splitlines() if not line.startswith("from /")))  # ops: its file's path
