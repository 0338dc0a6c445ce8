"""Runs the real command line again and again and kills it with SIGKILL at chosen operations.

`python crash_driver.py ORDER.json` where ORDER holds: template (a toy repository), record (a recorded campaign's folder,
or null for the real bench), first (commands that come before, undisturbed), start (arguments), again (arguments of the
command that goes on), points ([[kill, …], …]). A kill is [operation, when] with when `before`, `amid` or `after`; a
second kill strikes the command that goes on. Prints one JSON line: what each point left behind, and the operations of
the first point's start.

Operations are counted from outside: journal appends, git commands, answers of workers. The product has no hook for it.
Commands run in forks of this warm process, so that a point costs no start of Python.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
import tempfile
import threading
import traceback
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))

import git as _warm_git  # noqa: F401
import rich.console
import rich.table  # noqa: F401

from tests.toy import git
from turbo_optimize import engine
from turbo_optimize.cli import app, resume, start, undo  # noqa: F401
from turbo_optimize.core.state import fold
from turbo_optimize.effects import proc, replay, repo, store
from turbo_optimize.effects.store import read_events, scan, write_atomic
from turbo_optimize.phases.shared import harness  # noqa: F401
from turbo_optimize.reports.project import write_projections

NAME = "crash"
EPOCH = 1_780_000_000.0
# Journaled at every run, or once more after a crash: no part of what a campaign decided, so no part of its clock.
UNCOUNTED = ("opened", "spent")


class Strike:
    """Counts operations; at the chosen one the process kills itself as a power cut would."""

    def __init__(self, kill: Sequence[Any] | None, log: Path | None) -> None:
        self.at, self.when = kill or (None, None)
        self.count, self.log = 0, log

    def around(self, name: Callable[..., str], call: Callable[..., Any]) -> Callable[..., Any]:
        def counted(*args: Any, **kwargs: Any) -> Any:
            mine = self.count
            self.count += 1
            if self.log:
                with self.log.open("a") as f:
                    f.write(name(*args) + "\n")
            if mine == self.at and self.when == "before":
                die()
            if mine == self.at and self.when == "amid":  # git is at work by then, or has just ended
                threading.Timer(0.004, die).start()
            result = call(*args, **kwargs)
            if mine == self.at and self.when == "after":
                die()
            return result

        return counted


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def command_of(args: Sequence[str]) -> str:
    """`update-ref` of `--git-dir=… --work-tree=… update-ref …`."""
    return next(a for a in args if not a.startswith("-"))


def install(strike: Strike, record: Path | None) -> None:
    append = store.Journal.append

    def stamped(journal: store.Journal, event: Any) -> Any:
        decided = [e for e in journal.events if e.kind not in UNCOUNTED]
        journal._clock = lambda: EPOCH + len(decided)
        return append(journal, event)

    if record:
        store.Journal.append = strike.around(lambda _, e: f"journal {e.kind}", stamped)
        repo.Repo.git = strike.around(lambda _, *a: f"git {command_of(a)}", repo.Repo.git)
        engine.Campaign = partial(engine.Campaign, bench_override=replay.ReplayBench(record))  # type: ignore[misc]
    else:
        store.Journal.append = stamped  # type: ignore[method-assign]
        proc.Worker.receive = strike.around(lambda w, _, what: f"{w.name} {what}", proc.Worker.receive)


def run(
    where: Path, args: Sequence[str], record: Path | None, kill: Sequence[Any] | None, log: Path | None = None
) -> int:
    """One command in a fork: its exit code, or minus the signal that ended it."""
    child = os.fork()
    if child:
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    try:
        os.chdir(where)
        out = os.open(where.parent / "out.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.dup2(out, 1)
        os.dup2(out, 2)
        install(Strike(kill, log), record)
        sys.argv = ["turbo-opt", *args]
        app.main()
        code = 0
    except SystemExit as e:
        code = e.code if isinstance(e.code, int) else int(e.code is not None)
    except BaseException:
        traceback.print_exc()
        code = 70
    sys.stdout.flush()
    os._exit(code)


def facts(where: Path, exact: bool) -> dict[str, Any]:
    """What must not depend on crashes. `exact`: with ids; the journal's clock and a recorded bench make them repeatable."""
    folder = where / "campaigns" / NAME
    events = [e for e in read_events(folder / "journal.jsonl") if e.kind not in UNCOUNTED]
    lineage = git(where, "rev-list", "--reverse", f"main..optimize/{NAME}").split()
    refs = git(where, "for-each-ref", "--format=%(refname)", f"refs/turbo-opt/{NAME}/").split()
    ident = (lambda c: c) if exact else (lambda c: git(where, "rev-parse", f"{c}^{{tree}}"))
    return {
        "events": [e.kind for e in events] if exact else [],
        "learned": [e.model_dump(mode="json", exclude={"at"}) for e in events if e.kind == "learned"] if exact else [],
        "decisions": [(e.round, e.decision.verdict, e.decision.code) for e in events if e.kind == "decided"],
        "rounds": sorted({e.round for e in events if e.kind == "applied"}),
        "ended": [e.code for e in events if e.kind == "terminated"],
        "lineage": [(ident(c), git(where, "log", "-1", "--format=%s", c)) for c in lineage],
        "refs": {r: ident(git(where, "rev-parse", r)) for r in refs},
        "worktree": git(folder / "worktree", "status", "--porcelain", "--branch", "--ignored"),
        "at head": git(folder / "worktree", "rev-parse", "HEAD") == (lineage or [""])[-1],
        "user": git(where, "status", "--porcelain", "--branch", "--ignored"),
        "fsck": git(where, "fsck", "--strict", "--no-dangling"),
        "reported": (folder / "report" / "report.md").is_file(),
        "locks": [str(p) for p in (where / ".git").rglob("*.lock")],
    }


def known(where: Path) -> bool:
    journal = where / "campaigns" / NAME / "journal.jsonl"
    return journal.exists() and bool(scan(journal)[0])


def prepare(order: dict[str, Any], base: Path, snapshot: Path) -> None:
    """The toy in the state that every point starts from. Worktrees are tied to their place, so all points share one."""
    where, record = base / "toy", Path(order["record"]) if order["record"] else None
    shutil.copytree(order["template"], where, symlinks=True)
    for args in order["first"]:
        if run(where, args, record, None):
            raise RuntimeError((base / "out.log").read_text())
    base.rename(snapshot)


def survive(order: dict[str, Any], base: Path, kills: Sequence[Sequence[Any]], log: Path | None) -> dict[str, Any]:
    """Starts, dies at each kill in turn, then goes on until the command ends by itself."""
    where, record = base / "toy", Path(order["record"]) if order["record"] else None
    codes: list[int] = []
    for kill in [*kills, None]:
        args = order["again"] if codes and known(where) else order["start"]
        codes.append(run(where, args, record, kill, None if codes else log))
    return {"kills": kills, "codes": codes, **result(where, record is not None)}


def result(where: Path, exact: bool) -> dict[str, Any]:
    try:
        return {"facts": json.loads(json.dumps(facts(where, exact)))}
    except Exception:
        return {"facts": traceback.format_exc(), "log": (where.parent / "out.log").read_text()[-3000:]}


def main() -> None:
    order = json.loads(Path(sys.argv[1]).read_text())
    root = Path(tempfile.mkdtemp(prefix="crash-", dir="/dev/shm" if os.access("/dev/shm", os.W_OK) else None))
    found, log = [], root / "operations"
    try:
        if order["record"]:  # compiles the templates once, for all forks
            write_projections(fold(read_events(Path(order["record"]) / "journal.jsonl")), root / "warm", write_atomic)
        base = root / "point"
        prepare(order, base, root / "snapshot")
        for n, kills in enumerate(order["points"]):
            shutil.copytree(root / "snapshot", base, symlinks=True)
            found.append(survive(order, base, kills, None if n else log))
            shutil.rmtree(base)
        print(json.dumps({"points": found, "operations": log.read_text().splitlines()}))
    finally:
        shutil.rmtree(root, ignore_errors=True)


if __name__ == "__main__":
    main()
