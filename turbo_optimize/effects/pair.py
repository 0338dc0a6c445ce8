"""Two workers in turn: blocks by the runner's clock, from the start signal to the receipt of outputs."""

from __future__ import annotations

import math
import secrets
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from turbo_optimize.core.errors import WorkerError
from turbo_optimize.core.models import Policy, Role, Sample, Shape
from turbo_optimize.effects.proc import Worker
from turbo_optimize.effects.telemetry import Reading, Watch

RECEIPT = 256  # elements of each output
BLOCK_TIMES = 20  # a block may take this many times what the incumbent's does


@dataclass
class Block:
    """One timed block and what its receipt can be checked against."""

    sample: Sample
    seed: int
    start: int
    keep: int
    at: int
    values: str


@dataclass
class Pair:
    """The two workers of a session, and what was seen of them."""

    workers: Mapping[Role, Worker]
    policy: Policy
    ring: int = 2
    watch: Watch | None = None
    readings: dict[Role, list[Reading]] = field(default_factory=lambda: {"A": [], "B": []})
    void: str | None = None
    overhead_ms: float = 0.0
    timeout_s: float = 60.0  # of a block

    def calls(self, rough_ms: float) -> int:
        """Calls in a block: at least block_calls and block_ms, but no longer than block_max_ms."""
        p = self.policy
        wanted = max(p.block_calls, math.ceil(p.block_ms / rough_ms))
        return max(1, min(wanted, int(p.block_max_ms / rough_ms)))

    def soak(self, shape: Shape, what: str, rough_ms: float) -> float:
        """Both in turn under the load that is measured, at least once each; the slower one's milliseconds a step."""
        calls, turn = self.calls(rough_ms), 0
        self.timeout_s = max(self.policy.block_timeout_s, BLOCK_TIMES * rough_ms * calls / 1e3)
        end = time.monotonic() + self.policy.soak_s
        soaked: dict[Role, float] = {}
        while turn < 2 or time.monotonic() < end:
            role: Role = "AB"[turn % 2]  # type: ignore[assignment]
            soaked[role] = self.block(role, shape, what, calls)[0]
            self.workers[role].pause()
            turn += 1
        return max(soaked.values())

    def place(self, shape: Shape, what: str, calls: int, place: Mapping[str, Any], alone: bool) -> Block:
        """One slot of a quad: a block of steps and, where wanted, one of the forward alone (a diagnostic)."""
        role: Role = place["role"]
        began = time.perf_counter()
        step_ms, answer, made = self.block(role, shape, what, calls)
        wall_ms = 1e3 * (time.perf_counter() - began)
        forward_ms = self.block(role, shape, "forward", calls)[0] if alone else None
        reading = self.watch.block() if self.watch else Reading()
        self.readings[role].append(reading)
        self.workers[role].pause()
        sample = Sample(
            **place, shape=shape.label, calls=calls, step_ms=step_ms, forward_ms=forward_ms, wall_ms=wall_ms,
            claimed_ms=float(answer["ms"]), event_ms=answer.get("event_ms"), clock_mhz=reading.sm_clock_mhz,
            temp_c=reading.temp_c, power_w=reading.power_w, throttle=", ".join((*reading.throttle, *reading.note)) or None,
        )  # fmt: skip
        return Block(sample, **made)

    def block(self, role: Role, shape: Shape, what: str, calls: int) -> tuple[float, Mapping[str, Any], dict[str, Any]]:
        """(milliseconds a call by the runner's clock, the worker's answer, what the receipt is checked against)."""
        worker = self.workers[role]
        worker.go_on()
        seed, start, keep = secrets.randbits(30), secrets.randbelow(self.ring), secrets.randbelow(calls)
        worker.ask(
            {
                "cmd": "arm",
                "label": shape.label,
                "what": what,
                "calls": calls,
                "seed": seed,
                "start": start,
                "keep": [keep],
            },
            self.timeout_s + self.policy.block_timeout_s,
        )
        whole_ms, answer, at, values = self.exchange(worker, self.timeout_s)
        claimed = float(answer["ms"])
        if not math.isfinite(claimed) or claimed <= 0:
            raise WorkerError("protocol", f"{worker.name} claims {claimed} ms a call for {shape.label}")
        ms = max(whole_ms - self.overhead_ms, 0.01 * whole_ms) / calls
        return ms, answer, {"seed": seed, "start": start, "keep": keep, "at": at, "values": values}

    def exchange(self, worker: Worker, timeout_s: float) -> tuple[float, Mapping[str, Any], int, str]:
        """Start signal to receipt, milliseconds. Nothing armed: what the messages take by themselves."""
        at = secrets.randbits(30)
        began = time.perf_counter()
        answer = worker.ask({"cmd": "go"}, timeout_s)
        values = worker.ask({"cmd": "receipt", "at": at, "count": RECEIPT}, timeout_s)["values"]
        return 1e3 * (time.perf_counter() - began), answer, at, str(values)


def event_ratio(samples: Sequence[Sample]) -> float:
    """The runner's time over the stream's events', of one worker's blocks; 1 where there are no events."""
    timed_ = [s for s in samples if s.event_ms]
    return sum(s.step_ms for s in timed_) / sum(s.event_ms or 0.0 for s in timed_) if timed_ else 1.0


def compiled(place: Path) -> int:
    """How many files a worker's compiler caches hold."""
    return sum(1 for p in (place / "triton").rglob("*") if p.is_file())
