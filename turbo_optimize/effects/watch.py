"""What a process and all its descendants take, seen from outside (/proc): memory, processes, threads, disk; and limits."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import stat
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

LOOK_S = 0.25  # between two looks: 5 GB/s of allocation is then caught within 1.3 GB
DISK_LOOK_S = 1.0  # a walk of the folders costs more
STOP_S = 0.5
GB = 1 << 30
FULL_BYTES = 4 << 20
MEMORY_SHARE = 0.8  # of the machine's, or of the cgroup's
CGROUP_LIMITS = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")


@dataclass(frozen=True)
class Limits:
    """Of one worker with all its descendants. `memory_bytes` None: MEMORY_SHARE of what there is."""

    memory_bytes: int | None = None
    processes: int = 64
    disk_bytes: int = 8 * GB  # its folders together
    file_bytes: int = 2 * GB  # one file; the kernel holds this one


@dataclass(frozen=True)
class Excess:
    """A limit that was passed: memory, processes or disk, in words."""

    kind: str
    found: str


def machine_memory_bytes() -> int:
    """Of the machine, or of the cgroup where that has less. Asked anew each time: some machines grow."""
    found = [os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")]
    for path in CGROUP_LIMITS:
        with contextlib.suppress(OSError, ValueError):  # not this version of cgroups, or "max"
            found.append(int(Path(path).read_text()))
    return min(found)


def disk_is_full(path: Path) -> bool:
    """Whether there is so little room that a failure to write is nobody's fault but the disk's."""
    return shutil.disk_usage(path).free < FULL_BYTES


def descendants(pid: int) -> list[int]:
    """All of them, parents before children. One that starts during the look may be missed."""
    found, todo = [], [pid]
    for parent in todo:
        with contextlib.suppress(OSError):  # it has ended
            for thread in os.listdir(f"/proc/{parent}/task"):
                children = [int(x) for x in _read(f"/proc/{parent}/task/{thread}/children").split()]
                found += children
                todo += children
    return found


def _read(path: str) -> str:
    with open(path, encoding="utf-8", errors="replace") as file:
        return file.read()


def _status(pid: int) -> dict[str, int]:
    """The numbers of /proc/PID/status (sizes in bytes); empty when it has ended."""
    try:
        text = _read(f"/proc/{pid}/status")
    except OSError:
        return {}
    return {k: int(v) * (1024 if kb else 1) for k, v, kb in re.findall(r"^(\w+):\s+(\d+)( kB)?$", text, re.M)}


def state(pid: int) -> str:
    """The kernel's letter: R, S, D, T (stopped), Z (zombie), …; X when it is gone."""
    try:
        return _read(f"/proc/{pid}/stat").rpartition(")")[2].split()[0]
    except OSError:
        return "X"


def is_alive(pid: int) -> bool:
    """Whether it exists and isn't a zombie."""
    return state(pid) not in "ZX"


def threads(pids: Sequence[int]) -> int:
    return sum(_status(p).get("Threads", 0) for p in pids)


def tasks(pids: Sequence[int]) -> list[int]:
    """Thread ids of these processes."""
    found: list[int] = []
    for pid in pids:
        with contextlib.suppress(OSError):  # ended meanwhile
            found += [int(t) for t in os.listdir(f"/proc/{pid}/task")]
    return found


def memory_bytes(pids: Sequence[int], most: int, files: int = 0) -> int:
    """Anonymous and shared memory; `files`: of memory files, mapped or not. The kernel takes file caches back.

    Pages that forked processes share are counted once in each; where the sum passes `most`, the kernel's exact
    shares (slow to ask for) are taken instead, if it tells them.
    """
    told = [_status(p) for p in pids]
    anonymous = sum(s.get("RssAnon", 0) for s in told)
    shared = max(sum(s.get("RssShmem", 0) for s in told), files)
    if anonymous + shared > most:
        with contextlib.suppress(OSError):  # ended meanwhile, or not ours to ask
            anonymous = sum(_exact_anonymous(p) for p in pids)
    return anonymous + shared


def _exact_anonymous(pid: int) -> int:
    found = re.search(r"^Pss_Anon:\s+(\d+) kB", _read(f"/proc/{pid}/smaps_rollup"), re.M)
    return 1024 * int(found[1]) if found else _status(pid).get("RssAnon", 0)


def unlinked_bytes(pids: Sequence[int]) -> tuple[int, int]:
    """Open files without a name, in memory (memfd_create) and on disk: in no process's size and in no folder."""
    memory: dict[tuple[int, int], int] = {}
    disk: dict[tuple[int, int], int] = {}
    for pid in pids:
        with contextlib.suppress(OSError):  # it has ended, or its owner hides it
            for fd in os.scandir(f"/proc/{pid}/fd"):
                with contextlib.suppress(OSError):
                    info = os.stat(fd.path)
                    if stat.S_ISREG(info.st_mode) and not info.st_nlink:
                        into = memory if os.readlink(fd.path).startswith("/memfd:") else disk
                        into[info.st_dev, info.st_ino] = 512 * info.st_blocks
    return sum(memory.values()), sum(disk.values())


def disk_bytes(path: Path) -> int:
    """What a file, or a folder with all below it, takes on the disk."""
    total, todo = 0, [str(path)]
    while todo:
        here = todo.pop()
        with contextlib.suppress(OSError):  # it vanished meanwhile
            info = os.lstat(here)
            total += 512 * info.st_blocks
            if stat.S_ISDIR(info.st_mode):
                todo += (entry.path for entry in os.scandir(here))
    return total


@dataclass
class Watch:
    """Looks at the descendants of a launcher, `wrappers` of them (itself included) being ours, and at `folders`."""

    launcher: int
    wrappers: int
    limits: Limits
    folders: Sequence[Path]
    _looked: float = field(default_factory=time.monotonic)
    _walked: float = 0.0

    def pids(self) -> list[int]:
        """The command's processes; ours come first in the order of descendants."""
        return descendants(self.launcher)[self.wrappers - 1 :]

    def look(self) -> Excess | None:
        """What is passed, if anything; does nothing when the last look was less than LOOK_S ago."""
        now = time.monotonic()
        if now - self._looked < LOOK_S:
            return None
        self._looked = now
        pids = self.pids()
        if len(pids) > self.limits.processes:
            return Excess("processes", f"{len(pids)} processes, over its limit of {self.limits.processes}")
        in_memory, on_disk = unlinked_bytes(pids)
        most = self.limits.memory_bytes or int(MEMORY_SHARE * machine_memory_bytes())
        memory = memory_bytes(pids, most, in_memory)
        if memory > most:
            return Excess("memory", f"{memory / GB:.2f} GiB of memory, over its limit of {most / GB:.2f} GiB")
        return self._disk(on_disk)

    def _disk(self, unlinked: int) -> Excess | None:
        if time.monotonic() - self._walked < DISK_LOOK_S:
            return None
        disk, most = unlinked + sum(map(disk_bytes, self.folders)), self.limits.disk_bytes
        self._walked = time.monotonic()
        if disk > most:
            return Excess("disk", f"{disk / GB:.2f} GiB on disk, over its limit of {most / GB:.2f} GiB")
        return None

    def signal_all(self, number: signal.Signals) -> None:
        """To every process of the command, also those that left its group."""
        for pid in self.pids():
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, number)

    def stop_all(self) -> None:
        """Returns when they stand, none having started another meanwhile; one inside a driver may take STOP_S."""
        end = time.monotonic() + STOP_S
        while any(state(p) not in "TtZX" for p in self.pids()) and time.monotonic() < end:
            self.signal_all(signal.SIGSTOP)
            time.sleep(0.0005)
