"""Files that must not be lost: the journal, atomic writes, locks.

A journal line is `{"n": line, "sum": chain, "event": {…}}`; `sum` chains over all lines before it, so that an edited,
missing or swapped line is named. A torn last line (no newline: the append never returned, so nothing was built on it)
is cut off on open. Everything else that doesn't parse is an error.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import json
import os
import re
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from pydantic import ValidationError

from turbo_optimize.core.errors import JournalError, LockedError, TurboOptError
from turbo_optimize.core.events import EVENT, Event

GENESIS = "turbo-opt"


def sha256_bytes(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def sha256_file(path: Path) -> str:
    return sha256_bytes(path.read_bytes())


@contextlib.contextmanager
def disk_errors(path: Path) -> Iterator[None]:
    """Turns the operating system's refusals into one line with the mend."""
    try:
        yield
    except OSError as e:
        mends = {
            errno.ENOSPC: "free some space, then `turbo-opt resume`",
            errno.EDQUOT: "free some quota, then `turbo-opt resume`",
            errno.EACCES: "make it writable for this user",
            errno.EPERM: "make it writable for this user",
            errno.EROFS: "the file system is read-only; work in a checkout on a writable one",
            errno.ENOTDIR: "a file stands where a folder is needed; move it",
            errno.EEXIST: "a file stands where a folder is needed; move it",
            errno.ELOOP: "a link stands where a file is needed; remove it",
            errno.EISDIR: "a folder stands where a file is needed; move it",
            errno.EFBIG: "raise the file size limit (ulimit -f)",
        }
        if e.errno not in mends:
            raise
        raise TurboOptError(f"{path}: {os.strerror(e.errno or 0).lower()}", mends[e.errno]) from e


def write_atomic(path: Path, data: str | bytes, durable: bool = False) -> None:
    """All of it or nothing: written beside the target, then renamed over it. `durable` for what the journal can't rebuild."""
    with disk_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        fd, tmp = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
        try:
            with os.fdopen(fd, "wb") as f:
                f.write(data.encode() if isinstance(data, str) else data)
                if durable:
                    f.flush()
                    os.fsync(f.fileno())
            os.chmod(tmp, 0o644)
            os.replace(tmp, path)
        except BaseException:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(tmp)
            raise


def write_changed(path: Path, data: str) -> None:
    """`write_atomic`, where the file doesn't say so already."""
    try:
        same = path.read_bytes() == data.encode()
    except OSError:
        same = False
    if not same:
        write_atomic(path, data)


@dataclass(frozen=True)
class Line:
    """One journal line as found: its event, or what is wrong with it."""

    number: int
    event: Event | None
    problem: str = ""


def _chain(previous: str, body: str) -> str:
    return hashlib.sha256(f"{previous}\n{body}".encode()).hexdigest()[:16]


def _encode(number: int, previous: str, event: Event) -> tuple[str, str]:
    body = event.model_dump_json()
    total = _chain(previous, body)
    return f'{{"n":{number},"sum":"{total}","event":{body}}}\n', total


_LINE = re.compile(r'\{"n":([0-9]+),"sum":"([0-9a-f]{16})","event":(\{.*\})\}')


def _split(line: str) -> tuple[int, str, str]:
    """Number, sum and the event's exact text of a line; raises ValueError on anything else."""
    found = _LINE.fullmatch(line)
    if not found:
        raise ValueError('expected {"n", "sum", "event"}')
    return int(found[1]), found[2], found[3]


def scan(path: Path) -> tuple[list[Line], int]:
    """Every line of a journal, damaged ones with their problem; and the length of a torn tail in bytes.

    A defect is said of its own line alone: the lines after it are judged by what they say of their predecessor.
    """
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        raise JournalError(
            f"{path}: no such journal", "is this a campaign folder? `turbo-opt list` names them"
        ) from None
    whole, _, torn = data.rpartition(b"\n")
    lines: list[Line] = []
    previous: str | None = GENESIS  # None: the line before is unreadable, nothing follows from it
    expected = 1
    for number, raw in enumerate(whole.split(b"\n") if whole else [], start=1):
        try:
            n, total, body = _split(raw.decode())
        except ValueError:
            lines.append(Line(number, None, "not a journal line"))
            previous, expected = None, expected + 1
            continue
        problem = ""
        if n != expected:
            problem = f"is numbered {n}, expected {expected}: a line is missing or out of place"
        elif previous is not None and total != _chain(previous, body):
            problem = "doesn't follow from the line before it (edited, or a line was lost)"
        previous, expected = total, n + 1
        try:
            lines.append(Line(number, EVENT.validate_json(body), problem))
        except ValidationError:
            lines.append(Line(number, None, "not an event of this version"))
    return lines, len(torn)


def read_events(path: Path) -> list[Event]:
    """The journal's events; a torn tail is left out. Raises JournalError naming the first damaged line."""
    lines, _ = scan(path)
    for line in lines:
        if line.problem:
            raise JournalError(
                f"{path} line {line.number}: {line.problem}",
                "`turbo-opt verify` says what is lost; restore the file from a backup",
            )
    return [line.event for line in lines if line.event]


class Lock:
    """An exclusive lock of one process; freed by the system when the process dies. `fd`: its open file, while it is held.

    `mode` 0o666 is for a file that other users lock too.
    """

    def __init__(
        self, path: Path, what: str, mend: str = "wait for it, or end it with `turbo-opt stop`", mode: int = 0o644
    ) -> None:
        self.path, self.what, self.mend, self._mode = path, what, mend, mode
        self.fd: int | None = None

    def _open(self) -> int:
        flags = os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW
        with disk_errors(self.path):
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with contextlib.suppress(FileNotFoundError):
                return os.open(self.path, flags)
            fd = os.open(self.path, flags | os.O_CREAT, self._mode)
            os.fchmod(fd, self._mode)  # whatever the umask takes away
        return fd

    def acquire(self, inherited: int | None = None) -> Lock:
        """`inherited`: this lock's file as a parent that holds it passed it on; both hold it then, to the last one's end."""
        fd = self._open() if inherited is None else inherited
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.pread(fd, 32, 0).decode(errors="replace").strip() or "unknown"
            os.close(fd)
            raise LockedError(f"{self.what} is held by process {holder}", self.mend) from None
        self.fd = fd
        try:
            with disk_errors(self.path):
                os.ftruncate(fd, 0)
                os.pwrite(fd, f"{os.getpid()}\n".encode(), 0)
        except BaseException:
            self.release()
            raise
        return self

    def release(self) -> None:
        if self.fd is not None:
            os.close(self.fd)
            self.fd = None

    def holder(self) -> str | None:
        """The process that holds it now, looked at without taking it; None where nobody does."""
        try:
            fd = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            return None
        try:
            fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return os.read(fd, 32).decode(errors="replace").strip() or "unknown"
        finally:
            os.close(fd)
        return None

    def held_by_other(self) -> bool:
        """Whether some living process holds it now."""
        return self.holder() is not None

    def __enter__(self) -> Lock:
        return self if self.fd is not None else self.acquire()

    def __exit__(self, *_: object) -> None:
        self.release()


class MemoryJournal:
    """A journal's events without its file: for reading beside a runner, and for measuring again without a trace."""

    def __init__(self, events: Iterable[Event], clock: Callable[[], float] = time.time) -> None:
        self.events: list[Event] = list(events)
        self._clock = clock

    def append(self, event: Event) -> Event:
        stamped = event.model_copy(update={"at": round(self._clock(), 3)})
        self.events.append(stamped)
        return stamped


class Journal:
    """Append-only and fsynced; an append that fails leaves the file as it was. The caller holds the campaign's lock."""

    def __init__(self, path: Path, clock: Callable[[], float] = time.time) -> None:
        self.path, self._clock = path, clock
        self._cut_torn_tail()
        self.events: list[Event] = read_events(path) if path.exists() else []
        self._count = len(self.events)
        self._sum = self._last_sum()

    def _cut_torn_tail(self) -> None:
        if not self.path.exists():
            return
        data = self.path.read_bytes()
        if data and not data.endswith(b"\n"):
            with disk_errors(self.path):
                os.truncate(self.path, data.rfind(b"\n") + 1)

    def _last_sum(self) -> str:
        if not self._count:
            return GENESIS
        last = self.path.read_bytes().rstrip(b"\n").rpartition(b"\n")[2]
        return json.loads(last)["sum"]

    def append(self, event: Event) -> Event:
        """The event with its time set, on disk when this returns."""
        stamped = event.model_copy(update={"at": round(self._clock(), 3)})
        line, total = _encode(self._count + 1, self._sum, stamped)
        with disk_errors(self.path):
            self.path.parent.mkdir(parents=True, exist_ok=True)
            fd = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
            try:
                before = os.fstat(fd).st_size
                try:
                    data = line.encode()
                    while data:
                        data = data[os.write(fd, data) :]
                    os.fsync(fd)
                except OSError:
                    os.ftruncate(fd, before)
                    raise
            finally:
                os.close(fd)
        self._count, self._sum = self._count + 1, total
        self.events.append(stamped)
        return stamped
