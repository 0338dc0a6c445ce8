"""How numbers come to be: the Bench protocol, and the bench of two workers taking turns.

`DuetBench` starts the incumbent and the candidate as fresh processes and times them in quads of random order, each
stopped while the other runs. `ReplayBench` (replay.py) answers the same questions from a recorded campaign.
"""

from __future__ import annotations

import math
import random
import secrets
import shutil
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from pydantic import ValidationError

from turbo_optimize.core import stats
from turbo_optimize.core.errors import WorkerError
from turbo_optimize.core.models import CheckRow, Level, Policy, Role, Sample, Shape
from turbo_optimize.effects.proc import Worker
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
    samples: tuple[Sample, ...] = ()
    hints: tuple[dict[str, Any], ...] = ()
    binary_sha256: str = ""
    environment: dict[str, str] = field(default_factory=dict)
    parts: dict[str, float] = field(default_factory=dict)


class Bench(Protocol):
    """The one place that numbers come from. `key` (round-N, final, without-N) and `index` name the call, so that a record can answer it."""

    def check(self, key: str, attempt: int, tree: Tree, shapes: Sequence[Shape]) -> Outcome: ...

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


@dataclass
class DuetBench:
    """Two workers and a checker, all fresh processes of the rendered quick_test_bench.py."""

    harness: Path  # the campaign's quick_test_bench.py
    base: Tree  # the checker's tree: the base commit
    policy: Policy
    interpret: bool
    logs: Callable[[str], Path]  # the folder of a call's worker logs, by its key
    import_name: str
    fingerprint: Callable[[Tree], str]  # hash of the kernel and harness files of a tree, as they lie on disk
    say: Callable[[str], None] = lambda _: None

    # -- processes -------------------------------------------------------------------------------------------------
    def _start(self, key: str, name: str, tree: Tree, mode: str) -> Worker:
        command = [sys.executable, "-I", str(self.harness), f"--{mode}", "--tree", str(tree.path)]
        extra = {"TRITON_INTERPRET": "1"} if self.interpret else {}
        work = tree.scratch / "work"
        work.mkdir(parents=True, exist_ok=True)
        return Worker(command, cwd=work, scratch=tree.scratch, log=self.logs(key) / f"{name}.log", extra_env=extra)

    @contextmanager
    def _workers(self, key: str, parts: dict[str, float], *who: tuple[str, Tree, str]) -> Iterator[list[Worker]]:
        """Starts them side by side, says hello, and ends them whatever happens."""
        started: list[Worker] = []
        try:
            with timed(parts, "start"):
                for name, tree, mode in who:
                    started.append(self._start(key, name, tree, mode))
                for worker, (_, tree, _mode) in zip(started, who, strict=True):
                    worker.send({"cmd": "hello"})
                    self._identify(worker.receive(self.policy.start_timeout_s, "hello"), tree)
            yield started
        finally:
            with timed(parts, "start"):
                for worker in started:
                    worker.hang_up()
                for worker in started:
                    worker.close()

    def _identify(self, hello: Mapping[str, Any], tree: Tree) -> None:
        """The imported kernels must be those of the measured tree: checked, never assumed."""
        imported = Path(str(hello.get("imported", "")))
        if not imported.is_relative_to(tree.path):
            raise WorkerError(
                "identity", f"{self.import_name} was imported from {imported}, not from {tree.path}",
                "check import_roots in the project file; an installed copy must not shadow the tree",
            )  # fmt: skip

    @contextmanager
    def _unchanged(self, *trees: Tree) -> Iterator[None]:
        """Kernel and harness files hash the same before and after the run."""
        before = [self.fingerprint(t) for t in trees]
        yield
        for tree, was in zip(trees, before, strict=True):
            if self.fingerprint(tree) != was:
                raise WorkerError("identity", f"files of {tree.path.name} changed while they were measured")

    # -- correctness -----------------------------------------------------------------------------------------------
    def check(self, key: str, attempt: int, tree: Tree, shapes: Sequence[Shape]) -> Outcome:
        """Outputs of the tree on fresh secret seeds, judged by the checker on the base commit."""
        out = Outcome()
        rows: list[CheckRow] = []
        with (
            self._unchanged(tree, self.base),
            self._workers(key, out.parts, ("worker-check", tree, "worker"), ("checker", self.base, "checker")) as (
                w,
                c,
            ),
        ):
            for i, shape in enumerate(shapes):
                self.say(f"checking {shape.label} ({i + 1}/{len(shapes)})")
                with timed(out.parts, "check"):
                    rows.append(self._check_one(w, c, tree, shape))
            out.environment = {
                k: str(v) for k, v in w.ask({"cmd": "hello"}, self.policy.start_timeout_s).get("versions", {}).items()
            }
        out.checks = tuple(rows)
        out.binary_sha256 = binaries_sha256(tree.scratch) or self.fingerprint(tree)
        return out

    def _check_one(self, worker: Worker, checker: Worker, tree: Tree, shape: Shape) -> CheckRow:
        seed = secrets.randbits(31)
        folder = tree.scratch / "outputs"
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        request = {"shape": shape.model_dump(), "seed": seed, "dir": str(folder)}
        try:
            made = worker.ask({"cmd": "outputs", **request}, self.policy.compile_timeout_s)
        except WorkerError as e:
            if e.kind != "run" or worker.process.poll() is not None:
                raise
            return CheckRow(shape=shape.label, check="ERROR", detail=e.message)
        try:
            judged = checker.ask(
                {"cmd": "check", **request, "tensors": made.get("tensors", {})}, self.policy.check_timeout_s
            )
        finally:
            shutil.rmtree(folder, ignore_errors=True)
        try:
            return CheckRow(
                shape=shape.label,
                check=judged["check"],
                metrics=judged.get("metrics", {}),
                detail=judged.get("detail", ""),
            )
        except (ValidationError, KeyError) as e:
            raise WorkerError(
                "protocol", f"checker's answer for {shape.label} is malformed: {str(e).splitlines()[0]}"
            ) from e

    # -- timing ----------------------------------------------------------------------------------------------------
    def session(
        self, key: str, level: Level, index: int, incumbent: Tree, candidate: Tree, shapes: Sequence[Shape]
    ) -> Outcome:
        """One session: fresh processes, per shape a soak and then quads in a random balanced order."""
        out = Outcome()
        samples: list[Sample] = []
        who = (("worker-A", incumbent, "worker"), ("worker-B", candidate, "worker"))
        with self._unchanged(incumbent, candidate), self._workers(key, out.parts, *who) as (a, b):
            pair: dict[Role, Worker] = {"A": a, "B": b}
            for i, shape in enumerate(shapes):
                self.say(f"{level} session {index}: {shape.label} ({i + 1}/{len(shapes)})")
                with timed(out.parts, "compile"):
                    rough = self._prepare(pair, shape)
                with timed(out.parts, "measure"):
                    samples += self._quads(pair, shape, level, index, rough)
        out.samples = tuple(samples)
        out.binary_sha256 = binaries_sha256(candidate.scratch) or self.fingerprint(candidate)
        return out

    def _prepare(self, pair: Mapping[Role, Worker], shape: Shape) -> float:
        """Compiles and warms up both, side by side; the slower one's rough milliseconds a step."""
        request = {"cmd": "prepare", "shape": shape.model_dump(), "seed": secrets.randbits(31)}
        for worker in pair.values():
            worker.send(request)
        rough = [float(w.receive(self.policy.compile_timeout_s, "prepare")["step_ms"]) for w in pair.values()]
        for worker in pair.values():
            worker.pause()
        return max(rough)

    def _calls(self, rough_ms: float) -> int:
        """Calls in a block: at least block_calls and block_ms, but no longer than block_max_ms."""
        p = self.policy
        wanted = max(p.block_calls, math.ceil(p.block_ms / rough_ms))
        return max(1, min(wanted, int(p.block_max_ms / rough_ms)))

    def _quads(
        self, pair: Mapping[Role, Worker], shape: Shape, level: Level, index: int, rough_ms: float
    ) -> list[Sample]:
        p = self.policy
        calls = self._calls(rough_ms)
        end, turn, soaked = time.monotonic() + p.soak_s, 0, rough_ms
        while time.monotonic() < end:
            soaked = self._block(pair["AB"[turn % 2]], shape, "step", calls)[0]  # type: ignore[index]
            turn += 1
        calls = self._calls(soaked)
        samples = []
        for quad, order in enumerate(stats.orders(p.quads, random.Random(secrets.randbits(64)))):
            for slot, role in enumerate(order):
                worker = pair[role]
                step_ms, wall_ms = self._block(worker, shape, "step", calls)
                forward_ms = self._block(worker, shape, "forward", calls)[0] if quad % p.forward_every == 0 else None
                worker.pause()
                samples.append(
                    Sample(
                        level=level, session=index, shape=shape.label, quad=quad, slot=slot, role=role, calls=calls,
                        step_ms=step_ms, forward_ms=forward_ms, wall_ms=wall_ms,
                    )
                )  # fmt: skip
        for worker in pair.values():
            worker.ask({"cmd": "release", "label": shape.label}, p.start_timeout_s)
        return samples

    def _block(self, worker: Worker, shape: Shape, what: str, calls: int) -> tuple[float, float]:
        """One timed block: the claimed milliseconds a call, and the runner's own wall for the whole exchange."""
        worker.go_on()
        request = {"cmd": "block", "label": shape.label, "what": what, "calls": calls, "seed": secrets.randbits(31)}
        start = time.perf_counter()
        answer = worker.ask(request, self.policy.block_timeout_s)
        wall_ms = 1e3 * (time.perf_counter() - start)
        claimed = float(answer["ms"])
        if not math.isfinite(claimed) or claimed <= 0:
            raise WorkerError("protocol", f"{worker.name} claims {claimed} ms a call for {shape.label}")
        if claimed * calls > wall_ms * 1.01:
            raise WorkerError(
                "protocol", f"{worker.name} claims {claimed * calls:.2f} ms for a block that took {wall_ms:.2f} ms"
            )
        return claimed, wall_ms

    # -- hints -----------------------------------------------------------------------------------------------------
    def sweep(
        self,
        key: str,
        tree: Tree,
        shapes: Sequence[Shape],
        section: str,
        configs: Sequence[Mapping[str, Any]],
        refine: Refine | None = None,
    ) -> Outcome:
        """Unpaired timings of launch configurations in one process: hints for a proposer, never for a decision.

        `refine` sees the first hints and names more configurations, timed in the same process.
        """
        out = Outcome()
        hints: list[Hint] = []
        with self._workers(key, out.parts, ("worker-sweep", tree, "worker")) as (w,), timed(out.parts, "sweep"):
            for shape in shapes:
                request = {"cmd": "prepare", "shape": shape.model_dump(), "seed": secrets.randbits(31)}
                w.ask(request, self.policy.compile_timeout_s)
            for more in (lambda _: configs, refine or (lambda _: ())):
                for config in more(hints):
                    self.say(f"sweep {section}: configuration {len(hints) + 1}")
                    hints.append({"config": dict(config), **self._try(w, shapes, section, config)})
        out.hints = tuple(hints)
        return out

    def _try(self, worker: Worker, shapes: Sequence[Shape], section: str, config: Mapping[str, Any]) -> dict[str, Any]:
        times: dict[str, float] = {}
        for shape in shapes:
            request = {
                "cmd": "try",
                "label": shape.label,
                "section": section,
                "config": dict(config),
                "ms": self.policy.sweep_ms,
            }
            try:
                times[shape.label] = float(worker.ask(request, self.policy.compile_timeout_s)["ms"])
            except WorkerError as e:
                if worker.process.poll() is not None or e.kind in ("timeout", "protocol"):
                    raise
                return {"error": e.message}
        return {"ms": times}
