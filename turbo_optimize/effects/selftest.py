"""The referee on trial: known faults in the base's own op, met as a campaign's gates meet candidates."""

from __future__ import annotations

import math
import random
import secrets
import statistics
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from turbo_optimize.core import stats
from turbo_optimize.core.checks import Failure, Norms, short_trial
from turbo_optimize.core.errors import WorkerError
from turbo_optimize.core.models import GateResult, Shape
from turbo_optimize.core.session_checks import CLOCK_FLOOR_MS
from turbo_optimize.core.trial_checks import judge_trial
from turbo_optimize.effects.bench import Tree, timed
from turbo_optimize.effects.trials import own_failure

if TYPE_CHECKING:
    from turbo_optimize.effects.duet import DuetBench

QUADS = 3
WRONG_OUTPUTS = ("zeroed_row", "shifted_tile", "unwritten_tail", "scale_error", "cached_output")


def self_test(bench: DuetBench, key: str, tree: Tree, shapes: Sequence[Shape], norms: Norms) -> tuple[GateResult, ...]:
    """Plants known faults into the base's op, as the campaign's gates would meet them; each must be found."""
    smallest = min(shapes, key=lambda s: math.prod(s.dims.values()))
    parts: dict[str, float] = {}
    found = _found_outputs(bench, key, tree, smallest, norms, parts)
    found.append(_found_sleep(bench, key, tree, smallest))
    found.append(_found_clock(bench, key, tree, smallest))
    return tuple(found)


def _found_outputs(
    bench: DuetBench, key: str, tree: Tree, shape: Shape, norms: Norms, parts: dict[str, float]
) -> list[GateResult]:
    """Each wrong output: what finds it. One that nothing finds is a gate that isn't one."""
    trials, rng, results = bench.trials, random.Random(secrets.randbits(64)), []
    with trials.workers.running(key, parts, ("worker-check", tree)) as (worker,):
        checker = trials.workers.checker(key, parts)
        with timed(parts, "self-test"):
            for fault in WRONG_OUTPUTS:
                bench.say(f"gate self-test: {fault.replace('_', ' ')}")
                worker.ask({"cmd": "plant", "name": fault}, bench.policy.start_timeout_s)
                try:
                    trial = trials.trial(worker, checker, shape, short_trial(rng), None)
                    failure = judge_trial(trial, norms) or own_failure(trial)
                except WorkerError as e:
                    if worker.process.poll() is not None:
                        raise
                    failure = Failure(code=e.kind if e.kind.startswith("K") else "G04", detail=e.message)
                said = failure.detail if failure else "passed every check"
                code = failure.code if failure else "G04"
                results.append(GateResult(code=code, ok=failure is not None, detail=f"{fault}: {said}"))
    return results


def _short(bench: DuetBench) -> DuetBench:
    """The same bench with few blocks: what it must see is large. They are long enough for K11's floor."""
    few = {"quads": QUADS, "trim": 0, "soak_s": 0.0, "forward_every": QUADS}
    long = max(bench.policy.block_ms, 4 * CLOCK_FLOOR_MS)
    lengths = {"block_ms": long, "block_max_ms": max(bench.policy.block_max_ms, long)}
    policy = bench.policy.model_copy(update=few | lengths)
    return replace(bench, policy=policy, say=lambda _: None, telemetry=None)


def _found_sleep(bench: DuetBench, key: str, tree: Tree, shape: Shape) -> GateResult:
    bench.say("gate self-test: added sleep")
    try:
        out, _ = _short(bench).one_session(key, "screen", 1, tree, tree, [shape], "added_sleep")
    except WorkerError as e:
        return GateResult(code=e.kind, ok=e.kind.startswith("K"), detail=f"added_sleep: {e.message}")
    gain = statistics.median(stats.quad_values(out.samples)[shape.label])  # one disturbed quad hides nothing
    bar = stats.log_gain(-bench.policy.veto_pct)
    return GateResult(code="D02", ok=gain <= bar, detail=f"added_sleep: measured as {stats.pct(gain):+.1f}%")


def _found_clock(bench: DuetBench, key: str, tree: Tree, shape: Shape) -> GateResult:
    bench.say("gate self-test: patched timer")
    try:
        _short(bench).one_session(key, "screen", 1, tree, tree, [shape], "patched_timer")
    except WorkerError as e:
        return GateResult(code=e.kind, ok=e.kind == "K11", detail=f"patched_timer: {e.message}")
    return GateResult(code="K11", ok=False, detail="patched_timer: passed every check")
