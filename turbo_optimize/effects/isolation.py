"""What this machine allows to confine a process with, found by trying; and the start of a confined process.

`TURBO_OPT_ISOLATION` lowers it, for finding out what hinders a driver: see CEILINGS. The level's name goes into every
baseline's environment, so a lowered one is seen.
"""

from __future__ import annotations

import ctypes
import functools
import glob
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from turbo_optimize.core.errors import UsageError, WorkerError

LAUNCHER = Path(__file__).with_name("sandbox.py")
# What a confined process may write to beside its folders. Nothing of /dev that other processes share, /dev/shm say.
DEVICES = (
    "/dev/null", "/dev/zero", "/dev/random", "/dev/urandom", "/dev/nvidia*", "/dev/kfd", "/dev/dri/*",
)  # fmt: skip
ALL = ("pid", "net", "ipc", "mount")
# Value of TURBO_OPT_ISOLATION -> sets of namespaces to try, the best first; Landlock and bubblewrap, unless "none".
CEILINGS: dict[str, tuple[tuple[str, ...], ...]] = {
    "full": (ALL, ("pid", "net", "ipc"), ("net", "ipc"), ()),
    "no-mounts": (("pid", "net", "ipc"), ("net", "ipc"), ()),
    "no-pidns": (("net", "ipc", "mount"), ("net", "ipc"), ()),
    "bubblewrap": ((),),
    "landlock": ((),),
    "none": ((),),
}
SHM = "/dev/shm"
LEAST_LANDLOCK = 2  # ABI 1 forbids renames between folders, which compiler caches are made of
SPACES_MEND = (
    "allow user namespaces (sysctl user.max_user_namespaces, kernel.apparmor_restrict_unprivileged_userns=0) or, in a "
    "container, start it with --cap-add SYS_ADMIN --security-opt seccomp=unconfined --security-opt apparmor=unconfined"
)
TASKS = 8192  # processes and threads of one worker, where the kernel can bound them
SYS_LANDLOCK_CREATE, LANDLOCK_ASK_VERSION = 444, 1


@dataclass(frozen=True)
class Level:
    """How far processes are confined here. `refused` says why a set of namespaces was not to be had."""

    landlock_abi: int = 0
    namespaces: tuple[str, ...] = ()
    bwrap: bool = False
    ceiling: str = "full"
    refused: str = ""

    @property
    def name(self) -> str:
        """full (all of it), bubblewrap, namespaces (no Landlock), landlock (not all namespaces), or none."""
        if self.bwrap:
            return "bubblewrap"
        if self.namespaces == ALL:
            return "full" if self.landlock_abi else "namespaces"
        return "landlock" if self.landlock_abi else "none"

    @property
    def wrappers(self) -> int:
        """Processes of ours around a command: launcher, pid 1; with bubblewrap the launcher and its two."""
        return 3 if self.bwrap else 2 if "pid" in self.namespaces else 1

    @property
    def missing(self) -> str:
        """One sentence, empty where nothing is missing."""
        if self.bwrap:
            return f"local services can be reached{f' ({self.refused})' if self.refused else ''}"
        confines = bool(self.landlock_abi) or "mount" in self.namespaces
        gaps = {
            "files outside of its folders can be written": not confines,
            "modes and times of files can be changed and local services reached": "mount" not in self.namespaces,
            "any device can be written to": not self.landlock_abi,
            "a daemon is ended only while its launcher lives": "pid" not in self.namespaces,
            "other processes can be signalled": "pid" not in self.namespaces and self.landlock_abi < 6,
            "the network can be reached": "net" not in self.namespaces and self.landlock_abi < 4,
        }
        found = [text for text, yes in gaps.items() if yes]
        why = f" ({self.refused})" if self.refused else ""
        return f"{', '.join(found)}{why}" if found else ""

    @property
    def mend(self) -> str:
        """What gives the missing part; empty where nothing is missing."""
        if not self.missing:
            return ""
        if self.ceiling != "full":
            return f"unset TURBO_OPT_ISOLATION ({self.ceiling})"
        if self.namespaces == ALL:
            return "a kernel with Landlock ABI 2 (5.19) or later"
        return SPACES_MEND + ("" if self.bwrap else ", or install bubblewrap")


OPEN = Level(ceiling="none")  # limits and an end of all descendants, nothing else


def landlock_abi() -> int:
    """The kernel's Landlock version; 0 where it has none or it is switched off."""
    found = ctypes.CDLL(None).syscall(SYS_LANDLOCK_CREATE, None, ctypes.c_size_t(0), LANDLOCK_ASK_VERSION)
    return max(0, found)


def level() -> Level:
    """What this machine allows, at most what TURBO_OPT_ISOLATION names. Found once a process, by starting `true`."""
    ceiling = os.environ.get("TURBO_OPT_ISOLATION") or "full"
    if ceiling not in CEILINGS:
        raise UsageError(f"TURBO_OPT_ISOLATION is {ceiling!r}", f"one of {', '.join(CEILINGS)}")
    return _probe(ceiling)


@functools.cache
def _probe(ceiling: str) -> Level:
    if ceiling == "none":
        return OPEN
    abi = landlock_abi()
    landlock = abi if abi >= LEAST_LANDLOCK else 0
    refused: list[str] = []
    found = Level()
    for namespaces in CEILINGS[ceiling]:
        for rules in dict.fromkeys((landlock, 0)):
            found = Level(rules, namespaces, False, ceiling, refused[0] if refused else "")
            why = _tried(found)
            if not why:
                break
            refused.append(why)
        else:
            continue
        break
    wrapped = Level(0, (), True, ceiling, found.refused)
    wants = ceiling == "bubblewrap" or (ceiling == "full" and "pid" not in found.namespaces)
    return wrapped if wants and shutil.which("bwrap") and not _tried(wrapped) else found


def _tried(candidate: Level) -> str:
    """Why `true` can't be started at this level; empty where it can."""
    try:
        process = start(["true"], cwd=Path("/"), env=dict(os.environ), at=candidate)
    except WorkerError as e:
        return e.message
    return "" if process.wait() == 0 else f"bwrap ended with exit {process.returncode}"


def bwrap_argv(command: Sequence[str], writable: Sequence[str], devices: Sequence[str], cwd: str) -> list[str]:
    """The command inside bubblewrap: everything read-only but `writable` and the devices, no network, own pids."""
    own = [word for path in writable for word in ("--bind", path, path)]
    nodes = [word for path in devices for word in ("--dev-bind", path, path)]
    spaces = ["--unshare-pid", "--unshare-net", "--unshare-ipc", "--cap-drop", "ALL", "--die-with-parent"]
    return ["bwrap", "--ro-bind", "/", "/", *nodes, "--proc", "/proc", *own, *spaces,
            "--chdir", cwd, "--", *command]  # fmt: skip


def _argv(
    command: Sequence[str],
    cwd: Path,
    env: Mapping[str, str],
    writable: Sequence[Path],
    file_bytes: int,
    at: Level,
    report: int,
) -> list[str]:
    """The launcher's command line, with the specification that sandbox.py describes."""
    devices = [p for pattern in DEVICES for p in sorted(glob.glob(pattern))]
    paths = [os.path.realpath(p) for p in writable]
    if at.bwrap:
        if not shutil.which(command[0], path=env.get("PATH")):  # it would tell only its own standard error
            raise WorkerError("build", f"no program {command[0]!r}")
        command = bwrap_argv(command, paths, devices, str(cwd))
    needs_shm = any(p == SHM or p.startswith(SHM + "/") for p in (os.path.realpath(cwd), *paths))
    spec = {
        "parent": os.getpid(), "report": report, "writable": paths, "devices": devices, "file_bytes": file_bytes,
        "tasks": TASKS, "namespaces": at.namespaces, "landlock": at.landlock_abi, "bwrap": at.bwrap,
        "shm": "mount" in at.namespaces and os.path.isdir(SHM) and not needs_shm,
        "confined": at.name != "none" and not at.bwrap,
    }  # fmt: skip
    return [sys.executable, "-I", "-S", str(LAUNCHER), json.dumps(spec), "--", *command]


def start(
    command: Sequence[str],
    cwd: Path,
    env: Mapping[str, str],
    writable: Sequence[Path] = (),
    file_bytes: int = 2 << 30,
    at: Level | None = None,
    stdin: int | IO[bytes] = subprocess.DEVNULL,
    stdout: int | IO[bytes] = subprocess.DEVNULL,
    pass_fds: Sequence[int] = (),
) -> subprocess.Popen[bytes]:
    """A command behind the launcher, in its own group, when it has started; stderr goes where stdout goes.

    `writable`: existing folders and files. WorkerError build where the confinement or the command can't be started.
    """
    told, report = os.pipe()
    with open(told, "rb") as reason:
        try:
            process = subprocess.Popen(
                _argv(command, cwd, env, writable, file_bytes, at or level(), report), cwd=cwd, env=dict(env), stdin=stdin,
                stdout=stdout, stderr=subprocess.STDOUT, pass_fds=(*pass_fds, report), start_new_session=True,
            )  # fmt: skip
        except (OSError, ValueError) as e:
            raise WorkerError("build", str(e)) from e
        finally:
            os.close(report)
        why = reason.read().decode(errors="replace")
    if why:
        if process.stdin:
            process.stdin.close()
        process.wait()
        raise WorkerError("build", why, "turbo-opt doctor tells how far processes can be confined here")
    return process
