"""How numbers come to be: the Bench protocol. `DuetBench` (duet.py) measures, `ReplayBench` (replay.py) remembers."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from turbo_optimize.core.checks import Norms
from turbo_optimize.core.models import CheckRow, GateResult, Level, Sample, Shape
from turbo_optimize.effects.store import sha256_bytes

Hint = dict[str, Any]  # {"config": …, "ms": {shape: …}} or {"config": …, "error": …}
Refine = Callable[[Sequence[Hint]], Sequence[Mapping[str, Any]]]


@dataclass(frozen=True)
class Tree:
    """A commit's files on disk, and the caches that belong to it alone."""

    commit: str
    path: Path
    scratch: Path


@dataclass
class Outcome:
    """What a bench call brought back, and where its time went (seconds by part)."""

    checks: tuple[CheckRow, ...] = ()
    findings: tuple[GateResult, ...] = ()  # what the checks object to beyond single shapes
    norms: Norms | None = None  # what the base reaches (`learn`)
    notes: tuple[str, ...] = ()  # sessions that were void, and why
    samples: tuple[Sample, ...] = ()
    hints: tuple[dict[str, Any], ...] = ()
    binary_sha256: str = ""
    environment: dict[str, str] = field(default_factory=dict)
    parts: dict[str, float] = field(default_factory=dict)


class Bench(Protocol):
    """The one place that numbers come from. `key` (round-N, final, without-N) and `index` name the call, so that a record can answer it."""

    def learn(self, key: str, tree: Tree, shapes: Sequence[Shape]) -> Outcome: ...

    def self_test(self, key: str, tree: Tree, shapes: Sequence[Shape], norms: Norms) -> tuple[GateResult, ...]: ...

    def expect(self) -> None: ...

    def check(
        self, key: str, attempt: int, tree: Tree, shapes: Sequence[Shape], norms: Norms, weight_cache: bool
    ) -> Outcome: ...

    def session(
        self, key: str, level: Level, index: int, incumbent: Tree, candidate: Tree, shapes: Sequence[Shape]
    ) -> Outcome: ...

    def sweep(
        self,
        key: str,
        tree: Tree,
        shapes: Sequence[Shape],
        section: str,
        configs: Sequence[Mapping[str, Any]],
        refine: Refine | None = None,
    ) -> Outcome: ...

    def weight_cap(self, key: str, incumbent: Tree, shapes: Sequence[Shape]) -> float: ...

    def probe(self, key: str, tree: Tree, shape: Shape) -> float: ...

    def close(self) -> None: ...


def add_parts(parts: dict[str, float], more: Mapping[str, float]) -> None:
    """Adds seconds by part, in place."""
    for name, seconds in more.items():
        parts[name] = parts.get(name, 0.0) + seconds


@contextmanager
def timed(parts: dict[str, float], name: str) -> Iterator[None]:
    """Adds the seconds of its body to `parts[name]`."""
    start = time.monotonic()
    try:
        yield
    finally:
        add_parts(parts, {name: time.monotonic() - start})


def binaries_sha256(caches: Path) -> str:
    """One hash over every binary that a tree's private cache holds; names and times don't count."""
    found = [p for p in caches.rglob("*") if p.suffix in {".cubin", ".hsaco", ".so"} and p.is_file()]
    return sha256_bytes("".join(sorted(sha256_bytes(p.read_bytes()) for p in found)).encode()) if found else ""
