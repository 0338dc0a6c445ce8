"""Where a night's campaigns run. An executor is a function in EXECUTORS; a campaign is a process of `turbo-opt start`.

`local` runs one campaign a GPU of this machine, or one after the other where there is none. A GPU is held by a lock in
the user's runtime folder, so that two nights never share one.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError

from turbo_optimize.core.errors import LockedError
from turbo_optimize.core.hardware import resolve_gpu
from turbo_optimize.core.models import Frozen
from turbo_optimize.effects.probe import Gpu
from turbo_optimize.effects.proc import kill_group
from turbo_optimize.effects.store import Lock, disk_errors
from turbo_optimize.fleet.config import Target

START = (sys.executable, "-m", "turbo_optimize.cli.app", "start")
POLL_S = 0.1
VISIBLE = {"gfx": "HIP_VISIBLE_DEVICES", "sm_": "CUDA_VISIBLE_DEVICES"}  # by the architecture's first letters


@dataclass(frozen=True)
class Device:
    """One GPU that a campaign may hold, or the CPU. `visible` is its name for the driver: an index or a UUID."""

    arch: str = "cpu"
    name: str = "cpu"
    visible: str = ""

    @property
    def environment(self) -> dict[str, str]:
        return {VISIBLE[self.arch[:3]]: self.visible} if self.visible else {}

    def lock(self, folder: Path) -> Lock:
        safe = re.sub(r"[^A-Za-z0-9]+", "-", self.visible)
        return Lock(folder / f"gpu-{safe}.lock", f"GPU {self.visible} ({self.name})")


CPU = Device()


class Outcome(Frozen):
    """How a campaign ended; `why` is empty where it ended well. The device is the one that it held."""

    target: str
    ok: bool
    why: str = ""
    campaign: str | None = None
    dir: str | None = None
    code: str | None = None  # the termination
    rounds: int | None = None
    accepted: int | None = None
    score: float | None = None
    unit: str | None = None
    gain_pct: float | None = None
    gpu: str = "cpu"
    device: str = "cpu"
    seconds: float = 0.0


class Answer(BaseModel):
    """The last line of `turbo-opt start --json`."""

    model_config = ConfigDict(extra="ignore", allow_inf_nan=False)

    campaign: str
    dir: str
    code: str | None
    rounds: int
    accepted: int
    score: float | None
    unit: str | None
    gain_pct: float | None
    final_ok: bool | None


def runtime_dir() -> Path:
    """The user's own folder for what lasts as long as the machine is up."""
    own = os.environ.get("XDG_RUNTIME_DIR")
    return Path(own, "turbo-opt") if own else Path(tempfile.gettempdir(), f"turbo-opt-{os.getuid()}")


Told = Callable[[str, str, str], None]  # target, state (waiting, running, ok, failed), a word more


def quiet(target: str, state: str, text: str) -> None:
    """Nobody watches."""


@dataclass(frozen=True)
class Setting:
    """What every executor is told. Tests put another program in `start_command`'s place."""

    top: Path  # the repository
    logs: Path  # <target>.out and <target>.log go here
    timeout_s: float  # of one campaign
    devices: tuple[Device, ...] = ()  # GPUs; none: the CPU alone
    start_command: Sequence[str] = START
    locks: Path = field(default_factory=runtime_dir)
    told: Told = quiet


def devices(found: Sequence[Gpu], environ: Mapping[str, str]) -> tuple[Device, ...]:
    """The GPUs that this process may use: those that the driver names and the visible-devices variable lets through."""
    if not found:
        return ()
    by_index = {str(g.index): g for g in found}
    allowed = next((environ[v] for v in (VISIBLE[found[0].arch[:3]], "CUDA_VISIBLE_DEVICES") if v in environ), None)
    names = by_index if allowed is None else dict.fromkeys(x.strip() for x in allowed.split(",") if x.strip())
    # A UUID names no index: its kind is then that of the first GPU (mixed machines are named by index).
    known = [(name, by_index.get(name) if name.isdigit() else found[0]) for name in names]
    return tuple(Device(g.arch, g.name, name) for name, g in known if g)


# -- local -------------------------------------------------------------------------------------------------------------
@dataclass
class _Running:
    target: Target
    device: Device
    lock: Lock | None
    process: subprocess.Popen[bytes]
    began: float


def local(targets: Sequence[Target], setting: Setting) -> dict[str, Outcome]:
    """Runs every target on this machine; outcomes by label. An interrupt first ends all campaigns, resumable."""
    waiting, running, outcomes = list(targets), [], {}
    for t in waiting:
        setting.told(t.label, "waiting", "")
    last_run = time.monotonic()
    try:
        while waiting or running:
            for target in list(waiting):
                if started := _start(target, setting, running):
                    waiting.remove(target)
                    running.append(started)
            if running:
                last_run = time.monotonic()
            elif time.monotonic() - last_run > setting.timeout_s:  # every GPU stayed in other hands
                outcomes |= {t.label: _no_device(t, setting) for t in waiting}
                break
            time.sleep(POLL_S)
            for r in list(running):
                if outcome := _look(r, setting):
                    running.remove(r)
                    outcomes[outcome.target] = outcome
                    setting.told(outcome.target, "ok" if outcome.ok else "failed", outcome.why)
    finally:
        for r in running:
            _end(r)
    return outcomes


def _suits(target: Target, device: Device) -> bool:
    return target.gpu in (None, "auto") or resolve_gpu(str(target.gpu)) == device.arch


def _start(target: Target, setting: Setting, running: Sequence[_Running]) -> _Running | None:
    """The target's process on a device of its own; None while every device that suits it is taken."""
    fitting = [d for d in setting.devices if _suits(target, d)]
    busy = {r.device for r in running}
    if not fitting:  # the CPU; or a GPU that isn't here, which `start` says in its own words
        return None if CPU in busy else _spawn(target, CPU, None, setting)
    for device in fitting:
        if device in busy:
            continue
        try:
            lock = device.lock(setting.locks).acquire()
        except LockedError:
            continue  # another night's; asked again at the next look
        return _spawn(target, device, lock, setting)
    return None


def _spawn(target: Target, device: Device, lock: Lock | None, setting: Setting) -> _Running:
    command = [*setting.start_command, *target.arguments(), "--yes", "--json"]
    out, log = (setting.logs / f"{target.label}.{end}" for end in ("out", "log"))
    try:
        with disk_errors(setting.logs), open(out, "wb") as stdout, open(log, "wb") as stderr:
            process = subprocess.Popen(
                command, cwd=setting.top, env=dict(os.environ) | device.environment, stdin=subprocess.DEVNULL,
                stdout=stdout, stderr=stderr, start_new_session=True,
            )  # fmt: skip
    except BaseException:
        if lock:
            lock.release()
        raise
    setting.told(target.label, "running", f"on {device.name}" + (f" {device.visible}" if device.visible else ""))
    return _Running(target, device, lock, process, time.monotonic())


def _end(r: _Running) -> None:
    """The whole group, by TERM (a campaign then stops resumable) and KILL; then the GPU is free."""
    kill_group(r.process)
    if r.lock:
        r.lock.release()


def _look(r: _Running, setting: Setting) -> Outcome | None:
    """The outcome of a process that has ended or has to."""
    seconds = time.monotonic() - r.began
    late = r.process.poll() is None and seconds > setting.timeout_s
    if r.process.poll() is None and not late:
        return None
    code = r.process.returncode
    _end(r)
    out, log = (setting.logs / f"{r.target.label}.{end}" for end in ("out", "log"))
    facts = _read(out, log, f"not done after {setting.timeout_s:g} s; ended" if late else _exit(code, log))
    return Outcome(target=r.target.label, gpu=r.device.arch, device=r.device.name, seconds=round(seconds, 3), **facts)


def _exit(code: int, log: Path) -> str:
    """Why a non-zero exit: the process's own last line."""
    if code == 0:
        return ""
    return f"exit {code}: {_last_line(log) or 'no word on stderr'}"


def _last_line(path: Path) -> str:
    lines = [x.strip() for x in path.read_text(errors="replace").split("\n") if x.strip()]
    return lines[-1] if lines else ""


def _read(out: Path, log: Path, failure: str) -> dict[str, Any]:
    """An outcome's facts from the last line of stdout; a failure keeps whatever facts there are."""
    try:
        answer = Answer.model_validate(json.loads(_last_line(out)))
    except (json.JSONDecodeError, ValidationError):
        return {"ok": False, "why": failure or f"the last line is no result; see {log}"}
    facts = answer.model_dump(exclude={"final_ok"})
    if not failure and not answer.final_ok:
        failure = f"the final acceptance failed; see {answer.dir}/report/report.md"
    if not failure and answer.score is None:
        failure = "it ended without a score"
    return facts | {"ok": not failure, "why": failure}


def _no_device(target: Target, setting: Setting) -> Outcome:
    why = f"no GPU became free in {setting.timeout_s:g} s (locks in {setting.locks})"
    setting.told(target.label, "failed", why)
    return Outcome(target=target.label, ok=False, why=why)


Executor = Callable[[Sequence[Target], Setting], dict[str, Outcome]]
EXECUTORS: dict[str, Executor] = {"local": local}
