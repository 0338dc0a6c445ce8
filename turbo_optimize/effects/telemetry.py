"""What a device says of itself while it is measured: clock, temperature, power, what slows it down, who else is on it.

A block's reading costs 0.04 ms on an H200 (a dozen files on AMD) and never fails: what can't be read is None, and `problem`
says why, once.
"""

from __future__ import annotations

import os
import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean
from typing import Any

from turbo_optimize.effects.devices import Device
from turbo_optimize.effects.sensors import BACKENDS, POWER_CAP, SYSFS, Sensors, Unreadable
from turbo_optimize.effects.store import Lock

BUSY_PCT = 5.0  # more than this of an idle GPU's time is somebody else's
MEMORY_MIB = 256.0  # a context alone takes more; an H200 without one shows 0
CLOCK_PCT = 2.0
SETTLE_S = 1.5  # a driver's utilization is that of the last second or so
POLL_S = 0.1
UNCAPPED_LEAST = 4  # clocks are compared where a side has this many readings that no power cap explains


@dataclass(frozen=True)
class Reading:
    """One look at a device; None where it can't be read. The clock is the compute clock (SM, shader engines, cores)."""

    sm_clock_mhz: float | None = None
    temp_c: float | None = None
    power_w: float | None = None
    throttle: tuple[str, ...] = ()  # active reasons that void what was measured meanwhile
    note: tuple[str, ...] = ()  # harmless ones: idle, power cap
    foreign: int | None = None  # compute processes that aren't ours


@dataclass(frozen=True)
class Others:
    """Compute processes on a GPU that aren't ours. `count` None: the driver doesn't let us know, and `unsure` says why."""

    count: int | None
    pids: tuple[int, ...] = ()
    unsure: str = ""


NUMBERS = ("sm_clock_mhz", "temp_c", "power_w")


class Telemetry:
    """One device's sensors. Opening it never fails either."""

    def __init__(self, device: Device, root: Path = SYSFS) -> None:
        self.device, self.name = device, device.name
        self.mend = ""
        self._problems: dict[str, str] = {}
        try:
            self._sensors = BACKENDS[device.arch[:3]](device, root)
        except Unreadable as e:
            self._sensors = Sensors({})
            self._problems["device"], self.mend = e.message, e.hint
        except Exception as e:  # whatever a driver does to us, the measurement goes on without its telemetry
            self._sensors = Sensors({})
            self._problems["device"] = _why(e)
        self._problems |= {k: f"{k}: {why}" for k, why in self._sensors.lacks.items()}

    @property
    def problem(self) -> str:
        """Why something is None, each reason once; empty where all can be read."""
        return "; ".join(dict.fromkeys(self._problems.values()))

    def ask(self, key: str) -> Any:
        """One sensor of the table in sensors.py; None where it isn't there or doesn't answer."""
        function = self._sensors.table.get(key)
        if function is None:
            return None
        try:
            return function()
        except Exception as e:  # whatever a driver raises (a lost GPU, too): it is told in `problem`
            self._problems.setdefault(key, f"{key}: {_why(e)}")
            return None

    def read(self, slow: bool = False) -> Reading:
        """`slow`: also what only a tool's process tells (AMD); never so between two timed blocks."""
        numbers = {key: self.ask(key) for key in NUMBERS}
        if slow and self._sensors.slow and None in numbers.values():
            numbers |= {k: v for k, v in self._ask_slow().items() if numbers.get(k, 0.0) is None}
        throttle, note = self.ask("reasons") or ((), ())
        return Reading(**numbers, throttle=throttle, note=note)

    def _ask_slow(self) -> dict[str, Any]:
        assert self._sensors.slow
        try:
            return dict(self._sensors.slow())
        except Exception as e:  # as above
            self._problems.setdefault("slow", f"amd-smi: {_why(e)}")
            return {}

    def others(self, own: Collection[int] = ()) -> Others:
        """Compute processes on the GPU that aren't ours: neither in `own`, nor this one, nor a descendant of either.

        In a container the driver may name processes by the numbers of another namespace: then they are only counted, and
        `own` must be those of ours that hold the GPU now. Or it names none, not even ours: then nothing is known.
        """
        listed = self.ask("pids")
        if listed is None:
            return Others(None, (), self._problems.get("pids", self._problems.get("device", "this device lists none")))
        if not listed:
            return Others(None, (), "the driver lists no process, not even ours") if own else Others(0)
        foreign = tuple(p for p in listed if not _descends(p, {os.getpid(), *own}))
        if own and len(foreign) == len(listed) and not any(Path(f"/proc/{p}").exists() for p in listed):
            said = "the driver names processes of another namespace: counted, not told apart"
            return Others(max(0, len(listed) - len(own)), (), said)
        return Others(len(foreign), foreign)


def _why(e: Exception) -> str:
    if isinstance(e, OSError) and e.filename:
        return f"{Path(e.filename).name}: {(e.strerror or '').lower()}"
    return str(e) or type(e).__name__


def _descends(pid: int, from_: Collection[int]) -> bool:
    """Whether a process is one of these or was started by one, however far up."""
    while pid:  # up to 1, which we may be in a container
        if pid in from_:
            return True
        try:
            stat = Path(f"/proc/{pid}/stat").read_text()
        except OSError:  # it has ended, or lives in another namespace
            return False
        pid = int(stat.rpartition(")")[2].split()[1])  # its name may hold spaces and parentheses
    return False


# -- while it is measured ----------------------------------------------------------------------------------------------
class Watch:
    """Samples at block ends. `own`: the workers' processes that hold the GPU now."""

    def __init__(self, telemetry: Telemetry, own: Collection[int], clock_pct: float | None = CLOCK_PCT) -> None:
        self.telemetry, self.own = telemetry, own
        # A CPU's clocks are those of all its cores and move by themselves: they say nothing of one worker.
        self.clock_pct = None if telemetry.device.arch == "cpu" else clock_pct

    def block(self) -> Reading:
        return replace(self.telemetry.read(), foreign=self.telemetry.others(self.own).count)

    def verdict(self, a: Sequence[Reading], b: Sequence[Reading]) -> str | None:
        return verdict(a, b, self.clock_pct)


def verdict(a: Sequence[Reading], b: Sequence[Reading], clock_pct: float | None = CLOCK_PCT) -> str | None:
    """Why what was measured must be void, from the readings at the ends of A's and of B's blocks of one shape; or None.

    A reason that voids, in any block; a foreign process, in any block; mean clocks that differ by more than `clock_pct`
    percent (None: not compared). A block at the power cap doesn't count for the clocks: there the clock follows what the
    kernel itself draws, and on an H200 it moves by up to 10% between two blocks of one unchanged kernel.
    """
    both = [*a, *b]
    slowed = [r for r in both if r.throttle]
    if slowed:
        hottest = max((r.temp_c for r in slowed if r.temp_c is not None), default=None)
        at = "" if hottest is None else f", at {hottest:.0f} °C"
        names = ", ".join(dict.fromkeys(x for r in slowed for x in r.throttle))
        return f"{names} in {len(slowed)} of {len(both)} blocks{at}"
    shared = [r for r in both if r.foreign]
    if shared:
        return f"a foreign process was on the GPU in {len(shared)} of {len(both)} blocks"
    return None if clock_pct is None else _clocks_differ(_free_clocks(a), _free_clocks(b), clock_pct)


def _free_clocks(readings: Sequence[Reading]) -> list[float]:
    return [r.sm_clock_mhz for r in readings if r.sm_clock_mhz and POWER_CAP not in r.note]


def _clocks_differ(a: Sequence[float], b: Sequence[float], most_pct: float) -> str | None:
    if min(len(a), len(b)) < UNCAPPED_LEAST:
        return None
    under_a, under_b = fmean(a), fmean(b)
    pct = 100 * abs(under_a - under_b) / max(under_a, under_b)
    if pct <= most_pct:
        return None
    return f"the clock was {under_a:.0f} MHz under A, {under_b:.0f} under B: {pct:.1f}% apart, at most {most_pct:g}%"


# -- before it is measured ---------------------------------------------------------------------------------------------
def quiet(telemetry: Telemetry, own: Collection[int] = (), busy_pct: float = BUSY_PCT) -> str | None:
    """Why the idle device isn't ours alone, or None: a foreign process, work on it, memory that nobody listed holds.

    Waits up to SETTLE_S for the driver's utilization to forget what ran before.
    """
    others = telemetry.others(own)
    if others.count:
        whose = f" ({', '.join(map(str, others.pids))})" if others.pids else ""
        return f"{others.count} foreign process{'es' if others.count > 1 else ''}{whose} on {telemetry.name}"
    deadline = time.monotonic() + SETTLE_S
    while (busy := telemetry.ask("busy_pct")) is not None and busy > busy_pct:
        if time.monotonic() > deadline:
            return f"{telemetry.name} is {busy:.0f}% busy while nothing of ours runs"
        time.sleep(POLL_S)
    taken = None if own else telemetry.ask("memory_mib")
    if taken is not None and taken > MEMORY_MIB:
        return f"{taken:.0f} MiB of {telemetry.name} are taken, though no process is listed"
    return None


def users(telemetry: Telemetry, lock: Lock) -> str | None:
    """Who is on a device now: the campaign that holds its lock, or what `quiet` finds; None: nobody that shows."""
    try:
        holder = lock.holder()
    except OSError as e:
        return f"its lock can't be read ({_why(e)})"
    return f"a campaign of process {holder}" if holder else quiet(telemetry)


def health(telemetry: Telemetry) -> tuple[str, str]:
    """What can be read of a device now, and the mend where something can't: ("1980 MHz, 38 °C, 79 W", "")."""
    r = telemetry.read(slow=True)
    units = {"sm_clock_mhz": "MHz", "temp_c": "°C", "power_w": "W"}
    told = [f"{v:.0f} {unit}" for key, unit in units.items() if (v := getattr(r, key)) is not None]
    told += [f"slowed: {x}" for x in r.throttle] + list(r.note)
    found = ", ".join(told) or "nothing can be read"
    if len([k for k in units if getattr(r, k) is not None]) == len(units):
        return found, ""
    mend = telemetry.mend or "a session is then not checked for throttling"
    return f"{found} ({telemetry.problem})", mend
