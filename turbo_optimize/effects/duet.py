"""The bench of two workers taking turns: fresh processes of two trees, timed in quads of random order by the runner's clock.

A block is armed (warm-up, new contents, fresh tensors), then started, then its receipt is asked for: elements of its
outputs at places that are named only now. The clock stops when the receipt is there, so work that isn't done can't be
counted as done, whatever the worker's own clock says; the checker compares some receipts with the truth afterwards.
"""

from __future__ import annotations

import math
import os
import random
import secrets
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from turbo_optimize.core import session_checks, stats
from turbo_optimize.core.checks import Norms
from turbo_optimize.core.errors import WorkerError
from turbo_optimize.core.models import GateResult, Level, Policy, Sample, Shape
from turbo_optimize.effects import selftest
from turbo_optimize.effects.bench import Hint, Outcome, Refine, Tree, add_parts, binaries_sha256, timed
from turbo_optimize.effects.pair import RECEIPT, Block, Pair, compiled, event_ratio
from turbo_optimize.effects.proc import Worker
from turbo_optimize.effects.telemetry import Telemetry, Watch, quiet
from turbo_optimize.effects.trials import Trials
from turbo_optimize.effects.workers import Workers

CHECK_AND_SESSION = 3  # processes of a round's check and of its screen


@dataclass
class DuetBench:
    """Two workers and a checker, processes of the rendered quick_test_bench.py."""

    workers: Workers
    trials: Trials
    policy: Policy
    fingerprint: Callable[[Tree], str]  # hash of the kernel and harness files of a tree, as they lie on disk
    say: Callable[[str], None] = lambda _: None
    telemetry: Telemetry | None = None
    core: int | None = None  # both workers are timed on this CPU alone

    def expect(self) -> None:
        """A check and a session will follow: their processes start now, side by side, and those of the next round."""
        self.workers.ready(CHECK_AND_SESSION + self.workers.spare)

    def close(self) -> None:
        self.workers.close()

    @contextmanager
    def _unchanged(self, *trees: Tree) -> Iterator[None]:
        """Kernel and harness files hash the same before and after the run."""
        before = [self.fingerprint(t) for t in trees]
        yield
        for tree, was in zip(trees, before, strict=True):
            if self.fingerprint(tree) != was:
                raise WorkerError("identity", f"files of {tree.path.name} changed while they were measured")

    # -- correctness -----------------------------------------------------------------------------------------------
    def check(
        self, key: str, attempt: int, tree: Tree, shapes: Sequence[Shape], norms: Norms, weight_cache: bool
    ) -> Outcome:
        """Outputs of the tree on fresh secret inputs, judged by the checker on the base commit."""
        with self._unchanged(tree, self.workers.base):
            out = self.trials.check(key, tree, shapes, norms, weight_cache)
        out.binary_sha256 = binaries_sha256(tree.scratch) or self.fingerprint(tree)
        return out

    def learn(self, key: str, tree: Tree, shapes: Sequence[Shape]) -> Outcome:
        with self._unchanged(tree):
            out = self.trials.learn(key, tree, shapes)
        out.binary_sha256 = binaries_sha256(tree.scratch) or self.fingerprint(tree)
        return out

    # -- timing ----------------------------------------------------------------------------------------------------
    def session(
        self, key: str, level: Level, index: int, incumbent: Tree, candidate: Tree, shapes: Sequence[Shape]
    ) -> Outcome:
        """One session: fresh processes, per shape a soak and then quads in a random balanced order.

        A session on a throttled or shared device is void and measured again, `void_retries` times.
        """
        if level == "confirm" and index == 1:
            self.workers.ready(2 * self.policy.confirm_sessions)
        if level == "aa" and index == 1 and self.telemetry and (why := quiet(self.telemetry, self.workers.pids())):
            raise WorkerError("device", why)
        notes: list[str] = []
        spent: dict[str, float] = {}
        for _ in range(self.policy.void_retries + 1):
            out, void = self.one_session(key, level, index, incumbent, candidate, shapes)
            add_parts(spent, out.parts)
            if not void:
                out.notes, out.parts = tuple(notes), spent
                return out
            self.say(f"{level} session {index} is void: {void}")
            notes.append(f"{level} session {index} void: {void}")
        raise WorkerError(
            "device", f"{level} session {index} was void {len(notes)} times: {notes[-1].split(': ', 1)[1]}"
        )

    def one_session(
        self, key: str, level: Level, index: int, incumbent: Tree, candidate: Tree, shapes: Sequence[Shape],
        fault: str = "",
    ) -> tuple[Outcome, str | None]:  # fmt: skip
        out = Outcome()
        samples: list[Sample] = []
        who = (("worker-A", incumbent), ("worker-B", candidate))
        with self._unchanged(incumbent, candidate), self.workers.running(key, out.parts, *who) as (a, b):
            if fault:
                b.ask({"cmd": "plant", "name": fault}, self.policy.start_timeout_s)
            pair = Pair({"A": a, "B": b}, self.policy, watch=self._watch())
            for i, shape in enumerate(shapes):
                self.say(f"{level} session {index}: {shape.label} ({i + 1}/{len(shapes)})")
                with timed(out.parts, "compile"):
                    rough = self._prepare(key, pair, shape)
                with timed(out.parts, "measure"):
                    blocks = self._quads(pair, shape, level, index, rough)
                if pair.void:
                    break
                with timed(out.parts, "verify"):
                    self._verify(key, pair, shape, level, blocks)
                samples += [x.sample for x in blocks]
            if not pair.void:
                self._afterwards(b)
        out.samples = tuple(samples)
        out.binary_sha256 = binaries_sha256(candidate.scratch) or self.fingerprint(candidate)
        return out, pair.void

    def _watch(self) -> Watch | None:
        if self.telemetry is None:
            return None
        return Watch(self.telemetry, self.workers.pids(), self.policy.clock_apart_pct)

    def _prepare(self, key: str, pair: Pair, shape: Shape) -> float:
        """Compiles and warms up both, side by side; the incumbent's rough milliseconds a step."""
        request = {"cmd": "prepare", "shape": shape.model_dump(), "seed": secrets.randbits(31)}
        checker = self.workers.checker(key, {})
        pair.ring = int(checker.ask({"cmd": "ring", "shape": shape.model_dump()}, self.policy.check_timeout_s)["ring"])
        for worker in pair.workers.values():
            worker.send(request)
        answers = {r: w.receive(self.policy.compile_timeout_s, "prepare") for r, w in pair.workers.items()}
        for role, worker in pair.workers.items():
            if answers[role].get("ring") != pair.ring:
                raise WorkerError("K06", f"{worker.name} has a ring of {answers[role].get('ring')}, not {pair.ring}")
            worker.pause()
        rough = {role: float(a["step_ms"]) for role, a in answers.items()}
        if not all(math.isfinite(v) and v > 0 for v in rough.values()):
            raise WorkerError("protocol", f"{shape.label}: rough times of {rough} ms")
        return rough["A"]

    def _quads(self, pair: Pair, shape: Shape, level: Level, index: int, rough_ms: float) -> list[Block]:
        p, what = self.policy, "train" if level == "train" else "step"
        everywhere = os.sched_getaffinity(0)
        mine = everywhere if self.core is None else {self.core}
        for worker in pair.workers.values():
            worker.pin(mine)
        soaked = pair.soak(shape, what, rough_ms)
        pair.readings = {"A": [], "B": []}
        pair.overhead_ms = min(pair.exchange(w, pair.timeout_s)[0] for w in pair.workers.values() for _ in range(3))
        calls = pair.calls(soaked)
        b = pair.workers["B"]
        crowd, files = (b.threads(), b.processes()), compiled(self.workers.place(b))
        blocks: list[Block] = []
        quads = p.transfer_quads if level == "train" else p.quads
        for quad, order in enumerate(stats.orders(quads, random.Random(secrets.randbits(64)))):
            for slot, role in enumerate(order):
                place = {"level": level, "session": index, "quad": quad, "slot": slot, "role": role}
                alone = level != "train" and quad % p.forward_every == 0
                blocks.append(pair.place(shape, what, calls, place, alone))
        pair.void = pair.watch.verdict(pair.readings["A"], pair.readings["B"]) if pair.watch else None
        if why := session_checks.crowd(crowd, (b.threads(), b.processes())):
            raise WorkerError("K10", f"{b.name}: {why}")
        if not b.pinned(mine):
            raise WorkerError("K16", f"{b.name}: it moved itself to other CPUs")
        if compiled(self.workers.place(b)) != files:
            raise WorkerError("K17", f"{b.name}: {shape.label}: something was compiled while it was timed")
        for worker in pair.workers.values():
            worker.pin(everywhere)
            worker.ask({"cmd": "release", "label": shape.label}, p.start_timeout_s)
        return blocks

    # -- trusting what was timed -------------------------------------------------------------------------------------
    def _verify(self, key: str, pair: Pair, shape: Shape, level: Level, blocks: Sequence[Block]) -> None:
        """A secret block of each worker: its outputs at secret places; and the candidate's clocks against the runner's."""
        for worker in pair.workers.values():
            worker.pause()
        checker, db = self.workers.checker(key, {}), {}
        for role in ("A", "B"):
            block = secrets.choice([x for x in blocks if x.sample.role == role])
            last = block.sample.calls - 1
            db[role] = float(
                checker.ask(
                    {
                        "cmd": "check_receipt", "shape": shape.model_dump(), "start": block.start, "ring": pair.ring,
                        "seed": block.seed, "what": "train" if level == "train" else "step", "kept": [block.keep, last],
                        "at": block.at, "count": RECEIPT, "values": block.values,
                    },
                    self.policy.check_timeout_s,
                )["db"]
            )  # fmt: skip
        name = pair.workers["B"].name
        if why := session_checks.receipts(db["A"], db["B"]):
            raise WorkerError("K06", f"{name}: {shape.label}: {why}")
        of = {r: [x.sample for x in blocks if x.sample.role == r] for r in ("A", "B")}
        says = {r: [(s.claimed_ms or 0.0) / s.step_ms for s in of[r]] for r in of}
        block_ms = statistics.median(s.step_ms * s.calls for s in of["B"])
        if why := session_checks.clock(says["B"], says["A"], block_ms):
            raise WorkerError("K11", f"{name}: {shape.label}: {why}")
        if why := session_checks.events(event_ratio(of["B"]), event_ratio(of["A"])):
            raise WorkerError("K22", f"{name}: {shape.label}: {why}")

    def _afterwards(self, worker: Worker) -> None:
        """What a session left: changed global state, files."""
        changed = worker.ask({"cmd": "state"}, self.policy.start_timeout_s).get("state", [])
        if changed:
            raise WorkerError("K16", f"{worker.name}: {'; '.join(map(str, changed[:3]))}")
        place = self.workers.place(worker)
        files = [str(p.relative_to(place)) for p in place.rglob("*") if p.is_file()]
        if why := session_checks.left_behind(files):
            raise WorkerError("K21", f"{worker.name}: {why}")

    def self_test(self, key: str, tree: Tree, shapes: Sequence[Shape], norms: Norms) -> tuple[GateResult, ...]:
        return selftest.self_test(self, key, tree, shapes, norms)

    def weight_cap(self, key: str, incumbent: Tree, shapes: Sequence[Shape]) -> float:
        """The largest throughput gain (percent, mean over shapes) that not doing the weight's own work could bring."""
        parts: dict[str, float] = {}
        with self.workers.running(key, parts, ("worker-cap", incumbent)) as (worker,):
            asked = [{"cmd": "weight_share", "shape": s.model_dump(), "seed": secrets.randbits(31)} for s in shapes]
            shares = [float(worker.ask(r, self.policy.compile_timeout_s)["pct"]) for r in asked]
        return statistics.fmean(100.0 * s / (100.0 - s) if s < 100.0 else 100.0 for s in shares)

    def probe(self, key: str, tree: Tree, shape: Shape) -> float:
        """Runs the incumbent on one shape after a hang or a fault: is the device still there? Seconds it took."""
        parts: dict[str, float] = {}
        began = time.monotonic()
        with self.workers.running(key, parts, ("worker-probe", tree)) as (worker,):
            worker.ask(
                {"cmd": "prepare", "shape": shape.model_dump(), "seed": secrets.randbits(31)},
                self.policy.compile_timeout_s,
            )
        return time.monotonic() - began

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
        with self.workers.running(key, out.parts, ("worker-sweep", tree)) as (w,), timed(out.parts, "sweep"):
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
