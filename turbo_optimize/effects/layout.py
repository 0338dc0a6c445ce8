"""Where a campaign's files lie (SPEC §3). One place; everybody else asks."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Layout:
    root: Path

    @property
    def manifest(self) -> Path:
        return self.root / "manifest.yaml"

    @property
    def journal(self) -> Path:
        return self.root / "journal.jsonl"

    @property
    def lock(self) -> Path:
        return self.root / ".lock"

    @property
    def stop_request(self) -> Path:
        return self.root / ".stop"

    @property
    def harness(self) -> Path:
        return self.root / "quick_test_bench.py"

    @property
    def project(self) -> Path:
        """The project file as it was at DEFINE_TARGET: a later edit can't change a campaign's rules."""
        return self.root / "project.yaml"

    @property
    def worktree(self) -> Path:
        return self.root / "worktree"

    @property
    def logs(self) -> Path:
        return self.root / "logs"

    @property
    def report(self) -> Path:
        return self.root / "report"

    def tree(self, commit: str) -> Path:
        return self.root / ".trees" / commit[:16]

    def scratch(self, commit: str) -> Path:
        """Caches and scratch of one tree's processes; theirs alone."""
        return self.root / ".scratch" / commit[:22]

    @property
    def places(self) -> Path:
        """Folders of the processes that run now, one each."""
        return self.root / ".scratch" / "processes"

    def round(self, number: int) -> Path:
        return self.root / "rounds" / f"round-{number}"

    def artifacts(self, key: str) -> Path:
        """CSVs, samples and logs of `round-N`, or of a comparison of the report (`final`, `without-N`)."""
        if key.startswith("round-"):
            return self.root / "rounds" / key / "artifacts"
        return self.report / "artifacts" / key

    def samples(self, key: str) -> Path:
        return self.artifacts(key) / "samples.csv"

    def csv(self, key: str, full: bool) -> Path:
        return self.artifacts(key) / ("full_benchmark.csv" if full else "benchmark.csv")


def key_of(round: int) -> str:
    return f"round-{round}"
