"""Where a night's campaigns run. An executor is a function in EXECUTORS; a campaign is a process of `turbo-opt start`.

`local` runs one campaign a GPU of this machine, or one after the other where there is none. A night holds a GPU's lock
(effects/devices.py) and passes it on to the campaign, so that nothing else measures there.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError

from turbo_optimize.core.errors import LockedError
from turbo_optimize.core.hardware import resolve_gpu
from turbo_optimize.core.models import Frozen
from turbo_optimize.effects.devices import CPU, Device, hold, passed_on, runtime_dir
from turbo_optimize.effects.proc import kill_group
from turbo_optimize.effects.store import Lock, disk_errors
from turbo_optimize.fleet.config import Target

START = (sys.executable, "-m", "turbo_optimize.cli.app", "start")
POLL_S = 0.1


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
            lock = hold(device, folder=setting.locks)
        except LockedError:
            continue  # another night's; asked again at the next look
        return _spawn(target, device, lock, setting)
    return None


def _spawn(target: Target, device: Device, lock: Lock | None, setting: Setting) -> _Running:
    command = [*setting.start_command, *target.arguments(), "--yes", "--json"]
    out, log = (setting.logs / f"{target.label}.{end}" for end in ("out", "log"))
    more_env, files = passed_on(lock) if lock else ({}, ())
    try:
        with disk_errors(setting.logs), open(out, "wb") as stdout, open(log, "wb") as stderr:
            process = subprocess.Popen(
                command, cwd=setting.top, env=dict(os.environ) | device.environment | more_env, pass_fds=files,
                stdin=subprocess.DEVNULL, stdout=stdout, stderr=stderr, start_new_session=True,
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
