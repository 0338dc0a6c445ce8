"""Processes that are not trusted: own group, own caches, an allow-listed environment, limits, killed as a whole."""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import resource
import selectors
import shlex
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from turbo_optimize.core.errors import WorkerError
from turbo_optimize.effects.store import disk_errors

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


def _preexec() -> None:
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    die_with_parent(signal.SIGKILL)


def kill_group(process: subprocess.Popen[Any], grace_s: float = GRACE_S) -> None:
    """TERM, a grace, KILL: to the whole group, leftovers of a clean exit too."""
    for sig, wait_s in ((signal.SIGCONT, 0.0), (signal.SIGTERM, grace_s), (signal.SIGKILL, GRACE_S)):
        try:
            os.killpg(process.pid, sig)
        except (ProcessLookupError, PermissionError):
            break
        if wait_s:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(wait_s)
    process.wait()


@dataclass(frozen=True)
class Finished:
    code: int
    output: str  # the last 64 KiB of stdout and stderr together
    seconds: float
    timed_out: bool = False


def run_command(
    command: str, cwd: Path, scratch: Path, log: Path, timeout_s: float, extra_env: Mapping[str, str] | None = None
) -> Finished:
    """A project's command (test, benchmark, rebuild) in its own group; its output goes to `log`."""
    with disk_errors(log):
        log.parent.mkdir(parents=True, exist_ok=True)
        out = open(log, "wb")  # noqa: SIM115  # closed by the with below; opened here for the error's path
    start = time.monotonic()
    with out:
        try:
            process = subprocess.Popen(
                shlex.split(command), cwd=cwd, env=environment(scratch, extra_env), stdin=subprocess.DEVNULL, stdout=out,
                stderr=subprocess.STDOUT, start_new_session=True, preexec_fn=_preexec,
            )  # fmt: skip
        except (OSError, ValueError) as e:
            raise WorkerError(
                "build", f"`{command}` can't be started: {e}", "check the command in the project file"
            ) from e
        try:
            code, late = process.wait(timeout_s), False
        except subprocess.TimeoutExpired:
            code, late = -1, True
        finally:
            kill_group(process, grace_s=1.0)
    tail = log.read_bytes()[-65536:].decode(errors="replace")
    return Finished(code, tail, time.monotonic() - start, late)


class Worker:
    """A worker or checker process that speaks the protocol of docs/projects.md, one JSON line each way."""

    def __init__(
        self, command: Sequence[str], cwd: Path, scratch: Path, log: Path, extra_env: Mapping[str, str] | None = None
    ) -> None:
        self.name, self.log = log.stem, log
        reply_read, reply_write = os.pipe()
        with disk_errors(log):
            log.parent.mkdir(parents=True, exist_ok=True)
            out = open(log, "ab")  # noqa: SIM115  # handed to the child, closed below
        try:
            with out:
                self.process = subprocess.Popen(
                    [*command, "--reply-fd", str(reply_write)], cwd=cwd, env=environment(scratch, extra_env),
                    stdin=subprocess.PIPE, stdout=out, stderr=subprocess.STDOUT, pass_fds=(reply_write,),
                    start_new_session=True, preexec_fn=_preexec,
                )  # fmt: skip
        except OSError as e:
            os.close(reply_read)
            raise WorkerError("build", f"{self.name} can't be started: {e}") from e
        finally:
            os.close(reply_write)
        self._reply = reply_read
        self._buffer = b""
        self._stopped = False

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
                if left <= 0 or not selector.select(left):
                    kill_group(self.process)
                    raise WorkerError("timeout", f"{self.name}: no answer to {what} within {timeout_s:.0f} s; killed")
                chunk = os.read(self._reply, 1 << 16)
                if not chunk:
                    raise self._died(what)
                self._buffer += chunk
                if len(self._buffer) > REPLY_MAX:
                    kill_group(self.process)
                    raise WorkerError("protocol", f"{self.name}: an endless answer to {what}; killed")
        line, _, self._buffer = self._buffer.partition(b"\n")
        return line

    def _died(self, what: str) -> WorkerError:
        kill_group(self.process, grace_s=0.5)
        code = self.process.returncode
        how = f"by {signal.Signals(-code).name}" if code < 0 else f"with exit {code}"
        last = [x for x in self.log.read_text(errors="replace").splitlines() if x.strip()][-1:]
        return WorkerError("run", f"{self.name} ended {how} during {what}: {last[0].strip() if last else 'no output'}")

    def pause(self) -> None:
        """The idle worker is stopped while the other measures."""
        if not self._stopped:
            os.killpg(self.process.pid, signal.SIGSTOP)
            self._stopped = True

    def go_on(self) -> None:
        if self._stopped:
            os.killpg(self.process.pid, signal.SIGCONT)
            self._stopped = False

    def hang_up(self) -> None:
        """Closes its input: a well-behaved worker ends by itself."""
        with contextlib.suppress(ProcessLookupError):
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
