"""A night: many campaigns, each compared with the last good night, and one word on the whole.

campaigns/nightly/<YYYYMMDD[-k]>/ holds `<target>.out` and `.log` (what `turbo-opt start` printed), junit.xml,
summary.md and night.json, which is the record that later nights read:

    format          1
    night           the folder's name
    name            of the nightly file; nights of one name are compared
    created         when it began, ISO 8601 with the zone
    commit          HEAD of the repository
    regression_pct  the threshold
    good            no failing campaign and no regression; only a good night is ever a reference
    targets         [{key, outcome, reference, change_pct, regression}]
      key           what has to be the same for two scores to be compared (see KEY)
      outcome       target, ok, why, campaign, dir, code, rounds, accepted, score, unit, gain_pct, gpu, device, seconds
      reference     {night, score} of the last good night with this key, or null
      change_pct    score against the reference's, percent; higher is better
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import Literal

from pydantic import ValidationError

from turbo_optimize.core.errors import GateFailed, TurboOptError
from turbo_optimize.core.models import Frozen
from turbo_optimize.core.scoring import gain_pct
from turbo_optimize.effects.devices import Device, runtime_dir
from turbo_optimize.effects.repo import Repo
from turbo_optimize.effects.store import disk_errors, write_atomic
from turbo_optimize.fleet.config import Night, Target
from turbo_optimize.fleet.executors import START, Executor, Outcome, Setting, Told, quiet

# A target's own words in its key; the GPU, its product name and the unit are those of the outcome.
KEY = ("op", "backend", "variant", "dtype", "shapes", "metric")
FOLDER = re.compile(r"(\d{8})(?:-(\d+))?")


class Reference(Frozen):
    night: str
    score: float


class Entry(Frozen):
    """One target of a night."""

    key: dict[str, str | None]
    outcome: Outcome
    reference: Reference | None = None
    change_pct: float | None = None
    regression: bool = False


class Record(Frozen):
    """night.json"""

    format: Literal[1] = 1
    night: str
    name: str
    created: str
    commit: str | None
    regression_pct: float
    good: bool
    targets: tuple[Entry, ...]

    @property
    def failing(self) -> tuple[Entry, ...]:
        return tuple(e for e in self.targets if not e.outcome.ok)

    @property
    def regressions(self) -> tuple[Entry, ...]:
        return tuple(e for e in self.targets if e.regression)


# -- comparing: pure ---------------------------------------------------------------------------------------------------
def key_of(target: Target, outcome: Outcome) -> dict[str, str | None]:
    own = {field: getattr(target, field) for field in KEY}
    own["backend"] = str(own["backend"]).upper()
    return own | {"gpu": outcome.gpu, "device": outcome.device, "unit": outcome.unit}


def compare(target: Target, outcome: Outcome, earlier: Sequence[Record], regression_pct: float) -> Entry:
    """A target's entry: its score against that of the last good night with the same key. `earlier`: oldest first."""
    key = key_of(target, outcome)
    if not outcome.ok or outcome.score is None:
        return Entry(key=key, outcome=outcome)
    reference = next(filter(None, (_reference(r, key, outcome.target) for r in reversed(earlier) if r.good)), None)
    if reference is None:
        return Entry(key=key, outcome=outcome)
    change = gain_pct(outcome.score, reference.score)
    worse = outcome.score < reference.score * (1 - regression_pct / 100)
    return Entry(key=key, outcome=outcome, reference=reference, change_pct=change, regression=worse)


def _reference(record: Record, key: dict[str, str | None], label: str) -> Reference | None:
    """A night's score of the same key; where several targets share it (another seed, say), that of the same name."""
    found = {e.outcome.target: e.outcome.score for e in record.targets if e.key == key and e.outcome.score}
    if not found:
        return None
    return Reference(night=record.night, score=found.get(label, next(iter(found.values()))))


def gate(record: Record) -> None:
    """GateFailed, exit 4, where a campaign failed or a score regressed."""
    if record.good:
        return
    counts = {"regression": record.regressions, "failing campaign": record.failing}
    told = [f"{len(x)} {what}{'s' * (len(x) > 1)} ({_labels(x)})" for what, x in counts.items() if x]
    raise GateFailed(f"night {record.night} of {record.name}: {', '.join(told)}", "its summary.md has the numbers")


def _labels(entries: Sequence[Entry]) -> str:
    return ", ".join(e.outcome.target for e in entries)


# -- the records of a folder -------------------------------------------------------------------------------------------
def records(home: Path, name: str) -> list[Record]:
    """Every finished night of a name, oldest first. TurboOptError where a record can't be read."""
    found = [(m, p) for p in home.glob("*/night.json") if (m := FOLDER.fullmatch(p.parent.name))]
    ordered = sorted(found, key=lambda x: (x[0][1], int(x[0][2] or 1)))
    return [r for r in (_read(path) for _, path in ordered) if r.name == name]


def _read(path: Path) -> Record:
    try:
        return Record.model_validate_json(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, ValidationError) as e:
        why = f"{e.errors()[0]['loc']}: {e.errors()[0]['msg']}" if isinstance(e, ValidationError) else str(e)
        mend = "put it back, or remove that night's folder"
        raise TurboOptError(f"{path}: not a night's record ({why})", mend) from None


def reserve(home: Path, day: str) -> Path:
    """A folder of this night's own: <day>, or <day>-2, … where there is one already."""
    with disk_errors(home):
        if not home.exists():  # only a folder of our own is hidden from git, never one that was there
            write_atomic(home / ".gitignore", "# written by turbo-opt: nights are not part of the repository\n*\n")
        k = 1
        while True:
            folder = home / (day if k == 1 else f"{day}-{k}")
            try:
                folder.mkdir()
            except FileExistsError:
                k += 1
                continue
            return folder


# -- the night ---------------------------------------------------------------------------------------------------------
def run(
    night: Night,
    repo: Repo,
    home: Path,
    execute: Executor,
    *,
    devices: Sequence[Device] = (),
    start_command: Sequence[str] = START,
    locks: Path | None = None,
    now: datetime | None = None,
    told: Told = quiet,
) -> tuple[Record, Path]:
    """Runs every target, writes the night's files; the record and its folder. `home` holds one folder a night."""
    began = now or datetime.now().astimezone()
    earlier = records(home, night.name)
    folder = reserve(home, began.strftime("%Y%m%d"))
    setting = Setting(
        top=repo.top, logs=folder, timeout_s=night.timeout_s, devices=tuple(devices), start_command=start_command,
        locks=locks or runtime_dir(), told=told,
    )  # fmt: skip
    outcomes = execute(night.targets, setting)
    entries = tuple(compare(t, outcomes[t.label], earlier, night.regression_pct) for t in night.targets)
    record = Record(
        night=folder.name, name=night.name, created=began.isoformat(timespec="seconds"), commit=repo.resolve("HEAD"),
        regression_pct=night.regression_pct, targets=entries,
        good=all(e.outcome.ok and not e.regression for e in entries),
    )  # fmt: skip
    write(record, folder)
    return record, folder


def write(record: Record, folder: Path) -> None:
    from turbo_optimize.fleet.summary import junit_xml, summary_md

    write_atomic(folder / "summary.md", summary_md(record))
    write_atomic(folder / "junit.xml", junit_xml(record))
    write_atomic(folder / "night.json", record.model_dump_json(indent=2) + "\n")
