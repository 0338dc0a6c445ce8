"""Correctness: a tree's worker makes outputs on secret inputs, the checker measures them, core/checks.py objects."""

from __future__ import annotations

import math
import random
import secrets
import shutil
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from pydantic import ValidationError

from turbo_optimize.core import checks, session_checks, trial_checks
from turbo_optimize.core.checks import Call, Failure, Judged, Norms
from turbo_optimize.core.errors import WorkerError
from turbo_optimize.core.models import CheckRow, GateResult, Policy, Shape
from turbo_optimize.effects.bench import Outcome, Tree, timed
from turbo_optimize.effects.proc import Worker
from turbo_optimize.effects.workers import Workers

FIRST_CALL_S = 60.0  # a first call may compile: ten times what the base took, but at least this long
Judgement = list[tuple[Call, Judged]]
T = TypeVar("T")


@dataclass(frozen=True)
class Pair(Generic[T]):
    """Of the candidate's worker, and of the base's on the same inputs."""

    candidate: T
    twin: T


@dataclass
class Trials:
    """What is asked of one tree's worker and of the checker, besides timing."""

    workers: Workers
    policy: Policy
    training: bool
    say: Callable[[str], None]

    def check(self, key: str, tree: Tree, shapes: Sequence[Shape], norms: Norms, weight_cache: bool) -> Outcome:
        """The representative shapes on two calls each, held-out shapes on every kind of call, training steps."""
        out, rng = Outcome(), random.Random(secrets.randbits(64))
        with self.workers.running(key, out.parts, ("worker-check", tree)) as (worker,):
            checker = self.workers.checker(key, out.parts)
            with timed(out.parts, "check"):
                rows = self._rows(worker, checker, shapes, norms, rng)
                if all(r.check == "PASS" for r in rows):
                    found = self._beyond(key, worker, checker, tree, shapes, norms, rng, weight_cache)
                    out.findings = (found,) if found else ()
            out.environment = {k: str(v) for k, v in self.workers.hello(worker).get("versions", {}).items()}
        out.checks = tuple(rows)
        return out

    def learn(self, key: str, tree: Tree, shapes: Sequence[Shape]) -> Outcome:
        """The base commit under the same calls: its figures are what candidates are held to."""
        out, rng, trials, first_s = Outcome(), random.Random(secrets.randbits(64)), [], 0.0
        with self.workers.running(key, out.parts, ("worker-check", tree)) as (worker,):
            checker = self.workers.checker(key, out.parts)
            with timed(out.parts, "check"):
                rows, began = [], time.monotonic()
                for i, shape in enumerate(shapes):
                    self.say(f"checking {shape.label} ({i + 1}/{len(shapes)})")
                    trials.append(self.trial(worker, checker, shape, checks.short_trial(rng), None))
                    first_s = first_s or time.monotonic() - began
                    rows.append(_row(shape, trials[-1], own_failure(trials[-1])))
                if all(r.check == "PASS" for r in rows):
                    out.norms = self._norms(worker, checker, tree, shapes, trials, rng, first_s)
            out.environment = {k: str(v) for k, v in self.workers.hello(worker).get("versions", {}).items()}
        out.checks = tuple(rows)
        return out

    def _norms(
        self, worker: Worker, checker: Worker, tree: Tree, shapes: Sequence[Shape], trials: list[Judgement],
        rng: random.Random, first_s: float,
    ) -> Norms:  # fmt: skip
        heldout, training, accumulates = True, False, False
        fills = self._fills(worker)
        for shape in self._heldout(shapes, rng):
            self.say(f"learning from {_dims(shape)}")
            try:
                trials.append(self.trial(worker, checker, shape, checks.whole_trial(rng, fills), None))
                heldout = heldout and all(j.passed for c, j in trials[-1] if c.fill == "normal")
            except WorkerError as e:
                if e.kind != "run" or worker.process.poll() is not None:
                    raise
                heldout = False
        smallest = min(shapes, key=lambda s: math.prod(s.dims.values()))
        if not heldout:
            trials.append(self.trial(worker, checker, smallest, checks.whole_trial(rng, fills), None))
        norms = trial_checks.learn(trials)
        seen = self._observe(worker, smallest)
        if self.training:
            small = self._small(shapes, heldout, rng)
            accumulates = self._train(worker, checker, small, rng, False, True) is None
            training = accumulates or self._train(worker, checker, small, rng, False, False) is None
        return norms.model_copy(
            update={
                "heldout": heldout, "training": training, "accumulates": accumulates, "first_call_s": round(first_s, 3),
                "kernels": tuple(seen.get("kernels", ())), "ops": tuple(seen.get("ops", ())),
            }
        )  # fmt: skip

    # -- one call after the other ------------------------------------------------------------------------------------
    def _rows(
        self, worker: Worker, checker: Worker, shapes: Sequence[Shape], norms: Norms, rng: random.Random
    ) -> list[CheckRow]:
        """One row a shape up to the first that fails. The worker runs the next shape while the checker judges one."""
        rows: list[CheckRow] = []
        asked = [
            self._request(worker, shape, checks.short_trial(rng), f"outputs/{i}") for i, shape in enumerate(shapes)
        ]
        worker.send({"cmd": "trial", **asked[0]})
        for i, shape in enumerate(shapes):
            self.say(f"checking {shape.label} ({i + 1}/{len(shapes)})")
            made = self._answer(worker, norms)
            if isinstance(made, str):
                return [*rows, CheckRow(shape=shape.label, check="ERROR", detail=made)]
            if i + 1 < len(shapes):
                worker.send({"cmd": "trial", **asked[i + 1]})
            trial = self._judged(checker, asked[i], made, shape)
            rows.append(_row(shape, trial, trial_checks.judge_trial(trial, norms) or own_failure(trial)))
            if rows[-1].check != "PASS":
                break
        return rows

    def _beyond(
        self, key: str, worker: Worker, checker: Worker, tree: Tree, shapes: Sequence[Shape], norms: Norms, rng: random.Random,
        weight_cache: bool,
    ) -> GateResult | None:  # fmt: skip
        """The first finding on other shapes, in training steps, and in what was launched or changed."""
        if not norms.fills:
            return None
        fills = self._fills(worker)
        smallest = min(shapes, key=lambda s: math.prod(s.dims.values()))
        runnable = smallest  # by the base: the last that it ran
        for shape in self._heldout(shapes, rng) if norms.heldout else [smallest]:
            self.say(f"checking {_dims(shape)}")
            asked, made = self._both(key, worker, shape, checks.whole_trial(rng, fills), norms)
            if isinstance(made.twin, str):
                continue  # the base can't run this one: no bar to hold a candidate to
            if isinstance(made.candidate, str):
                return GateResult(code="K13", ok=False, detail=f"{_dims(shape)}: {made.candidate}")
            runnable = shape
            trial, own = self._against(checker, shape, asked, made, norms)
            if failure := trial_checks.judge_trial(trial, own):
                return GateResult(code=failure.code, ok=False, detail=f"{_dims(shape)}: {failure.detail}")
        if norms.training and (why := self._train(worker, checker, runnable, rng, weight_cache, norms.accumulates)):
            return GateResult(code="K19", ok=False, detail=why)
        seen = self._observe(worker, runnable)
        if why := session_checks.launches(seen.get("kernels", ()), seen.get("ops", ()), norms):
            return GateResult(code="K20", ok=False, detail=why)
        if seen.get("state"):
            return GateResult(code="K16", ok=False, detail="; ".join(map(str, seen["state"][:3])))
        if why := session_checks.crowd((10**6, 1), (0, worker.processes())):
            return GateResult(code="K10", ok=False, detail=why)
        return None

    def _request(
        self, worker: Worker, shape: Shape, calls: Sequence[Call], folder: str = "outputs/one"
    ) -> dict[str, Any]:
        """A trial's request, with a folder of its own for the outputs."""
        place = self.workers.place(worker) / folder
        shutil.rmtree(place, ignore_errors=True)
        place.mkdir(parents=True)
        return {"shape": shape.model_dump(), "dir": str(place), "calls": [c.model_dump() for c in calls]}

    def _judged(self, checker: Worker, asked: dict[str, Any], made: dict[str, Any], shape: Shape) -> Judgement:
        try:
            judged = checker.ask(
                {"cmd": "check", **asked, "answers": made.get("calls", [])}, self.policy.check_timeout_s
            )
        finally:
            shutil.rmtree(asked["dir"], ignore_errors=True)
        calls = [Call.model_validate(c) for c in asked["calls"]]
        return list(zip(calls, [_judged(j, shape) for j in judged["calls"]], strict=True))

    def _both(
        self, key: str, worker: Worker, shape: Shape, calls: Sequence[Call], norms: Norms
    ) -> tuple[Pair[dict[str, Any]], Pair[dict[str, Any] | str]]:
        """A candidate's trial and the base's on the very same inputs: the requests; the answers, or why the op raised."""
        twin = self.workers.twin(key, {})
        asked = Pair(self._request(worker, shape, calls), self._request(twin, shape, calls))
        for w, request in ((worker, asked.candidate), (twin, asked.twin)):
            w.send({"cmd": "trial", **request})
        # The twin's answer first: it lives on, and must not find this one unread when the candidate's worker fails.
        base, own = self._answer(twin, norms), self._answer(worker, norms)
        return asked, Pair(own, base)

    def _answer(self, worker: Worker, norms: Norms) -> dict[str, Any] | str:
        try:
            return worker.receive(self.first_call_s(norms), "trial")
        except WorkerError as e:
            if e.kind != "run" or worker.process.poll() is not None:
                raise
            return e.message

    def _against(
        self, checker: Worker, shape: Shape, asked: Pair[dict[str, Any]], made: Pair[Any], norms: Norms
    ) -> tuple[Judgement, Norms]:
        """The candidate's trial, judged, and the bar that the twin's sets: a few outliers decide a small output's dB."""
        trial = self._judged(checker, asked.candidate, made.candidate, shape)
        own = trial_checks.learn([self._judged(checker, asked.twin, made.twin, shape)])
        known = {"deterministic": own.deterministic and norms.deterministic, "off": (*norms.off, *own.off)}
        return trial, own.model_copy(update=known)

    def trial(
        self, worker: Worker, checker: Worker, shape: Shape, calls: Sequence[Call], norms: Norms | None
    ) -> Judgement:
        asked = self._request(worker, shape, calls)
        made = worker.ask({"cmd": "trial", **asked}, self.first_call_s(norms))
        return self._judged(checker, asked, made, shape)

    def _train(
        self, worker: Worker, checker: Worker, shape: Shape, rng: random.Random, weight_cache: bool, accumulate: bool
    ) -> str | None:
        steps = self.policy.train_steps
        keep = sorted({rng.randrange(steps), *range(3, steps, 4), steps - 1})
        folder = self.workers.place(worker) / "outputs"
        folder.mkdir(parents=True, exist_ok=True)
        seed = 1 + rng.randrange(2**30)
        request = {
            "shape": shape.model_dump(),
            "dir": str(folder),
            "steps": steps,
            "seed": seed,
            "accumulate": accumulate,
        }
        try:
            made = worker.ask({"cmd": "train", **request, "keep": keep}, self.policy.check_timeout_s)
            judged = checker.ask(
                {"cmd": "check_train", **request, "answers": made.get("steps", {})}, self.policy.check_timeout_s
            )
        finally:
            shutil.rmtree(folder, ignore_errors=True)
        passed = {str(k): bool(judged["steps"].get(str(k), {}).get("passed")) for k in keep}
        return session_checks.training(passed, [int(n) for n in made.get("launches", [])] or [0], weight_cache)

    def _observe(self, worker: Worker, shape: Shape) -> dict[str, Any]:
        return worker.ask(
            {"cmd": "observe", "shape": shape.model_dump(), "seed": secrets.randbits(31)}, self.policy.check_timeout_s
        )

    # -- which shapes ------------------------------------------------------------------------------------------------
    def _heldout(self, shapes: Sequence[Shape], rng: random.Random) -> list[Shape]:
        dims = [checks.heldout_dims(shapes[0].dims, rng, self.policy.heldout_max) for _ in range(self.policy.heldout)]
        return [Shape(label=f"heldout-{i + 1}", dims=d) for i, d in enumerate(dims)]

    def _small(self, shapes: Sequence[Shape], heldout: bool, rng: random.Random) -> Shape:
        found = self._heldout(shapes, rng) if heldout else []
        return found[0] if found else min(shapes, key=lambda s: math.prod(s.dims.values()))

    def _fills(self, worker: Worker) -> list[str]:
        return [str(f) for f in self.workers.hello(worker).get("fills", ["normal"])]

    def first_call_s(self, norms: Norms | None) -> float:
        """How long a first call may take: compiling adapts to what the base needed."""
        if norms is None or not norms.first_call_s:
            return self.policy.compile_timeout_s
        return min(self.policy.compile_timeout_s, max(FIRST_CALL_S, 10 * norms.first_call_s))


def _dims(shape: Shape) -> str:
    return "x".join(str(v) for v in shape.dims.values())


def _judged(answer: dict[str, Any], shape: Shape) -> Judged:
    try:
        return Judged.model_validate(answer)
    except ValidationError as e:
        raise WorkerError(
            "protocol", f"checker's answer for {shape.label} is malformed: {str(e).splitlines()[0]}"
        ) from e


def own_failure(trial: Judgement) -> Failure | None:
    """The project's own check on normal contents, whether or not anything is known of the base."""
    bad = next((j for c, j in trial if c.fill == "normal" and not j.passed), None)
    return Failure(code="G04", detail=bad.detail or "the project's check fails") if bad else None


def _row(shape: Shape, trial: Judgement, failure: Failure | None) -> CheckRow:
    metrics = trial[0][1].metrics
    if failure:
        return CheckRow(shape=shape.label, check="FAIL", metrics=metrics, detail=failure.detail, code=failure.code)
    return CheckRow(shape=shape.label, check="PASS", metrics=metrics)
