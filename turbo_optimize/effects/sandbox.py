"""Confines a command and everything it starts: `python -I -S sandbox.py SPEC_JSON -- command…`.

Three processes. The launcher (this one) leads the group, waits, and ends as the command ended: same exit code, same
signal. Its child is pid 1 of a new PID namespace: it makes the mounts, then only reaps. Its child is confined and becomes
the command. Each dies with the one before it, the launcher with the runner, and with pid 1 the kernel ends whatever is left
in the namespace: no daemon outlives its worker. Without a PID namespace the launcher adopts orphans and ends them itself.

Only the standard library, and little of it: this runs before every worker. isolation.py writes the specification:

    parent      the runner's pid                    namespaces  of NAMESPACES, what to unshare
    report      a descriptor for a failed step      landlock    the kernel's ABI, 0: don't use it
    writable    folders and files to write to       devices     device nodes to read and write
    file_bytes  the largest file (RLIMIT_FSIZE)     tasks       most processes and threads in a PID namespace
    shm         whether to mount a private /dev/shm bwrap       the command is bubblewrap's, which tells signals by codes
    confined    False: limits only

A failed step is written to `report` as "step: reason" and nothing is run; at the command's start the descriptor closes.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import resource
import select
import signal
import stat
import struct
import sys
from collections.abc import Callable
from typing import Any, NoReturn

_LIBC = ctypes.CDLL(None, use_errno=True)
Spec = dict[str, Any]

# unshare(2), mount(2), mount_setattr(2), prctl(2)
NAMESPACES = {"pid": 0x20000000, "net": 0x40000000, "ipc": 0x08000000, "mount": 0x00020000}
CLONE_NEWUSER = 0x10000000
MS_NOSUID, MS_NODEV, MS_NOEXEC, MS_BIND, MS_REC, MS_PRIVATE = 2, 4, 8, 4096, 16384, 1 << 18
SYS_MOUNT_SETATTR, AT_FDCWD, AT_RECURSIVE, MOUNT_ATTR_RDONLY = 442, -100, 0x8000, 1
PR_SET_PDEATHSIG, PR_CAPBSET_DROP, PR_SET_CHILD_SUBREAPER, PR_SET_NO_NEW_PRIVS = 1, 24, 36, 38
CAP_DAC_OVERRIDE = 1  # the one that root keeps: files of other users, as far as Landlock and mounts let it
PROC_READ_ONLY = ("/proc/sys", "/proc/sysrq-trigger", "/proc/irq", "/proc/bus")
DRIVER_SOCKETS = ("/run/nvidia", "/var/run/nvidia", "/tmp/nvidia")  # NVIDIA's daemons
SHM_BYTES = 64 << 20  # semaphores of multiprocessing need a /dev/shm; this one is private
RUNNER_GONE = signal.SIGUSR1  # asks a launcher without a PID namespace to end all
# landlock(7): access rights of files by the ABI that brought them
SYS_LANDLOCK_CREATE, SYS_LANDLOCK_ADD, SYS_LANDLOCK_RESTRICT = 444, 445, 446
EXECUTE, WRITE_FILE, READ_FILE, READ_DIR, MAKE_CHAR, MAKE_BLOCK = 1, 1 << 1, 1 << 2, 1 << 3, 1 << 6, 1 << 11
REFER, TRUNCATE, IOCTL_DEV = 1 << 13, 1 << 14, 1 << 15
RIGHTS_SINCE = ((1, REFER - 1), (2, REFER), (3, TRUNCATE), (5, IOCTL_DEV))
READ = EXECUTE | READ_FILE | READ_DIR
ON_FILES = EXECUTE | WRITE_FILE | READ_FILE | TRUNCATE | IOCTL_DEV  # the rights that a rule on a file may have
TCP_BIND_CONNECT, SCOPE_ABSTRACT_SOCKET_SIGNAL = 3, 3  # ABI 4, ABI 6


def _must(result: int, step: str) -> int:
    if result < 0:
        raise OSError(f"{step}: {os.strerror(ctypes.get_errno())}")
    return result


def _write(path: str, text: str) -> None:
    with open(path, "w") as file:
        file.write(text)


# -- namespaces and mounts ---------------------------------------------------------------------------------------------
def _unshare(spec: Spec) -> None:
    """As we are where that is allowed (root), else inside a user namespace that maps only ourselves."""
    flags = sum(NAMESPACES[n] for n in spec["namespaces"] if n != "mount")  # for the one who mounts: we need our /proc
    if not flags or _LIBC.unshare(flags) == 0:
        return
    uid, gid = os.geteuid(), os.getegid()
    _must(_LIBC.unshare(flags | CLONE_NEWUSER), "namespaces")
    _at_most(resource.RLIMIT_NPROC, spec["tasks"])  # counted in this user namespace alone
    _write("/proc/self/setgroups", "deny")
    _write("/proc/self/gid_map", f"{gid} {gid} 1")
    _write("/proc/self/uid_map", f"{uid} {uid} 1")


def _mount(source: str | None, target: str, kind: str | None, flags: int, data: str = "") -> int:
    raw = (source and source.encode(), target.encode(), kind and kind.encode())
    return _LIBC.mount(*raw, ctypes.c_ulong(flags), data.encode())


def _read_only(path: str, yes: bool, recursive: bool = False) -> int:
    """Sets or clears the read-only attribute of a mount, or of all mounts at and below it."""
    attr = struct.pack("=QQQQ", MOUNT_ATTR_RDONLY * yes, MOUNT_ATTR_RDONLY * (not yes), 0, 0)
    flags = AT_RECURSIVE * recursive
    return _LIBC.syscall(SYS_MOUNT_SETATTR, AT_FDCWD, path.encode(), flags, attr, ctypes.c_size_t(len(attr)))


def _sockets() -> set[str]:
    """Paths that are or may be sockets, which no network namespace hides: those of our present one, and all in /run."""
    with open("/proc/net/unix") as file:
        found = {words[7] for words in map(str.split, file) if len(words) == 8}
    for folder in ("/run", *(f"/run/{name}" for name in os.listdir("/run"))):
        with contextlib.suppress(OSError):  # no folder, or one that the command can't read either
            found |= {f"{folder}/{name}" for name in os.listdir(folder)}
    return {p for p in found if p.startswith("/") and not p.startswith(DRIVER_SOCKETS)}


def _mounts(spec: Spec) -> None:
    """Everything read-only (Landlock alone lets modes and times of files be changed) but `writable`."""
    here = os.getcwd()
    _must(_LIBC.unshare(NAMESPACES["mount"]), "mounts")
    _must(_mount(None, "/", None, MS_REC | MS_PRIVATE), "mounts")
    for path in spec["writable"]:
        _must(_mount(path, path, None, MS_BIND | MS_REC), f"mounts: {path}")
    for path in spec["sockets"]:  # whoever listens there would act outside of all this
        with contextlib.suppress(OSError):  # gone, or out of our reach and so of the command's
            if stat.S_ISSOCK(os.lstat(path).st_mode):
                _mount("/dev/null", path, None, MS_BIND)
    _must(_read_only("/", True, recursive=True), "mounts")
    for path in spec["writable"]:
        _must(_read_only(path, False), f"mounts: {path}")
    if spec["shm"]:
        shm = _mount("tmpfs", "/dev/shm", "tmpfs", MS_NOSUID | MS_NODEV, f"mode=1777,size={SHM_BYTES}")
        _must(shm, "mounts: /dev/shm")
    _proc(spec)
    os.chdir(here)  # the working folder through the new mounts


def _proc(spec: Spec) -> None:
    """A /proc of the new PID namespace, where the command finds itself under its own pid and no one else.

    Not where parts of /proc are covered (containers hide devices so): the old one stays, /proc/self works there too.
    """
    with open("/proc/self/mountinfo") as file:
        over = {line.split()[4] for line in file if " /proc/" in line} - {"/proc/sys/fs/binfmt_misc"}
    flags = MS_NOSUID | MS_NODEV | MS_NOEXEC
    covered = any(point.startswith("/proc/") for point in over)
    if "pid" in spec["namespaces"] and not covered and _mount("proc", "/proc", "proc", flags) == 0:
        if tuple(map(int, os.uname().release.split(".")[:2])) >= (6, 14):  # before, it was the whole machine's
            with contextlib.suppress(OSError):  # a bound for a fork bomb between two looks; the watch is the limit
                _write("/proc/sys/kernel/pid_max", str(spec["tasks"]))
    else:
        _must(_read_only("/proc", False), "mounts: /proc")  # the command's own threads have names to write
    for path in PROC_READ_ONLY:
        if os.path.exists(path):
            _must(_mount(path, path, None, MS_BIND | MS_REC), f"mounts: {path}")
            _must(_read_only(path, True), f"mounts: {path}")


# -- Landlock ----------------------------------------------------------------------------------------------------------
def _landlock(spec: Spec) -> None:
    """Reads everything, writes `writable`, the devices and /proc/self; no TCP, no signal out of this domain."""
    abi = spec["landlock"]
    rights = sum(bits for since, bits in RIGHTS_SINCE if abi >= since)
    net, scope = TCP_BIND_CONNECT * (abi >= 4), SCOPE_ABSTRACT_SOCKET_SIGNAL * (abi >= 6)
    attr = struct.pack("=QQQ", rights, net, scope)[: 24 if abi >= 6 else 16 if abi >= 4 else 8]
    rules = _must(_LIBC.syscall(SYS_LANDLOCK_CREATE, attr, ctypes.c_size_t(len(attr)), 0), "landlock")
    own = [*spec["writable"], *(["/dev/shm"] if spec["shm"] else [])]
    granted = [("/", READ), ("/proc/self", READ | WRITE_FILE | TRUNCATE)]
    granted += [(p, rights & ~(MAKE_CHAR | MAKE_BLOCK | IOCTL_DEV)) for p in own]
    granted += [(p, READ | WRITE_FILE | TRUNCATE | IOCTL_DEV) for p in spec["devices"]]
    for path, access in granted:
        if os.path.exists(path):
            _allow(rules, path, access & rights)
    _must(_LIBC.syscall(SYS_LANDLOCK_RESTRICT, rules, 0), "landlock")
    os.close(rules)


def _allow(rules: int, path: str, access: int) -> None:
    fd = os.open(path, os.O_PATH | os.O_CLOEXEC)
    access &= -1 if os.path.isdir(path) else ON_FILES
    _must(_LIBC.syscall(SYS_LANDLOCK_ADD, rules, 1, struct.pack("=Qi", access, fd), 0), f"landlock: {path}")
    os.close(fd)


# -- the processes -----------------------------------------------------------------------------------------------------
def _become(spec: Spec, command: list[str]) -> None:
    """Confines this process and replaces it by the command."""
    _LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if spec["confined"]:
        for capability in set(range(64)) - {CAP_DAC_OVERRIDE}:
            _LIBC.prctl(PR_CAPBSET_DROP, capability, 0, 0, 0)  # refused where there are none to drop
        _must(_LIBC.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), "no_new_privs")
        if spec["landlock"]:
            _landlock(spec)
    for number in (signal.SIGPIPE, signal.SIGXFSZ, signal.SIGTERM, signal.SIGINT, signal.SIGHUP, RUNNER_GONE):
        signal.signal(number, signal.SIG_DFL)  # Python ignores the first two, this launcher the others
    os.execvp(command[0], command)


def _fork(report: int, body: Callable[[], object]) -> int:
    """A child that runs `body` and, should that fail or return, says why on `report`."""
    pid = os.fork()
    if pid:
        return pid
    try:
        body()
    except Exception as e:
        os.write(report, str(e).encode())
    finally:
        os._exit(127)


def _close_all_but(kept: int) -> None:
    """Else pipes of the command stay open when it is gone."""
    for fd in map(int, os.listdir("/proc/self/fd")):
        if fd != kept:
            with contextlib.suppress(OSError):  # the listing's own
                os.close(fd)


def _serve(spec: Spec, command: list[str], kept_fd: int) -> int:
    """Runs the command in a child; its wait status. Others that end meanwhile are orphans that came to us."""
    if "mount" in spec["namespaces"]:
        _mounts(spec)
    pid = _fork(spec["report"], lambda: _become(spec, command))
    _close_all_but(kept_fd)
    while True:
        ended, status = os.wait()
        if ended == pid:
            return status


def _as_first(spec: Spec, command: list[str], status_fd: int) -> None:
    """Pid 1 of the namespace."""
    _LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    poll = select.poll()
    poll.register(status_fd, 0)
    if not poll.poll(0):  # else no one reads it any more: the launcher died before the first line
        os.write(status_fd, struct.pack("=i", _serve(spec, command, status_fd)))
        os._exit(0)


def _in_namespace(spec: Spec, command: list[str]) -> int:
    status_read, status_write = os.pipe()
    pid = _fork(spec["report"], lambda: (os.close(status_read), _as_first(spec, command, status_write)))
    _close_all_but(status_read)
    told = os.read(status_read, 4)
    os.waitpid(pid, 0)  # returns when all of the namespace is gone
    return struct.unpack("=i", told)[0] if told else signal.SIGKILL


def _as_adopter(spec: Spec, command: list[str]) -> int:
    """Without a PID namespace: orphans become children of this process, which ends them."""
    _must(_LIBC.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0), "subreaper")
    status = _serve(spec, command, -1)
    _end_all()
    return status


def _end_all(*_: object) -> None:
    """Kills and reaps our children until there are none; those of a killed one become ours."""
    with contextlib.suppress(ChildProcessError):
        while True:
            with open(f"/proc/self/task/{os.getpid()}/children") as file:
                for pid in map(int, file.read().split()):
                    os.kill(pid, signal.SIGKILL)
            os.wait()


def _end_as(status: int, shell_codes: bool) -> NoReturn:
    """Ends this process as another one ended; `shell_codes`: a signal N is told as exit 128 + N."""
    code = os.waitstatus_to_exitcode(status)
    number = -code if code < 0 else code - 128 if shell_codes and code > 128 else 0
    if number:
        with contextlib.suppress(OSError):  # KILL has no handler
            signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)
    os._exit(code & 0xFF)


def _at_most(what: int, most: int) -> None:
    hard = resource.getrlimit(what)[1]
    most = most if hard == resource.RLIM_INFINITY else min(hard, most)
    resource.setrlimit(what, (most, most))


def main() -> None:
    spec, command = json.loads(sys.argv[1]), sys.argv[3:]
    own_pids = "pid" in spec["namespaces"]
    os.set_inheritable(spec["report"], False)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # meant for the command; this process ends after it
    signal.signal(RUNNER_GONE, lambda *_: (_end_all(), os._exit(1)))
    _LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGKILL if own_pids else RUNNER_GONE)
    if os.getppid() != spec["parent"]:
        os._exit(1)
    try:
        _at_most(resource.RLIMIT_CORE, 0)
        _at_most(resource.RLIMIT_FSIZE, spec["file_bytes"])  # never RLIMIT_AS: GPU runtimes reserve huge address ranges
        _write("/proc/self/oom_score_adj", "1000")  # should the kernel run out of memory, it takes these first
        spec["sockets"] = _sockets() if "mount" in spec["namespaces"] else set()
        _unshare(spec)
        status = (_in_namespace if own_pids else _as_adopter)(spec, command)
    except Exception as e:
        os.write(spec["report"], str(e).encode())
        os._exit(127)
    _end_as(status, spec["bwrap"])


if __name__ == "__main__":
    main()
