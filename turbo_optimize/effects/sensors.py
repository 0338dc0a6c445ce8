"""How each kind of device is asked: NVIDIA through NVML, AMD through sysfs (amd-smi where it lacks something), the CPU
through sysfs. One function a kind in BACKENDS; what it returns is a table of small functions that may raise.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from turbo_optimize.core.errors import TurboOptError
from turbo_optimize.effects.devices import Device
from turbo_optimize.effects.probe import HELD_BY, ask

SYSFS = Path("/sys")
# NVML's reasons of a lowered clock by bit. Those that void what was measured meanwhile: the machine got in the way.
VOIDS = {bit: HELD_BY[bit] for bit in (0x8, 0x20, 0x40, 0x80)}
# Those that don't: an H200 is at its power cap whenever it is fully busy.
POWER_CAP = HELD_BY[0x4]
HARMLESS = {0x1: "idle", 0x2: "set clocks", 0x4: POWER_CAP, 0x10: HELD_BY[0x10], 0x100: "display clocks"}
AT_CAP = 0.97  # of the power cap: an AMD GPU names no reasons in sysfs, but it tells both

# Keys: sm_clock_mhz, temp_c, power_w, busy_pct, memory_mib: numbers; reasons: (voiding, harmless) names; pids: of
# compute processes.
Table = dict[str, Callable[[], Any]]


class Unreadable(TurboOptError):
    """A device whose sensors can't be opened at all."""


@dataclass(frozen=True)
class Sensors:
    """What a device can be asked. `slow` starts a process: it is no question between two timed blocks."""

    table: Table
    slow: Callable[[], Mapping[str, Any]] | None = None
    lacks: dict[str, str] = field(default_factory=dict)  # key -> why it is never told


# -- NVIDIA ------------------------------------------------------------------------------------------------------------
def split_reasons(bits: int) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """NVML's bits as names: (voiding, harmless); a bit of a newer driver is named by its number, as harmless."""
    voiding = tuple(name for bit, name in VOIDS.items() if bits & bit)
    known = sum(VOIDS) | sum(HARMLESS)
    harmless = [name for bit, name in HARMLESS.items() if bits & bit]
    return voiding, tuple(harmless + ([f"reason {bits & ~known:#x}"] if bits & ~known else []))


def _nvidia(device: Device, root: Path) -> Sensors:
    try:
        import pynvml as nvml  # the package nvidia-ml-py
    except ImportError:
        raise Unreadable("NVML can't be asked: no nvidia-ml-py", "pip install nvidia-ml-py") from None
    try:
        nvml.nvmlInit()
        by_uuid, by_number = nvml.nvmlDeviceGetHandleByUUID, nvml.nvmlDeviceGetHandleByIndex
        handle = by_uuid(device.uuid) if device.uuid else by_number(int(device.visible))
    except (nvml.NVMLError, ValueError) as e:
        mend = "it comes with the driver: is libnvidia-ml.so.1 in this container?"
        raise Unreadable(f"NVML can't be asked of GPU {device.visible}: {e}", mend) from None

    def reasons() -> tuple[tuple[str, ...], tuple[str, ...]]:
        with suppress(nvml.NVMLError):  # drivers before 535 have it under its older name
            return split_reasons(nvml.nvmlDeviceGetCurrentClocksEventReasons(handle))
        return split_reasons(nvml.nvmlDeviceGetCurrentClocksThrottleReasons(handle))

    return Sensors(
        {
            "sm_clock_mhz": lambda: float(nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_SM)),
            "temp_c": lambda: float(nvml.nvmlDeviceGetTemperature(handle, nvml.NVML_TEMPERATURE_GPU)),
            "power_w": lambda: int(nvml.nvmlDeviceGetPowerUsage(handle)) / 1e3,
            "reasons": reasons,
            "busy_pct": lambda: float(nvml.nvmlDeviceGetUtilizationRates(handle).gpu),
            # The second version leaves out what the driver keeps for itself (some 600 MiB on an H200).
            "memory_mib": lambda: int(nvml.nvmlDeviceGetMemoryInfo(handle, nvml.nvmlMemory_v2).used) / 2**20,
            "pids": lambda: [int(p.pid) for p in nvml.nvmlDeviceGetComputeRunningProcesses(handle)],
        }
    )


# -- AMD ---------------------------------------------------------------------------------------------------------------
def _amd(device: Device, root: Path) -> Sensors:
    card = _card(device, root)
    hwmon = next(iter(sorted(card.glob("hwmon/hwmon*"))), card / "hwmon" / "hwmon0")
    temp = _labelled(hwmon, ("junction", "edge")) or hwmon / "temp1_input"
    meters = [hwmon / "power1_average", hwmon / "power1_input"]  # which one there is depends on the GPU
    power = next((f for f in meters if f.is_file()), meters[0])

    def reasons() -> tuple[tuple[str, ...], tuple[str, ...]]:
        return (), ((POWER_CAP,) if _int(power) >= AT_CAP * _int(hwmon / "power1_cap") else ())

    table: Table = {
        "sm_clock_mhz": lambda: _active_mhz(card / "pp_dpm_sclk"),
        "temp_c": lambda: _int(temp) / 1e3,  # from m°C
        "power_w": lambda: _int(power) / 1e6,  # from µW
        "reasons": reasons,
        "busy_pct": lambda: float(_int(card / "gpu_busy_percent")),
        "memory_mib": lambda: _int(card / "mem_info_vram_used") / 2**20,
        "pids": lambda: _kfd_pids(card, root),
    }
    lacks = {"throttle": "amdgpu names no slow-down reasons in sysfs"}
    return Sensors(table, lambda: _amd_smi(card.resolve().name), lacks)


def _card(device: Device, root: Path) -> Path:
    """The device's folder in sysfs: by its unique id, else by its PCI address, else the only one."""
    cards = [c for c in sorted(root.glob("class/drm/card*/device")) if _is(c / "vendor", "0x1002")]
    unique = device.uuid.removeprefix("GPU-").lower()
    for same in (
        [c for c in cards if unique and _is(c / "unique_id", unique)],
        [c for c in cards if device.bus and c.resolve().name.endswith(device.bus)],
        cards,
    ):
        # The partitions of one GPU share its sensors, which the first has.
        if len(same) == 1 or (same and same is not cards and len({_id(c) for c in same}) == 1):
            return same[0]
    found = f"{len(cards)} AMD GPUs" if cards else "no AMD GPU"
    where = device.uuid or device.bus or device.visible
    mend = "does this container see /sys/class/drm, and rocminfo the device's Uuid?"
    raise Unreadable(f"{root / 'class/drm'} has {found}, not one that is GPU {where}", mend)


def _id(card: Path) -> str:
    with suppress(OSError):
        return (card / "unique_id").read_text().strip()
    return card.resolve().name


def _is(file: Path, text: str) -> bool:
    with suppress(OSError):
        return file.read_text().strip().lower().lstrip("0") == text.lstrip("0")
    return False


def _int(file: Path) -> int:
    return int(file.read_text())


def _labelled(hwmon: Path, labels: tuple[str, ...]) -> Path | None:
    """The temperature with the first of these labels that there is."""
    found = {f.read_text().strip(): f for f in hwmon.glob("temp*_label")}
    return next((found[x].with_name(found[x].name.replace("_label", "_input")) for x in labels if x in found), None)


def _active_mhz(file: Path) -> float:
    """The level marked with a star: `1: 2100Mhz *`."""
    found = re.search(r"(\d+)\s*mhz\s*\*", file.read_text(), re.IGNORECASE)
    if not found:
        raise ValueError(f"{file.name}: no active level")
    return float(found[1])


def _kfd_pids(card: Path, root: Path) -> list[int]:
    """Processes that hold memory of this card, as the compute driver counts them."""
    address = card.resolve().name  # 0000:c1:00.0
    found = re.fullmatch(r"([0-9a-f]+):([0-9a-f]+):([0-9a-f]+)\.([0-7])", address)
    if not found:
        raise ValueError(f"{address} is no PCI address")
    domain, bus, slot, function = (int(x, 16) for x in found.groups())
    kfd = root / "class/kfd/kfd"
    here = {("domain", domain), ("location_id", bus << 8 | slot << 3 | function)}
    nodes = [n for n in (kfd / "topology/nodes").glob("*") if here <= set(_properties(n / "properties"))]
    if not nodes:
        raise ValueError(f"the compute driver has no node for {address}")
    files = [f for n in nodes for f in (kfd / "proc").glob(f"*/vram_{_int(n / 'gpu_id')}")]
    return sorted({int(f.parent.name) for f in files if _held(f)})


def _held(file: Path) -> bool:
    with suppress(OSError):  # the process has just ended
        return _int(file) > 0
    return False


def _properties(file: Path) -> Iterator[tuple[str, int]]:
    for line in file.read_text().splitlines():
        name, _, value = line.partition(" ")
        if value.strip().isdigit():
            yield name, int(value)


# amd-smi's words for what sysfs may lack.
AMD_SMI = {
    "sm_clock_mhz": ("clock", "gfx_0", "clk"), "temp_c": ("temperature", "hotspot"),
    "power_w": ("power", "socket_power"), "busy_pct": ("usage", "gfx_activity"),
    "memory_mib": ("mem_usage", "used_vram"),
}  # fmt: skip


def _amd_smi(address: str) -> dict[str, float]:
    """What amd-smi tells of the GPU at a PCI address, numbers alone; empty where there is no amd-smi."""
    told = json.loads(ask("amd-smi", "metric", "--gpu", address, "--json") or "[]")
    gpus = told.get("gpu_data", []) if isinstance(told, dict) else told
    found: dict[str, float] = {}
    for key, path in AMD_SMI.items():
        value: Any = gpus[0] if gpus else {}
        for word in (*path, "value"):
            value = value.get(word) if isinstance(value, dict) else value
        if isinstance(value, int | float):
            found[key] = float(value)
    return found


# -- the CPU -----------------------------------------------------------------------------------------------------------
CPUS_ASKED = 16  # of those that this process may use: each is a file
CPU_ZONE = re.compile(r"x86_pkg_temp|cpu|soc|coretemp|k10temp", re.IGNORECASE)


def _cpu(device: Device, root: Path) -> Sensors:
    mine = sorted(os.sched_getaffinity(0))[:CPUS_ASKED]
    clocks = [root / f"devices/system/cpu/cpu{n}/cpufreq/scaling_cur_freq" for n in mine]
    zones = [z for z in sorted(root.glob("class/thermal/thermal_zone*")) if _zone(z)]

    def clock_mhz() -> float:
        return sum(_int(f) for f in clocks) / len(clocks) / 1e3  # from kHz

    def temp_c() -> float:
        if not zones:
            raise ValueError("no CPU among /sys/class/thermal")
        return max(_int(z / "temp") for z in zones) / 1e3

    return Sensors({"sm_clock_mhz": clock_mhz, "temp_c": temp_c}, lacks={"power": "no meter that a user may read"})


def _zone(zone: Path) -> bool:
    with suppress(OSError):
        return bool(CPU_ZONE.search((zone / "type").read_text()))
    return False


BACKENDS: dict[str, Callable[[Device, Path], Sensors]] = {"sm_": _nvidia, "gfx": _amd, "cpu": _cpu}
