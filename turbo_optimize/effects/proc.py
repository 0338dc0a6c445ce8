"""Processes that are not trusted: own group, own caches, an allow-listed environment, limits, killed as a whole."""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import selectors
import shlex
import signal
import subprocess
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from turbo_optimize.core.errors import WorkerError
from turbo_optimize.effects import isolation, watch
from turbo_optimize.effects.store import disk_errors
from turbo_optimize.effects.watch import Limits, Watch

# What a candidate's process may see of the user's environment: no tokens, no PYTHONPATH, no caches.
ALLOWED = ("PATH", "LANG", "LC_ALL", "LC_CTYPE", "LD_LIBRARY_PATH", "TZ", "CC", "CXX", "VIRTUAL_ENV")
ALLOWED_PREFIXES = (
    "CUDA_",
    "NVIDIA_",
    "HIP_",
    "HSA_",
    "ROCM_",
    "ROCR_",
    "AMD_",
    "TRITON_INTERPRET",
    "OMP_",
    "OPENBLAS_",
)
PR_SET_PDEATHSIG = 1
GRACE_S = 5.0  # between TERM and KILL
LAST_WORDS = 300  # characters of a dead worker's last line
REPLY_MAX = 1 << 24  # bytes of one answer: more is a runaway, not a protocol


def environment(scratch: Path, extra: Mapping[str, str] | None = None) -> dict[str, str]:
    """An allow-listed environment whose home, temporary folder and compiler caches lie under `scratch`."""
    env = {k: v for k, v in os.environ.items() if k in ALLOWED or k.startswith(ALLOWED_PREFIXES)}
    private = {
        "HOME": "home", "TMPDIR": "tmp", "TRITON_CACHE_DIR": "triton", "TORCH_EXTENSIONS_DIR": "extensions",
        "TORCHINDUCTOR_CACHE_DIR": "inductor", "XDG_CACHE_HOME": "cache",
    }  # fmt: skip
    for name, folder in private.items():
        path = scratch / folder
        with disk_errors(path):
            path.mkdir(parents=True, exist_ok=True)
        env[name] = str(path)
    return env | {"PYTHONDONTWRITEBYTECODE": "1"} | dict(extra or {})


_LIBC = ctypes.CDLL(None)


def die_with_parent(sig: signal.Signals) -> None:
    """For the child side of a fork: the system sends `sig` when the parent ends, however that ends."""
    _LIBC.prctl(PR_SET_PDEATHSIG, sig)


def kill_group(process: subprocess.Popen[Any], grace_s: float = GRACE_S) -> None:
    """TERM to the group and a grace; then the group is stopped, its descendants killed until none is left, and it too."""
    _signal_group(process, signal.SIGCONT)
    _signal_group(process, signal.SIGTERM)
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(grace_s)
    _signal_group(process, signal.SIGSTOP)
    end = time.monotonic() + GRACE_S
    while time.monotonic() < end and (rest := [p for p in watch.descendants(process.pid) if watch.is_alive(p)]):
        for pid in rest:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.001)
    _signal_group(process, signal.SIGKILL)
    process.wait()


def _signal_group(process: subprocess.Popen[Any], number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, number)


@dataclass(frozen=True)
class Finished:
    code: int
    output: str  # the last 64 KiB of stdout and stderr together
    seconds: float
    timed_out: bool = False


def _excess(name: str, excess: watch.Excess) -> WorkerError:
    return WorkerError(excess.kind, f"{name} took {excess.found}; killed", "raise the limit if it needs so much")


def run_command(
    command: str,
    cwd: Path,
    scratch: Path,
    log: Path,
    timeout_s: float,
    extra_env: Mapping[str, str] | None = None,
    writable: Sequence[Path] = (),
    limits: Limits = Limits(),
    confined: bool = True,
) -> Finished:
    """A project's command (test, benchmark, rebuild), confined; its output goes to `log`.

    It may write below `scratch` and `writable` (existing folders or files), so not in `cwd` unless that is named.
    WorkerError build (can't be started), memory, processes or disk (a limit passed).
    """
    env = environment(scratch, extra_env)
    with disk_errors(log):
        log.parent.mkdir(parents=True, exist_ok=True)
        out = open(log, "wb")  # noqa: SIM115  # closed by the with below; opened here for the error's path
    began = time.monotonic()
    at = isolation.level() if confined else isolation.OPEN
    with out:
        try:
            words = shlex.split(command)
            process = isolation.start(words, cwd, env, (scratch, *writable), limits.file_bytes, at, stdout=out)
        except (WorkerError, ValueError) as e:
            hint = "check the command in the project file"
            raise WorkerError("build", f"`{command}` can't be started: {e}", hint) from e
        guard = Watch(process.pid, at.wrappers, limits, (scratch, log))
        try:
            late = not _wait(process, began + timeout_s, guard, f"`{command}`")
        finally:
            kill_group(process, grace_s=1.0)
    tail = log.read_bytes()[-65536:].decode(errors="replace")
    return Finished(-1 if late else process.returncode, tail, time.monotonic() - began, late)


def _wait(process: subprocess.Popen[bytes], deadline: float, guard: Watch, name: str) -> bool:
    """Whether it ended in time. WorkerError when it passes a limit."""
    while (left := deadline - time.monotonic()) > 0:
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(min(left, watch.LOOK_S))
            return True
        if excess := guard.look():
            kill_group(process, grace_s=0.0)
            raise _excess(name, excess)
    return False


class Worker:
    """A worker or checker process that speaks the protocol of docs/projects.md, one JSON line each way.

    It may write below `scratch` and `writable` (existing folders or files). Its WorkerErrors: build (it can't be
    started), timeout, crash (it ended without an answer), protocol, memory, processes, disk (a limit passed), and
    what the worker itself names.
    """

    def __init__(
        self,
        command: Sequence[str],
        cwd: Path,
        scratch: Path,
        log: Path,
        extra_env: Mapping[str, str] | None = None,
        writable: Sequence[Path] = (),
        limits: Limits = Limits(),
        confined: bool = True,
    ) -> None:
        self.name, self.log = log.stem, log
        env = environment(scratch, extra_env)
        at = isolation.level() if confined else isolation.OPEN
        reply_read, reply_write = os.pipe()
        with disk_errors(log):
            log.parent.mkdir(parents=True, exist_ok=True)
            out = open(log, "ab")  # noqa: SIM115  # handed to the child, closed below
        try:
            with out:
                self.process = isolation.start(
                    [*command, "--reply-fd", str(reply_write)], cwd, env, (scratch, *writable), limits.file_bytes, at,
                    stdin=subprocess.PIPE, stdout=out, pass_fds=(reply_write,),
                )  # fmt: skip
        except WorkerError as e:
            os.close(reply_read)
            raise WorkerError("build", f"{self.name} can't be started: {e.message}", e.hint) from e
        finally:
            os.close(reply_write)
        self._guard = Watch(self.process.pid, at.wrappers, limits, (scratch, log))
        self._reply = reply_read
        self._buffer = b""
        self._stopped = False

    def processes(self) -> int:
        """How many the worker is, with all its descendants, seen from outside; the launcher doesn't count."""
        return len(self._guard.pids())

    def threads(self) -> int:
        """Of all its processes, seen from outside."""
        return watch.threads(self._guard.pids())

    def pin(self, cpus: Collection[int]) -> None:
        """Every thread of every process of the worker onto these CPUs; threads begun later inherit it."""
        for task in watch.tasks(self._guard.pids()):
            with contextlib.suppress(ProcessLookupError):
                os.sched_setaffinity(task, cpus)

    def pinned(self, cpus: Collection[int]) -> bool:
        """Whether each of its threads may run on exactly these CPUs, seen from outside."""
        for task in watch.tasks(self._guard.pids()):
            with contextlib.suppress(ProcessLookupError):
                if os.sched_getaffinity(task) != set(cpus):
                    return False
        return True

    def look(self) -> None:
        """WorkerError memory, processes or disk, and the end of it all, when a limit is passed. At most every LOOK_S."""
        if excess := self._guard.look():
            kill_group(self.process, grace_s=0.0)
            raise _excess(self.name, excess)

    def ask(self, request: Mapping[str, Any], timeout_s: float) -> dict[str, Any]:
        """The answer to one request. WorkerError of the kind that the worker names, or timeout, or protocol."""
        self.send(request)
        return self.receive(timeout_s, str(request["cmd"]))

    def send(self, request: Mapping[str, Any]) -> None:
        self.go_on()
        assert self.process.stdin
        try:
            self.process.stdin.write(json.dumps(request).encode() + b"\n")
            self.process.stdin.flush()
        except BrokenPipeError:
            raise self._died(str(request["cmd"])) from None

    def receive(self, timeout_s: float, what: str) -> dict[str, Any]:
        line = self._read_line(timeout_s, what)
        try:
            answer = json.loads(line)
            ok = answer["ok"]
        except (ValueError, KeyError, TypeError):
            raise WorkerError(
                "protocol", f"{self.name}: {what} was answered with {line[:80]!r}", str(self.log)
            ) from None
        if not ok:
            raise WorkerError(str(answer.get("kind", "run")), f"{self.name}: {answer.get('error', 'failed')}", "")
        return answer

    def _read_line(self, timeout_s: float, what: str) -> bytes:
        deadline = time.monotonic() + timeout_s
        with selectors.DefaultSelector() as selector:
            selector.register(self._reply, selectors.EVENT_READ)
            while b"\n" not in self._buffer:
                left = deadline - time.monotonic()
                if left <= 0:
                    kill_group(self.process)
                    raise WorkerError("timeout", f"{self.name}: no answer to {what} within {timeout_s:.0f} s; killed")
                if not selector.select(min(left, watch.LOOK_S)):
                    self.look()
                    continue
                chunk = os.read(self._reply, 1 << 16)
                if not chunk:
                    raise self._died(what)
                self._buffer += chunk
                if len(self._buffer) > REPLY_MAX:
                    kill_group(self.process)
                    raise WorkerError("protocol", f"{self.name}: an endless answer to {what}; killed")
                if b"\n" not in chunk:
                    self.look()
        line, _, self._buffer = self._buffer.partition(b"\n")
        return line

    def _died(self, what: str) -> WorkerError:
        with contextlib.suppress(subprocess.TimeoutExpired):  # its own end, not the one we give it
            self.process.wait(0.5)
        kill_group(self.process, grace_s=0.5)
        code = self.process.returncode
        how = f"by {signal.Signals(-code).name}" if code < 0 else f"with exit {code}"
        last = [x for x in self.log.read_text(errors="replace").splitlines() if x.strip()][-1:]
        return WorkerError(
            "crash", f"{self.name} ended {how} during {what}: {last[0].strip()[:LAST_WORDS] if last else 'no output'}"
        )

    def pause(self) -> None:
        """The idle worker is stopped while the other measures, with all its descendants, wherever they went."""
        if not self._stopped:
            self.look()
            self._guard.stop_all()
            self._stopped = True

    def go_on(self) -> None:
        if self._stopped:
            self._guard.signal_all(signal.SIGCONT)
            self._stopped = False

    def hang_up(self) -> None:
        """Closes its input: a well-behaved worker ends by itself."""
        self.go_on()
        with contextlib.suppress(OSError):
            assert self.process.stdin
            self.process.stdin.close()

    def close(self) -> None:
        """Ends the process, then its whole group."""
        self.hang_up()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(2.0)
        kill_group(self.process, grace_s=0.5)
        os.close(self._reply)

    def __enter__(self) -> Worker:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
