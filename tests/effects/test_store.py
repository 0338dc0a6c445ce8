"""The journal, atomic files and locks, on real and on full file systems."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.factory import make_events
from tests.toy import TOY, environment, git, make, patches, run
from turbo_optimize.core.errors import JournalError, LockedError, TurboOptError
from turbo_optimize.core.events import StopAsked
from turbo_optimize.effects.store import Journal, Lock, read_events, scan, write_atomic


def ticks() -> Iterator[float]:
    yield from range(1000, 100_000)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A journal of 30 events and more."""
    clock = ticks()
    journal = Journal(tmp_path / "journal.jsonl", lambda: next(clock))
    for event in make_events(4, seed=1):
        journal.append(event)
    return journal.path


# -- the journal -------------------------------------------------------------------------------------------------------
def test_what_is_appended_is_read_back_with_its_time(path: Path) -> None:
    events = read_events(path)
    assert [e.at for e in events] == [float(1000 + n) for n in range(len(events))]
    assert [e.model_copy(update={"at": 0.0}) for e in events] == [
        e.model_copy(update={"at": 0.0}) for e in make_events(4, seed=1)
    ]


def test_a_new_journal_goes_on_where_the_file_ends(path: Path) -> None:
    Journal(path).append(StopAsked(why="x"))
    numbers = [json.loads(x)["n"] for x in path.read_text().splitlines()]
    assert numbers == list(range(1, len(numbers) + 1))
    assert read_events(path)[-1].kind == "stop_asked"


@pytest.mark.parametrize("keep", [0, 1, 17, -1])
def test_a_torn_tail_is_cut_and_nothing_else(path: Path, keep: int) -> None:
    whole = path.read_bytes()
    last = whole.splitlines()[-1]
    path.write_bytes(whole + last[: keep % len(last)])
    assert len(read_events(path)) == len(whole.splitlines())  # reading leaves the file as it is
    assert path.read_bytes() != whole or keep == 0
    Journal(path)
    assert path.read_bytes() == whole


def test_a_journal_that_is_one_torn_line_is_empty(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    path.write_bytes(b'{"n":1,"sum":"')
    assert Journal(path).events == []
    assert path.read_bytes() == b""


def _edit(lines: list[bytes]) -> None:
    lines[4] = lines[4].replace(b'"at":1004', b'"at":1005')


def _swap(lines: list[bytes]) -> None:
    lines[4], lines[5] = lines[5], lines[4]


DAMAGE = {
    "garbage": (lambda lines: lines.__setitem__(4, b"\x00\xffgarbage"), "not a journal line"),
    "cut": (lambda lines: lines.__setitem__(4, lines[4][:40]), "not a journal line"),
    "edited": (_edit, "doesn't follow"),
    "lost": (lambda lines: lines.pop(4), "is missing or out of place"),
    "doubled": (lambda lines: lines.insert(4, lines[3]), "is missing or out of place"),
    "swapped": (_swap, "is missing or out of place"),
}


@pytest.mark.parametrize("name", DAMAGE)
def test_damage_names_its_line(path: Path, name: str) -> None:
    damage, problem = DAMAGE[name]
    lines = path.read_bytes().splitlines()
    damage(lines)
    path.write_bytes(b"\n".join(lines) + b"\n")
    with pytest.raises(JournalError, match="line 5: ") as e:
        Journal(path)
    assert problem in str(e.value)
    assert "verify" in e.value.hint
    assert scan(path)[0][4].problem


def test_a_foreign_first_line_is_refused(path: Path) -> None:
    """A line of another journal, whole in itself, doesn't chain to this one."""
    lines = path.read_bytes().splitlines()
    path.write_bytes(lines[1] + b"\n")
    with pytest.raises(JournalError, match="line 1"):
        read_events(path)


# -- atomic files ------------------------------------------------------------------------------------------------------
def test_write_atomic_replaces_the_whole_file_or_leaves_it(tmp_path: Path) -> None:
    path = tmp_path / "a" / "b" / "file"
    write_atomic(path, "one")
    write_atomic(path, b"two", durable=True)
    assert path.read_bytes() == b"two"
    assert path.stat().st_mode & 0o777 == 0o644
    with pytest.raises(UnicodeEncodeError):
        write_atomic(path, "\udcff")
    assert path.read_bytes() == b"two"
    assert os.listdir(path.parent) == ["file"]


@pytest.mark.parametrize(
    ("make_way", "mend"),
    [(Path.touch, "a file stands where"), (lambda p: (p / "f").mkdir(parents=True), "a folder stands where")],
)
def test_something_in_the_way_is_one_line(tmp_path: Path, make_way, mend: str) -> None:
    make_way(tmp_path / "x")
    with pytest.raises(TurboOptError, match=mend):
        write_atomic(tmp_path / "x" / "f", "text")


# -- locks -------------------------------------------------------------------------------------------------------------
def test_a_lock_names_its_holder_and_dies_with_it(tmp_path: Path) -> None:
    path = tmp_path / ".lock"
    code = "import sys; from pathlib import Path; from turbo_optimize.effects.store import Lock\n"
    code += "Lock(Path(sys.argv[1]), 'it').acquire(); print(flush=True); sys.stdin.read()"
    with subprocess.Popen(
        [sys.executable, "-c", code, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment()
    ) as process:
        assert process.stdout
        process.stdout.readline()
        lock = Lock(path, "campaign x")
        with pytest.raises(LockedError, match=f"campaign x is held by process {process.pid}"):
            lock.acquire()
        assert lock.held_by_other()
        process.kill()
        process.wait()
    with lock.acquire():
        assert path.read_text() == f"{os.getpid()}\n"
    assert not lock.held_by_other()


# -- file systems that refuse ------------------------------------------------------------------------------------------
@contextlib.contextmanager
def mounted(where: Path, options: str) -> Iterator[Path]:
    """A small file system in memory. Skips where this user or this machine can't mount."""
    where.mkdir()
    done = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(where)], capture_output=True, text=True, check=False
    )
    if done.returncode:
        pytest.skip(f"can't mount a small file system: {done.stderr.strip()}")
    try:
        yield where
    finally:
        subprocess.run(["umount", "--lazy", str(where)], check=True)


def fill(where: Path, leave: int = 0) -> Path:
    """Takes all the space, then gives `leave` bytes back."""
    ballast = where / "ballast"
    with ballast.open("wb", buffering=0) as f, contextlib.suppress(OSError):
        while True:
            f.write(bytes(4096))
    if leave:
        os.truncate(ballast, max(0, ballast.stat().st_size - leave))
    return ballast


def test_a_full_disk_leaves_the_journal_whole(tmp_path: Path) -> None:
    with mounted(tmp_path / "small", "size=256k") as small:
        journal = Journal(small / "journal.jsonl")
        journal.append(StopAsked(why="one"))
        ballast = fill(small)
        whole = journal.path.read_bytes()
        with pytest.raises(TurboOptError, match="no space left on device") as e:
            journal.append(StopAsked(why="x" * 9000))  # more than is left of the last page
        assert "free some space" in e.value.hint
        assert journal.path.read_bytes() == whole
        with pytest.raises(TurboOptError, match="no space left"):
            write_atomic(small / "file", "y" * 9000)
        assert sorted(os.listdir(small)) == ["ballast", "journal.jsonl"]
        ballast.unlink()
        journal.append(StopAsked(why="two"))
        assert read_events(journal.path)[-1] == journal.events[-1]


def test_a_file_size_limit_leaves_the_journal_whole(tmp_path: Path) -> None:
    """The same without a mount: the limit strikes in the middle of a line."""
    code = """
import resource, signal, sys
from pathlib import Path
from turbo_optimize.core.events import StopAsked
from turbo_optimize.effects.store import Journal
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
journal = Journal(Path(sys.argv[1]))
journal.append(StopAsked(why="one"))
resource.setrlimit(resource.RLIMIT_FSIZE, (journal.path.stat().st_size + 50,) * 2)
try:
    journal.append(StopAsked(why="two"))
except Exception as e:
    print(type(e).__name__, e)
"""
    path = tmp_path / "journal.jsonl"
    done = subprocess.run(
        [sys.executable, "-c", code, str(path)], capture_output=True, text=True, env=environment(), check=True
    )
    assert "TurboOptError" in done.stdout
    assert "file too large" in done.stdout
    assert [e.why for e in read_events(path) if isinstance(e, StopAsked)] == ["one"]
    assert path.read_bytes().endswith(b"\n")


@pytest.mark.parametrize("leave", [0, 100_000, 200_000, 260_000, 300_000, 330_000])
def test_a_campaign_on_a_full_disk_stops_in_one_line_and_goes_on_later(tmp_path: Path, leave: int) -> None:
    with mounted(tmp_path / "small", "size=8m") as small:
        repo = make(small)
        folder = patches(tmp_path)
        ballast = fill(small, leave)
        args = ("start", *TOY, "--patches", str(folder), "--max-rounds", "2", "--name", "c", "--json")
        done = run(repo, *args)
        assert done.returncode == 1, done.stderr
        errors = [x for x in done.stderr.splitlines() if x.startswith("turbo-opt:")]
        assert len(errors) == 1
        assert "no space left on device" in errors[0].lower()
        assert "Traceback" not in done.stderr
        ballast.unlink()
        begun = (repo / "campaigns/c/journal.jsonl").exists() and read_events(repo / "campaigns/c/journal.jsonl")
        again = run(repo, "resume", "c", "--json") if begun else run(repo, *args)
        assert again.returncode == 0, again.stderr
        assert json.loads(again.stdout.splitlines()[-1])["accepted"] == 1
        assert git(repo, "fsck", "--strict", "--no-dangling") == ""


def test_a_read_only_checkout_is_one_line(tmp_path: Path) -> None:
    with mounted(tmp_path / "small", "size=8m") as small:
        repo = make(small)
        folder = patches(tmp_path)
        subprocess.run(["mount", "-o", "remount,ro", str(small)], check=True)
        done = run(repo, "start", *TOY, "--patches", str(folder))
        assert done.returncode == 1
        assert done.stderr.splitlines()[-1].startswith("turbo-opt: ")
        assert "read-only file system" in done.stderr
        assert "Traceback" not in done.stderr


def test_a_folder_without_permission_is_one_line(tmp_path: Path) -> None:
    if os.geteuid() == 0:
        pytest.skip("permissions don't bind root")
    (tmp_path / "closed").mkdir(mode=0o555)
    with pytest.raises(TurboOptError, match="permission denied"):
        write_atomic(tmp_path / "closed" / "file", "x")
