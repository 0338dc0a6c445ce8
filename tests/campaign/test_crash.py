"""A runner that is killed at any moment, then told to go on, ends where an undisturbed one ends.

SIGKILL to real processes over real git, by crash_driver.py: at every journal append, around and amid every git command
that changes something, before the first of every run of commands that only read, and in the middle of measurements.
Over a recorded bench the clock is the journal's own length, so everything must be equal, commit ids included.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.campaign.conftest import Shared
from tests.toy import CHECKOUT, TOY, environment, make, patches, run
from turbo_optimize.core.events import Learned
from turbo_optimize.effects.store import read_events

CHUNKS = 8
NAME = "crash"
GOES_ON = ["resume", NAME]
READS = {"check-ref-format", "config", "diff", "diff-tree", "for-each-ref", "log", "ls-tree", "rev-parse", "show"}
READS |= {"status", "rev-list"}

Point = list[list[Any]]


def start(folder: Path, rounds: int) -> list[str]:
    return ["start", *TOY, "--patches", str(folder / "patches"), "--max-rounds", str(rounds), "--name", NAME]


def drive(folder: Path, tmp: Path, **order: Any) -> dict[str, Any]:
    """What crash_driver.py found."""
    file = tmp / "order.json"
    base = {"template": str(folder / "toy"), "again": GOES_ON, "first": [], "record": str(folder / "record")}
    file.write_text(json.dumps(base | order))
    command = [sys.executable, str(CHECKOUT / "tests/campaign/crash_driver.py"), str(file)]
    done = subprocess.run(command, capture_output=True, text=True, env=environment(), check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def recorded(rounds: int, keep: tuple[str, ...]) -> Any:
    """Fills a folder with a toy, patches, a real campaign as a record, and an undisturbed run over that record."""

    def fill(folder: Path) -> None:
        repo = make(folder)
        for patch in patches(folder).iterdir():
            if not patch.name.startswith(keep):
                patch.unlink()
        original = folder / "original"
        shutil.copytree(repo, original, symlinks=True)
        done = run(original, *start(folder, rounds))
        assert done.returncode == 0, done.stderr
        (original / "campaigns" / NAME).rename(folder / "record")
        found = drive(folder, folder, start=start(folder, rounds), points=[[]])
        (folder / "reference.json").write_text(json.dumps(found))

    return fill


def reference(folder: Path) -> dict[str, Any]:
    found = json.loads((folder / "reference.json").read_text())
    found["reference"] = found["points"][0]
    assert found["reference"]["codes"] == [0], found
    return found


def points(operations: list[str]) -> list[Point]:
    """Every single kill that leaves something else behind than its neighbours."""
    out: list[Point] = []
    before = ""
    for n, (kind, what) in enumerate(x.split(" ", 1) for x in operations):
        if kind == "journal":
            out += [[[n, "before"]], [[n, "after"]]]
        elif what not in READS:
            out += [[[n, "before"]], [[n, "amid"]], [[n, "after"]]]
        elif before not in READS:
            out.append([[n, "before"]])
        before = what
    return out


def judge(found: dict[str, Any], wanted: dict[str, Any]) -> None:
    for point in found["points"]:
        facts = point["facts"]
        assert isinstance(facts, dict), f"{point['kills']}: {facts}\n{point['log']}"
        assert facts == wanted, point["kills"]
        assert point["codes"] == [-9] * len(point["kills"]) + [0], point["kills"]


# -- over a record -----------------------------------------------------------------------------------------------------
@pytest.fixture(scope="session")
def short(shared: Shared) -> Path:
    """Two attempts: one is accepted, one fails its check."""
    return shared("short", recorded(3, ("0001", "0003")))


@pytest.fixture(scope="session")
def long(shared: Shared) -> Path:
    """Four attempts: accepted, slower, wrong, accepted."""
    return shared("long", recorded(5, ("0",)))


def test_more_than_a_hundred_kill_points(short: Path) -> None:
    found = reference(short)
    assert len(points(found["operations"])) >= 100
    facts = found["reference"]["facts"]
    kinds = [e.kind for e in read_events(short / "record" / "journal.jsonl")]
    assert {f"journal {k}" for k in kinds} <= set(found["operations"])  # every kind of event is a point
    assert [d[1:] for d in facts["decisions"]] == [["ACCEPTED", "D00"], ["ROLLBACK", "G04"]]
    assert len(facts["lineage"]) == 1
    assert facts["at head"]
    assert facts["user"] == "## main\n!! campaigns/"


def test_what_the_base_taught_is_the_records_and_killed_at(short: Path) -> None:
    """The checks that arm themselves by the base's figures are asked of the bench once, and never of another run's."""
    found = reference(short)
    (learned,) = [e for e in read_events(short / "record" / "journal.jsonl") if isinstance(e, Learned)]
    assert learned.norms.fills
    assert len(learned.self_test) == 7
    assert found["reference"]["facts"]["learned"] == [learned.model_dump(mode="json", exclude={"at"})]
    at = found["operations"].index("journal learned")
    assert {(at, "before"), (at, "after")} <= {(n, when) for [[n, when]] in points(found["operations"])}


@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_killed_once_anywhere(short: Path, tmp_path: Path, chunk: int) -> None:
    known = reference(short)
    mine = points(known["operations"])[chunk::CHUNKS]
    found = drive(short, tmp_path, start=start(short, 3), points=mine)
    assert len(found["points"]) == len(mine)
    judge(found, known["reference"]["facts"])


def test_killed_again_while_going_on(long: Path, tmp_path: Path) -> None:
    """The second kill strikes early in the resume: while it settles what the first one left."""
    known = reference(long)
    operations = known["operations"]
    decided = [n for n, x in enumerate(operations) if x == "journal decided"]
    first = [[n + k, "after"] for n in decided for k in (0, 3, 7)]
    second = [[1, "after"], [3, "amid"], [5, "before"], [8, "after"], [11, "amid"], [14, "before"]]
    mine = [[one, second[n % len(second)]] for n, one in enumerate(first)]
    mine += [[[60, "after"], [4, "after"], [9, "before"]]]
    found = drive(long, tmp_path, start=start(long, 5), points=mine)
    judge(found, known["reference"]["facts"])


# -- undo --------------------------------------------------------------------------------------------------------------
def test_killed_while_a_round_is_undone(short: Path, tmp_path: Path) -> None:
    """`undo` is intent and fact too: once it is journaled, the next command finishes it, to the same revert commit."""
    order = {"first": [start(short, 3)], "start": ["undo", "2", "--campaign", NAME]}
    never = [[10**6, "before"]]
    known = drive(short, tmp_path, points=[never], **order)
    undone = known["points"][0]
    assert undone["codes"] == [0, 0]
    assert [s for _, s in undone["facts"]["lineage"]][-1].startswith('Revert "[optimize]')
    operations = known["operations"]
    intent = operations.index("journal undo_decided")
    mine = [p for p in points(operations) if p[0][0] > intent or p == [[intent, "after"]]]
    assert len(mine) >= 15
    judge(drive(short, tmp_path, points=mine, **order), undone["facts"])


# -- real measurements -------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("chunk", range(4))
def test_killed_while_measuring(short: Path, tmp_path: Path, chunk: int) -> None:
    """Real workers, dead with their runner; what was cut off is measured again. Numbers differ, decisions don't."""
    wanted = reference(short)["reference"]["facts"]
    order = {"start": start(short, 3), "record": None}
    answers = 770  # about as many as the campaign has; the last chunk's are in the report
    mine = [[[answers * n // 12, ("after", "before")[n % 2]]] for n in range(1, 12)][chunk::4]
    for point in drive(short, tmp_path, points=mine, **order)["points"]:
        facts = point["facts"]
        assert isinstance(facts, dict), f"{facts}\n{point.get('log')}"
        assert point["codes"] == [-9, 0], point["kills"]
        for key in ("decisions", "rounds", "ended", "worktree", "user", "fsck", "at head", "reported", "locks"):
            assert facts[key] == wanted[key], (point["kills"], key)
        assert [s for _, s in facts["lineage"]] == [s for _, s in wanted["lineage"]]
        assert set(facts["refs"]) == set(wanted["refs"])
