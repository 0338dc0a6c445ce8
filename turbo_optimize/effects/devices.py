"""The GPUs that this process may use, and one lock for each of them across all processes and users of the machine.

The lock is a file named by the GPU itself (its UUID; its number where the driver's tool tells no more), so that number
0 under CUDA_VISIBLE_DEVICES=3 and number 3 are one GPU. A parent that holds it passes the open file on to the child
that shall run on that GPU: both hold it then, and it is free when the last of them has ended, however that ends.
"""

from __future__ import annotations

import contextlib
import os
import re
import stat
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from turbo_optimize.core.errors import LockedError, TurboOptError
from turbo_optimize.effects.probe import Gpu, gpus
from turbo_optimize.effects.store import Lock, disk_errors

VISIBLE = {"gfx": "HIP_VISIBLE_DEVICES", "sm_": "CUDA_VISIBLE_DEVICES"}  # by the architecture's first letters
LOCKS = "TURBO_OPT_LOCKS"  # another folder for the locks: one that several containers mount, say
HELD = "TURBO_OPT_GPU_LOCK"  # the number of the open lock file that a parent passes on
POLL_S = 0.1


@dataclass(frozen=True)
class Device:
    """One GPU that a campaign may hold, or the CPU.

    `visible` is its name in the visible-devices variable: a number or a UUID. `uuid` and `bus` are the driver's own
    names of it (see `probe.Gpu`), empty where they aren't known.
    """

    arch: str = "cpu"
    name: str = "cpu"
    visible: str = ""
    uuid: str = ""
    bus: str = ""

    @property
    def environment(self) -> dict[str, str]:
        """What makes this the only device that a child sees."""
        if not self.visible:
            return {}
        # CUDA numbers by speed unless told otherwise; the driver's tool numbers by bus.
        order = {"CUDA_DEVICE_ORDER": "PCI_BUS_ID"} if self.arch[:3] == "sm_" and self.visible.isdigit() else {}
        return {VISIBLE[self.arch[:3]]: self.visible} | order

    def lock(self, folder: Path) -> Lock:
        safe = re.sub(r"[^A-Za-z0-9]+", "-", self.uuid or self.visible)
        other = VISIBLE.get(self.arch[:3], "the visible-devices variable")
        mend = f"wait for it, or pick another GPU with {other}"
        return Lock(folder / f"gpu-{safe}.lock", f"GPU {self.visible} ({self.name})", mend, mode=0o666)


CPU = Device()


def devices(found: Sequence[Gpu], environ: Mapping[str, str]) -> tuple[Device, ...]:
    """The GPUs that this process may use: those that the driver names and the visible-devices variable lets through.

    As the runtimes do, it takes the variable's names up to the first that names no GPU.
    """
    if not found:
        return ()
    variables = (VISIBLE.get(found[0].arch[:3], ""), "CUDA_VISIBLE_DEVICES")
    allowed = next((environ[v] for v in variables if v in environ), None)
    names = [str(g.index) for g in found] if allowed is None else [x.strip() for x in allowed.split(",")]
    known: dict[str, Device] = {}
    for name in names:
        g = _named(name, found)
        if g is None:
            break
        known.setdefault(name, Device(g.arch, g.name, name, g.uuid, g.bus))
    return tuple(known.values())


def _named(name: str, found: Sequence[Gpu]) -> Gpu | None:
    if name.isdigit():
        return next((g for g in found if g.index == int(name)), None)
    if not name.startswith(("GPU-", "MIG-")):
        return None
    # A UUID may be cut short. One that the driver's tool doesn't list (a MIG slice's) names itself; its kind is then
    # that of the first GPU (mixed machines are named by number).
    first = found[0]
    itself = Gpu(first.index, first.name, first.arch, first.driver, name)
    return next((g for g in found if g.uuid.startswith(name)), itself)


# -- the lock ----------------------------------------------------------------------------------------------------------
def runtime_dir() -> Path:
    """The machine's folder of locks: the same for every user, and in a login, a cron job and a batch job alike."""
    return Path(os.environ.get(LOCKS) or "/tmp/turbo-opt-locks")


def hold(device: Device, wait_s: float = 0.0, folder: Path | None = None) -> Lock:
    """The GPU's lock, held; a parent's where it passed it on. LockedError with the holder where `wait_s` isn't enough."""
    folder = folder or runtime_dir()
    with disk_errors(folder):
        if not folder.exists():
            folder.mkdir(parents=True, exist_ok=True)
            folder.chmod(stat.S_ISVTX | 0o777)  # every user's, whatever the umask takes away
    lock = device.lock(folder)
    deadline = time.monotonic() + wait_s
    while True:
        try:
            return lock.acquire(_inherited(lock.path))
        except LockedError:
            if time.monotonic() >= deadline:
                raise
            time.sleep(POLL_S)


def passed_on(lock: Lock) -> tuple[dict[str, str], tuple[int, ...]]:
    """Environment and open files (`pass_fds`) of a child that shall hold this lock too."""
    assert lock.fd is not None, "it is held"
    return {HELD: str(lock.fd)}, (lock.fd,)


def _inherited(path: Path) -> int | None:
    """The open file of `path` that the parent passed on. It goes to no child of ours by itself."""
    told = os.environ.get(HELD, "")
    if not told.isdigit():
        return None
    try:
        same = os.path.samestat(os.fstat(int(told)), path.stat())
    except OSError:  # closed since, or another GPU's: then it isn't what we were given
        return None
    if not same:
        return None
    del os.environ[HELD]
    os.set_inheritable(int(told), False)
    return int(told)


def first_visible(gpu: str) -> Device:
    """The device that a worker for target `gpu` runs on: the CPU, or the first visible GPU."""
    if gpu == "cpu":
        return CPU
    found = gpus()
    visible = devices(found, os.environ)
    if not visible:
        variable = VISIBLE.get(gpu[:3], "CUDA_VISIBLE_DEVICES")
        why = f"{variable} hides all {len(found)}" if found else "the driver's tool finds none"
        mend = f"name one in {variable}; `turbo-opt doctor` says what is there"
        raise TurboOptError(f"no GPU for {gpu}: {why}", mend)
    return visible[0]


def timing_core(device: Device) -> int:
    """The CPU that a GPU's workers are timed on: each GPU of a machine has another, from the end of those we may use."""
    usable = sorted(os.sched_getaffinity(0))
    number = int(device.visible) if device.visible.isdigit() else sum((device.uuid or device.visible).encode())
    return usable[-1 - number % len(usable)]


def stay_off(core: int) -> set[int]:
    """Keeps this process and its children off a CPU, where there are others; the CPUs that it had before."""
    had = os.sched_getaffinity(0)
    if len(had) > 1:
        os.sched_setaffinity(0, had - {core})
    return had


def held_gpu(gpu: str, wait_s: float = 0.0) -> contextlib.AbstractContextManager[object]:
    """For `with`, around everything that measures on target `gpu`: the lock of its device. The CPU has none."""
    device = first_visible(gpu)
    return hold(device, wait_s) if device.visible else contextlib.nullcontext()
