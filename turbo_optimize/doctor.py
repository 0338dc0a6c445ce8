"""What a campaign needs of this machine: each finding with its mend. Looks only; changes and imports nothing heavy."""

from __future__ import annotations

import os
import platform
import shutil
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from turbo_optimize.core.errors import TurboOptError
from turbo_optimize.core.events import Baselined, Created
from turbo_optimize.core.hardware import ARCHS
from turbo_optimize.effects import isolation, probe, telemetry
from turbo_optimize.effects.devices import devices, runtime_dir
from turbo_optimize.effects.repo import FALLBACK_IDENTITY, Repo
from turbo_optimize.effects.store import read_events
from turbo_optimize.projects.loader import NAMES, find_project, load_project

State = Literal["ok", "warn", "missing"]

LEAST_DISK_GB = 5.0  # exported trees and compiler caches of one long campaign


@dataclass(frozen=True)
class Finding:
    """`mend` is empty where the state is ok."""

    name: str
    state: State
    found: str
    mend: str = ""


@dataclass(frozen=True)
class Place:
    """What the findings look at: the folder asked from, and what the machine said of its GPUs."""

    folder: Path
    gpus: tuple[probe.Gpu, ...]

    def repo(self) -> Repo:
        return Repo.discover(self.folder)


def examine(folder: Path) -> list[Finding]:
    """Every finding, in the order of CHECKS."""
    place = Place(folder, tuple(probe.gpus()))
    return [finding for check in CHECKS for finding in check(place)]


def _numbers(version: str) -> tuple[int, int] | None:
    """(major, minor) of a version, or None."""
    parts = (probe.first_number(version) or "").split(".")
    return (int(parts[0]), int(parts[1])) if len(parts) > 1 else None


# -- the device --------------------------------------------------------------------------------------------------------
def _gpu(place: Place) -> Iterator[Finding]:
    if not place.gpus:
        tools = [t for t in ("nvidia-smi", "rocminfo") if shutil.which(t)]
        found = f"none ({', '.join(tools)} found no device)" if tools else "none (neither nvidia-smi nor rocminfo)"
        mend = "install the driver; without a GPU campaigns run as --gpu cpu, on the interpreter"
        yield Finding("GPU", "missing", found, mend)
        return
    kinds = sorted({(g.name, g.arch, g.driver) for g in place.gpus})
    for name, arch, driver in kinds:
        count = sum((g.name, g.arch, g.driver) == (name, arch, driver) for g in place.gpus)
        found = f"{count} × {name}, {arch}, driver {driver}"
        if arch in ARCHS:
            yield Finding("GPU", "ok", found)
        else:
            yield Finding("GPU", "warn", found, f"kernels are tuned for {', '.join(a for a in ARCHS if a != 'cpu')}")


def _clocks(place: Place) -> Iterator[Finding]:
    if not place.gpus:
        return
    found = probe.clocks()
    if not found:
        yield Finding("clocks", "warn", "can't be read", "install nvidia-smi or rocm-smi: throttling would go unseen")
        return
    low, high = min(c.now_mhz for c in found), max(c.now_mhz for c in found)
    now = f"{low}" if low == high else f"{low} to {high}"
    most = {c.max_mhz for c in found if c.max_mhz}
    text = f"{now} MHz now" + (f", at most {max(most)} MHz" if most else "")
    held = sorted({f"GPU {c.index}: {c.held_by}" for c in found if c.held_by})
    if held:
        mend = "let it cool, check power limits and neighbours; a throttled GPU measures its cooling"
        yield Finding("clocks", "warn", f"{text}; held down ({'; '.join(held)})", mend)
    else:
        yield Finding("clocks", "ok", text)


def _gpu_use(place: Place) -> Iterator[Finding]:
    """Of every GPU that a campaign started here may take: who is on it, and what it says of itself."""
    found = [(d, telemetry.Telemetry(d)) for d in devices(place.gpus, os.environ)]
    users = [f"GPU {d.visible}: {who}" for d, t in found if (who := telemetry.users(t, d.lock(runtime_dir())))]
    if users:
        yield Finding("GPU use", "warn", "; ".join(users), "end it or wait for it: it would be measured along")
    elif found:
        unsure = {t.others().unsure for _, t in found} - {""}
        yield Finding("GPU use", "ok", "nobody's" + (f", as far as it shows ({'; '.join(unsure)})" if unsure else ""))
    told = dict.fromkeys(telemetry.health(t) for _, t in found)
    for text, mend in told:
        yield Finding("telemetry", "warn" if mend else "ok", text, mend)


def _toolkit(place: Place) -> Iterator[Finding]:
    found = probe.toolkits()
    if found:
        yield Finding("toolkit", "ok", ", ".join(f"{k} {v}" for k, v in found.items()))
    else:
        mend = "Triton brings its own compiler; HIP kernels need ROCm or CUDA"
        yield Finding("toolkit", "missing", "neither nvcc nor ROCm", mend)


def _profilers(place: Place) -> Iterator[Finding]:
    """Those of the GPU that is here; all of them where there is none."""
    vendor = ARCHS[place.gpus[0].arch].vendor if place.gpus and place.gpus[0].arch in ARCHS else None
    tools = {"ncu": "nvidia", "rocprofv3": "amd", "rocprof-compute": "amd"}
    wanted = [t for t, v in tools.items() if vendor in (None, v)]
    there = [t for t in wanted if shutil.which(t)]
    if there:
        versions = [f"{t} {probe.first_number(probe.ask(t, '--version')) or '(no version)'}" for t in there]
        yield Finding("profilers", "ok", ", ".join(versions))
    else:
        mend = "optional: install Nsight Compute (ncu) or rocprofiler to look into a kernel"
        yield Finding("profilers", "missing", f"no {', no '.join(wanted)}", mend)


# -- software ----------------------------------------------------------------------------------------------------------
def _python(place: Place) -> Iterator[Finding]:
    fits = (3, 11) <= sys.version_info[:2] <= (3, 13)
    found = f"{platform.python_version()} ({sys.executable})"
    yield Finding("python", "ok" if fits else "warn", found, "" if fits else "use Python 3.11 to 3.13")


def _package(name: str, low: tuple[int, int], high: tuple[int, int] | None) -> Finding:
    """A package whose (major, minor) shall lie in [low, high]."""
    version = probe.version(name)
    wanted = f"{low[0]}.{low[1]}" + (f" to {high[0]}.{high[1]}" if high else " or later")
    numbers = _numbers(version)
    if numbers is None:
        return Finding(name, "missing", version, f'pip install "{name}>={low[0]}.{low[1]}" into this environment')
    if numbers < low or (high and numbers > high):
        return Finding(name, "warn", version, f"supported is {wanted}")
    return Finding(name, "ok", version)


def _torch(place: Place) -> Iterator[Finding]:
    yield _package("torch", (2, 6), None)


def _triton(place: Place) -> Iterator[Finding]:
    yield _package("triton", (3, 6), (3, 9))


def numpy_finding(numpy: str, triton: str) -> Finding:
    """numpy 2.4 and later break the interpreter of triton 3.6."""
    numbers = _numbers(numpy)
    if numbers is None:
        return Finding("numpy", "missing", numpy, "pip install numpy: Triton's interpreter and the checks need it")
    if numbers >= (2, 4) and _numbers(triton) == (3, 6):
        found = f"{numpy} with triton {triton}"
        return Finding("numpy", "warn", found, 'pip install "numpy<2.4": the interpreter of this triton fails with it')
    return Finding("numpy", "ok", numpy)


def _numpy(place: Place) -> Iterator[Finding]:
    yield numpy_finding(probe.version("numpy"), probe.version("triton"))


# -- the repository ----------------------------------------------------------------------------------------------------
def _git(place: Place) -> Iterator[Finding]:
    version = probe.first_number(probe.ask("git", "--version"))
    if version is None:
        yield Finding("git", "missing", "no git", "install git 2.20 or later: each attempt is stored as a commit")
        return
    yield Finding("git", "ok", version)
    asked = ("git", "-C", str(place.folder), "config")
    own = {k: (probe.ask(*asked, k) or "").strip() for k in ("user.name", "user.email")}
    name, email = own.values()
    if name and email:
        yield Finding("git identity", "ok", f"{name} <{email}>")
        return
    lacks = " and ".join(k for k, v in own.items() if not v)
    fallback = f"{FALLBACK_IDENTITY[0]} <{FALLBACK_IDENTITY[1]}>"
    mend = "git config --global user.name NAME; git config --global user.email ADDRESS"
    yield Finding("git identity", "warn", f"no {lacks}: commits will be by {fallback}", mend)


def _repository(place: Place) -> Iterator[Finding]:
    """Repository, project file, campaigns folder, noise: each needs the one before it."""
    if not shutil.which("git"):
        return
    try:
        repo = place.repo()
    except TurboOptError as e:
        yield Finding("repository", "missing", e.message, e.hint)
        return
    yield Finding("repository", "ok", str(repo.top))
    yield _project(repo)
    yield _campaigns(repo)
    yield from _noise(repo, place)


def _project(repo: Repo) -> Finding:
    if not any((repo.top / n).is_file() for n in NAMES):
        mend = "write one (docs/projects.md), or pass --project FILE"
        return Finding("project file", "missing", f"no {' or '.join(NAMES)}", mend)
    try:
        path = find_project(repo.top, None)
        ops = load_project(path).ops
    except TurboOptError as e:
        return Finding("project file", "warn", e.message, e.hint or "docs/projects.md has every key")
    return Finding("project file", "ok", f"{path.name}, {len(ops)} ops")


def _campaigns(repo: Repo) -> Finding:
    folder = repo.top / "campaigns"
    nearest = folder if folder.exists() else repo.top
    if nearest.is_dir() and os.access(nearest, os.W_OK | os.X_OK):
        return Finding("campaigns", "ok", f"{folder} is writable")
    return Finding("campaigns", "warn", f"{nearest} is not a writable folder", "make it writable for this user")


def _noise(repo: Repo, place: Place) -> Iterator[Finding]:
    """The A/A floor of the latest campaign that was measured on this machine's device."""
    device = probe.environment()["gpu"]
    journals = sorted(repo.top.glob("campaigns/*/journal.jsonl"), key=lambda p: p.stat().st_mtime, reverse=True)
    for journal in journals:
        try:
            events = read_events(journal)
        except TurboOptError as e:
            yield Finding("journal", "warn", e.message, e.hint)
            continue
        target = next((e.manifest for e in events if isinstance(e, Created)), None)
        baseline = next((e for e in events if isinstance(e, Baselined) and e.environment.get("gpu") == device), None)
        if target is None or baseline is None:
            continue
        floor_pct, bar_pct = 100 * baseline.sigma_aa, target.policy.min_gain_pct or 1.0
        shape = max(baseline.noise_pct, key=lambda s: baseline.noise_pct[s])
        found = f"{floor_pct:.2f}% a session, {shape} {baseline.noise_pct[shape]:.2f}% ({target.campaign})"
        quiet = floor_pct <= bar_pct
        mend = f"over {bar_pct:g}%: end other work on this machine, check the clocks; small gains stay undecided"
        yield Finding("noise floor", "ok" if quiet else "warn", found, "" if quiet else mend)
        return
    yield Finding("noise floor", "missing", "no campaign was measured here", "measure one: turbo-opt start --op OP")


# -- the machine -------------------------------------------------------------------------------------------------------
def _disk(place: Place) -> Iterator[Finding]:
    free_gb = shutil.disk_usage(place.folder).free / 1e9
    few = free_gb < LEAST_DISK_GB
    mend = f"free some: trees and compiler caches of a campaign take up to {LEAST_DISK_GB:g} GB" if few else ""
    yield Finding("disk", "warn" if few else "ok", f"{free_gb:.1f} GB free", mend)


def _cpus(place: Place) -> Iterator[Finding]:
    count = len(os.sched_getaffinity(0))
    mend = "give it two: a worker and the runner that times it share this one" if count < 2 else ""
    yield Finding("CPUs", "warn" if count < 2 else "ok", f"{count} usable, {platform.machine()}", mend)


def _isolation(place: Place) -> Iterator[Finding]:
    """How far candidates' processes are confined. A driver's nodes must be there before: inside, nothing makes them."""
    level = isolation.level()
    spaces = ", ".join(level.namespaces) or "no"
    how = f"Landlock ABI {level.landlock_abi}, {spaces} namespaces" if not level.bwrap else "by bwrap"
    found = f"{level.name} ({how})" + (f": {level.missing}" if level.missing else "")
    yield Finding("isolation", "warn" if level.mend else "ok", found, level.mend)
    if Path("/dev/nvidiactl").exists() and not Path("/dev/nvidia-uvm").exists():
        yield Finding(
            "CUDA nodes", "warn", "no /dev/nvidia-uvm", "nvidia-modprobe -u -c 0 (as root), once after a boot"
        )


CHECKS: tuple[Callable[[Place], Iterator[Finding]], ...] = (
    _gpu, _clocks, _gpu_use, _toolkit, _python, _torch, _triton, _numpy, _profilers, _git, _repository, _disk, _cpus, _isolation,
)  # fmt: skip
