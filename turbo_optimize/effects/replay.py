"""A recorded campaign answers in place of a device: the same engine, no GPU. What was never recorded is an error."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from turbo_optimize.core.checks import Norms
from turbo_optimize.core.errors import TurboOptError
from turbo_optimize.core.events import Baselined, Gated, Learned, Measured, Proposed
from turbo_optimize.core.models import GateResult, Level, Proposal, Sample, Shape
from turbo_optimize.effects.bench import Hint, Outcome, Refine, Tree
from turbo_optimize.effects.layout import Layout
from turbo_optimize.effects.store import read_events

SAMPLE_COLUMNS = tuple(Sample.model_fields)
FIRST_COLUMNS = SAMPLE_COLUMNS[: SAMPLE_COLUMNS.index("wall_ms") + 1]  # all that records of earlier versions have


def format_samples(samples: Sequence[Sample]) -> str:
    """samples.csv: one block a line, times in milliseconds (exact floats)."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(SAMPLE_COLUMNS)
    for s in samples:
        writer.writerow(["" if v is None else repr(v) if isinstance(v, float) else v for v in s.model_dump().values()])
    return out.getvalue()


def parse_samples(text: str, where: str) -> tuple[Sample, ...]:
    """The inverse of format_samples; TurboOptError names the line that isn't a sample."""
    rows = csv.reader(io.StringIO(text))
    header = next(rows, None)
    if header not in (list(SAMPLE_COLUMNS), list(FIRST_COLUMNS)):
        raise TurboOptError(f"{where} line 1: expected the columns {','.join(SAMPLE_COLUMNS)}")
    samples = []
    for number, row in enumerate(rows, start=2):
        try:
            cells = dict(zip(header, row, strict=True))
            samples.append(Sample.model_validate({k: v or None for k, v in cells.items()}))
        except ValueError as e:
            raise TurboOptError(f"{where} line {number}: not a sample ({str(e).splitlines()[0]})") from None
    return tuple(samples)


class ReplayBench:
    """Answers `check`, `session` and `sweep` from a campaign folder's journal and samples."""

    def __init__(self, record: Path) -> None:
        self.record = record

    @cached_property
    def _events(self) -> list[Any]:
        return read_events(self.record / "journal.jsonl")

    def samples(self, key: str) -> tuple[Sample, ...]:
        """Every block of a round or comparison, as recorded."""
        path = Layout(self.record).samples(key)
        if not path.exists():
            raise TurboOptError(f"{path}: nothing was recorded for {key}")
        return parse_samples(path.read_text(), str(path))

    def proposals(self) -> dict[int, list[Proposal]]:
        """Every recorded proposal by round, attempts in order."""
        found: dict[int, list[Proposal]] = {}
        for e in self._events:
            if isinstance(e, Proposed):
                found.setdefault(e.round, []).append(e.proposal)
        return found

    def learn(self, key: str, tree: Tree, shapes: Sequence[Shape]) -> Outcome:
        """The base's checks and norms; a record from before there were any has none, and arms nothing."""
        out = Outcome(norms=Norms(), binary_sha256="recorded")
        for e in self._events:
            if isinstance(e, Baselined) and not out.checks:
                out.checks, out.binary_sha256 = e.checks, e.binary_sha256
            elif isinstance(e, Learned):
                out.norms, out.checks, out.binary_sha256 = e.norms, e.checks, e.binary_sha256
                out.environment = e.versions
        return out

    def self_test(self, key: str, tree: Tree, shapes: Sequence[Shape], norms: Norms) -> tuple[GateResult, ...]:
        return next((e.self_test for e in self._events if isinstance(e, Learned)), ())

    def expect(self) -> None:
        """Nothing starts."""

    def weight_cap(self, key: str, incumbent: Tree, shapes: Sequence[Shape]) -> float:
        caps = [e.cap_pct for e in self._events if isinstance(e, Gated) and e.round == _round(key)]
        return next((c for c in caps if c is not None), 0.0)

    def probe(self, key: str, tree: Tree, shape: Shape) -> float:
        return 0.0

    def close(self) -> None:
        """Nothing runs."""

    def check(
        self, key: str, attempt: int, tree: Tree, shapes: Sequence[Shape], norms: Norms, weight_cache: bool
    ) -> Outcome:
        round, rows = _round(key), None
        binary = ""
        for e in self._events:
            if isinstance(e, Gated) and (e.round, e.attempt) == (round, attempt):
                rows = e.checks
            elif isinstance(e, Measured) and e.round == round:
                binary = e.binary_sha256
        if rows is None:
            raise TurboOptError(f"{self.record}: no check of {key}, attempt {attempt} was recorded")
        wanted = {s.label for s in shapes}
        return Outcome(checks=tuple(r for r in rows if r.shape in wanted), binary_sha256=binary or "recorded")

    def session(
        self, key: str, level: Level, index: int, incumbent: Tree, candidate: Tree, shapes: Sequence[Shape]
    ) -> Outcome:
        found = tuple(s for s in self.samples(key) if (s.level, s.session) == (level, index))
        if not found:
            raise TurboOptError(f"{self.record}: no {level} session {index} of {key} was recorded")
        binary = next(
            (e.binary_sha256 for e in self._events if isinstance(e, Measured) and e.round == _round(key)), "recorded"
        )
        return Outcome(samples=found, binary_sha256=binary)

    def sweep(
        self,
        key: str,
        tree: Tree,
        shapes: Sequence[Shape],
        section: str,
        configs: Sequence[Mapping[str, Any]],
        refine: Refine | None = None,
    ) -> Outcome:
        recorded = [p for p in self.proposals().get(_round(key), []) if p.hints]
        if not recorded:
            raise TurboOptError(f"{self.record}: no sweep of {key} was recorded")
        by_config = {tuple(sorted(h["config"].items())): h for h in recorded[0].hints}
        hints: list[Hint] = []
        for more in (lambda _: configs, refine or (lambda _: ())):
            for c in more(hints):
                hints.append(by_config.get(tuple(sorted(c.items())), {"config": dict(c), "error": "not recorded"}))
        return Outcome(hints=tuple(hints))


def _round(key: str) -> int:
    return int(key.removeprefix("round-")) if key.startswith("round-") else 0
