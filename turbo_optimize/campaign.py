"""One campaign in the hands of one runner: its journal, its state, its repository and its bench."""

from __future__ import annotations

import os
import shutil
import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from turbo_optimize.core.checks import Norms
from turbo_optimize.core.errors import CsvError, TurboOptError, WorkerError
from turbo_optimize.core.events import Event, Spent
from turbo_optimize.core.hardware import floor_ms
from turbo_optimize.core.models import Backend, CheckRow, Manifest, Op, Policy, Sample, Score, Session, Shape
from turbo_optimize.core.replaying import session_of
from turbo_optimize.core.schema import Row, Schema, format_csv, parse_csv, schema_for, unmeasured_row
from turbo_optimize.core.scoring import row_values, score
from turbo_optimize.core.state import State, fold, step
from turbo_optimize.effects.bench import Bench, Outcome, Tree
from turbo_optimize.effects.devices import first_visible, stay_off, timing_core
from turbo_optimize.effects.duet import DuetBench
from turbo_optimize.effects.layout import Layout
from turbo_optimize.effects.replay import format_samples
from turbo_optimize.effects.repo import Repo
from turbo_optimize.effects.store import Journal, MemoryJournal, disk_errors, sha256_bytes, sha256_file, write_atomic
from turbo_optimize.effects.telemetry import Telemetry
from turbo_optimize.effects.trials import Trials
from turbo_optimize.effects.workers import Workers
from turbo_optimize.projects.loader import load_project

SPARE_WORKERS = 3  # ready on a GPU machine beyond those in use: the next round's


@dataclass
class Stop:
    """Set by the first ^C or by `turbo-opt stop`; heeded between steps."""

    asked: str | None = None


@dataclass
class Campaign:
    """Everything a phase needs. Only `record` changes the state; phases yield events, the engine records them."""

    layout: Layout
    repo: Repo
    journal: Journal | MemoryJournal
    say: Callable[[str], None] = lambda _: None
    stop: Stop = field(default_factory=Stop)
    bench_override: Bench | None = None
    proposer_override: object | None = None
    state: State = field(default_factory=State)
    cpus: set[int] | None = None  # what this process ran on before it left one to the workers
    noisy: dict[str, Any] = field(default_factory=dict)  # what BASELINE makes of the policy, until it is journaled

    def __post_init__(self) -> None:
        self.state = fold(self.journal.events)

    def record(self, event: Event) -> None:
        self.state = step(self.state, self.journal.append(event))

    # -- the target ------------------------------------------------------------------------------------------------
    @property
    def manifest(self) -> Manifest:
        if self.state.manifest is None:
            raise TurboOptError(f"{self.layout.root}: the journal has no target", "start the campaign again")
        return self.state.manifest

    @property
    def policy(self) -> Policy:
        """The manifest's, with what BASELINE's noise made of it."""
        b = self.state.baseline
        found = {"quads": b.quads, "min_gain_pct": b.min_gain_pct} if b else self.noisy
        return self.manifest.policy.model_copy(update={k: v for k, v in found.items() if v is not None})

    @property
    def norms(self) -> Norms:
        """What the base reaches under the checks; nothing is armed in records from before there were any."""
        return self.state.learned.norms if self.state.learned else Norms()

    @cached_property
    def op(self) -> Op:
        return load_project(self.layout.project).ops[self.manifest.target_op]

    @cached_property
    def backend(self) -> Backend:
        return self.op.backends[self.manifest.target_backend]

    @cached_property
    def schema(self) -> Schema:
        return schema_for(self.manifest.schema_class, self.manifest.execution_mode)

    @property
    def base(self) -> str:
        return self.manifest.base_commit

    @property
    def incumbent(self) -> str:
        return self.state.incumbent or self.base

    @property
    def representative(self) -> tuple[Shape, ...]:
        """The quick validation's shapes; before BASELINE chose them, all."""
        b = self.state.baseline
        return tuple(self.manifest.shape(x) for x in b.representative_shapes) if b else self.manifest.target_shapes

    def ref(self, name: str) -> str:
        return f"refs/turbo-opt/{self.manifest.campaign}/{name}"

    @property
    def versions(self) -> dict[str, str]:
        """Of what the workers imported."""
        return self.state.learned.versions if self.state.learned else {}

    # -- trees and harness -----------------------------------------------------------------------------------------
    def tree(self, commit: str) -> Tree:
        return Tree(commit, self.repo.export(commit, self.layout.tree(commit)), self.layout.scratch(commit))

    def sweep_tree(self, commit: str) -> Tree:
        """The same files with caches of their own: what a sweep compiles is no part of the tree's binaries."""
        return Tree(commit, self.repo.export(commit, self.layout.tree(commit)), self.layout.scratch(f"sweep-{commit}"))

    def seed_caches(self, parent: str, commit: str) -> None:
        """A candidate begins with a copy of its parent's compiled kernels: keyed by source, so only changes compile."""
        source, target = self.layout.scratch(parent) / "triton", self.layout.scratch(commit) / "triton"
        if source.is_dir() and not target.exists():
            with disk_errors(target):
                shutil.copytree(source, target)

    def harness_files(self, tree: Path) -> list[Path]:
        """The files that judge: the rendered bench, the adapter and what the project freezes beside it."""
        return [self.layout.harness, *(tree / name for name in (self.op.adapter, *self.op.frozen))]

    def harness_sha256(self, tree: Path) -> str:
        return sha256_bytes("".join(sha256_file(p) for p in self.harness_files(tree)).encode())

    def fingerprint(self, tree: Tree) -> str:
        """One hash over a tree's kernel, editable and harness files, as they lie on disk."""
        patterns = (*self.backend.kernel_source, *self.backend.editable)
        found = {p for pattern in patterns for p in tree.path.glob(pattern) if p.is_file()}
        files = [*sorted(found), *self.harness_files(tree.path)]
        return sha256_bytes("".join(f"{p.name}:{sha256_file(p)}" for p in files).encode())

    @cached_property
    def bench(self) -> Bench:
        if self.bench_override:
            return self.bench_override
        m = self.manifest
        workers = Workers(
            harness=self.layout.harness, base=self.tree(self.base), policy=self.policy,
            interpret=m.target_gpu == "cpu", logs=self.layout.artifacts, import_name=self.op.import_name,
            places=self.layout.places, spare=0 if m.target_gpu == "cpu" else SPARE_WORKERS,
        )  # fmt: skip
        trials = Trials(workers, self.policy, m.execution_mode == "training", self.say)
        telemetry = None if m.target_gpu == "cpu" else Telemetry(first_visible(m.target_gpu))
        core = timing_core(telemetry.device) if telemetry and self.policy.pin else None
        if core is not None:
            self.cpus = stay_off(core)
        return DuetBench(workers, trials, self.policy, self.fingerprint, self.say, telemetry, core)

    def close(self) -> None:
        """Ends the bench's processes, if it has any."""
        if "bench" in self.__dict__:
            self.bench.close()
            del self.__dict__["bench"]
            if self.cpus:
                os.sched_setaffinity(0, self.cpus)
                self.cpus = None

    # -- numbers ---------------------------------------------------------------------------------------------------
    def floor_ms(self, label: str) -> float:
        """The roofline's least time for a shape's timed work."""
        dims = self.manifest.shape(label).dims
        flops, moved = self._work(dims)
        return floor_ms(flops, moved, self.manifest.target_gpu, self.op.peak)

    def _work(self, dims: dict[str, int]) -> tuple[float, float]:
        total = sum(self.schema.work_of(n, dims) for n in self.schema.passes)
        return (total, 0.0) if self.manifest.schema_class != "memory" else (0.0, total)

    def write_csv(
        self,
        key: str,
        shapes: Sequence[Shape],
        samples: Sequence[Sample],
        checks: Iterable[CheckRow],
        full: bool = False,
    ) -> tuple[Score, str]:
        """A measured tree's benchmark.csv, written by the runner and read back strictly: its score and its hash."""
        path = self.layout.csv(key, full)
        write_atomic(path, format_csv(self.schema, self._rows(shapes, samples, checks)), durable=True)
        return score(self.schema, self.manifest.primary_metric, self.read_csv(path, shapes)), sha256_file(path)

    def score_of(self, shapes: Sequence[Shape], samples: Sequence[Sample], checks: Iterable[CheckRow]) -> Score:
        return score(self.schema, self.manifest.primary_metric, self._rows(shapes, samples, checks))

    def _rows(self, shapes: Sequence[Shape], samples: Sequence[Sample], checks: Iterable[CheckRow]) -> list[Row]:
        by_label = {c.shape: c for c in checks}
        return [self._row(s, [x for x in samples if x.shape == s.label], by_label[s.label]) for s in shapes]

    def read_csv(self, path: Path, shapes: Sequence[Shape]) -> tuple[Row, ...]:
        try:
            data = path.read_bytes()
        except OSError as e:
            raise TurboOptError(f"{path}: can't be read ({e.strerror})", "measure again") from None
        return parse_csv(self.schema, data, shapes, min_time_ms=self.floor_ms)

    def _row(self, shape: Shape, blocks: Sequence[Sample], check: CheckRow) -> Row:
        if check.check != "PASS" or not blocks:
            return unmeasured_row(shape, check.check, self._correctness(check))
        forward = [b.forward_ms for b in blocks if b.forward_ms]
        mean_forward = sum(forward) / len(forward)
        training = self.manifest.execution_mode == "training"
        backward = [b.step_ms - mean_forward for b in blocks] if training else []
        if training and min(backward) <= 0:
            # Something disturbed a block of the forward alone: its least time and the median step are what is left of it.
            forward = [min(forward)]
            backward = [statistics.median(b.step_ms for b in blocks) - forward[0]]
            if backward[0] <= 0:
                raise CsvError("C19", f"{shape.label}: forward alone takes as long as the whole step", "measure again")
        values = row_values(self.schema, shape.dims, forward, backward, self._correctness(check))
        return Row(label=shape.label, dims=shape.dims, check="PASS", values=values)

    def _correctness(self, check: CheckRow) -> dict[str, float]:
        return {k: check.metrics[k] for k in self.schema.correctness if k in check.metrics}

    def measure(
        self, key: str, level: str, index: int, incumbent: Tree, candidate: Tree, shapes: Sequence[Shape]
    ) -> tuple[Session, Outcome]:
        """One session, paired into quads. A fault of the incumbent's worker is not the candidate's: it stops the run."""
        try:
            outcome = self.bench.session(key, level, index, incumbent, candidate, shapes)  # type: ignore[arg-type]
        except WorkerError as e:
            if e.kind == "device":
                raise TurboOptError(e.message, "free the GPU or let it cool, then `turbo-opt resume`") from e
            if "worker-A" in e.message and key.startswith("round-") and key != "round-1":
                raise WorkerError("rival", f"beside the candidate the incumbent failed: {e.message}") from e
            if "worker-A" in e.message and key != "round-1":
                raise TurboOptError(
                    f"the incumbent's own worker failed: {e.message}",
                    "check the device with `turbo-opt doctor`, then resume",
                ) from e
            raise
        return session_of(outcome.samples), outcome

    def save_samples(self, key: str, samples: Sequence[Sample]) -> str:
        path = self.layout.samples(key)
        write_atomic(path, format_samples(samples), durable=True)
        return sha256_file(path)

    def spent(self, round: int, parts: dict[str, float]) -> Spent:
        return Spent(round=round, parts={k: round_(v) for k, v in parts.items()})


def round_(seconds: float) -> float:
    return round(seconds, 3)
