"""What machine this is: GPU, driver, versions. Asks tools and package metadata; imports no torch."""

from __future__ import annotations

import importlib.metadata
import platform
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from turbo_optimize.effects import isolation


@dataclass(frozen=True)
class Gpu:
    """One device as its driver names it; `arch` is gfx942, sm_90, …

    `uuid` is the same whatever number the device goes by; `bus` is its PCI address (AMD: without the domain). Empty where
    the driver's tool doesn't tell.
    """

    index: int
    name: str
    arch: str
    driver: str
    uuid: str = ""
    bus: str = ""


def ask(*command: str, timeout_s: float = 10.0) -> str | None:
    """A tool's standard output, or None where it isn't there or fails."""
    if not shutil.which(command[0]):
        return None
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=timeout_s, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout if done.returncode == 0 else None


def _nvidia() -> list[Gpu]:
    told = "index,name,compute_cap,driver_version,uuid,pci.bus_id"
    out = ask("nvidia-smi", f"--query-gpu={told}", "--format=csv,noheader") or ""
    rows = [[x.strip() for x in line.split(",")] for line in out.splitlines() if line.count(",") >= 3]
    return [
        Gpu(int(i), name, f"sm_{cap.replace('.', '')}", driver, *("" if x.startswith("[") else x for x in more))
        for i, name, cap, driver, *more in rows
    ]


def _amd_driver() -> str:
    file = Path("/sys/module/amdgpu/version")  # only where the driver isn't the kernel's own
    return f"amdgpu {file.read_text().strip()}" if file.is_file() else "amdgpu"


def _amd() -> list[Gpu]:
    """The agents of rocminfo that are GPUs: each begins with its name, and its instruction set ends it with another."""
    out = ask("rocminfo") or ""
    agents: list[dict[str, str]] = [{}]
    for line in out.splitlines():
        key, _, value = (x.strip() for x in line.partition(":"))
        if key == "Name":
            agents.append({})
        agents[-1][key] = value
    found = [a for a in agents if a.get("Name", "").startswith("gfx")]
    return [
        Gpu(i, a.get("Marketing Name") or a["Name"], a["Name"], _amd_driver(), _amd_uuid(a), _amd_bus(a))
        for i, a in enumerate(found)
    ]


def _amd_uuid(agent: dict[str, str]) -> str:
    told = agent.get("Uuid", "")
    return "" if told == "GPU-XX" else told  # XX: a device without one


def _amd_bus(agent: dict[str, str]) -> str:
    told = agent.get("BDFID", "")
    return f"{int(told) >> 8:02x}:{int(told) >> 3 & 31:02x}.{int(told) & 7}" if told.isdigit() else ""


def gpus() -> list[Gpu]:
    return _nvidia() or _amd()


@dataclass(frozen=True)
class Clock:
    """A device's compute clock now and at most, and what the driver says holds it down ("" where it says nothing)."""

    index: int
    now_mhz: int
    max_mhz: int | None
    held_by: str = ""


# nvidia-smi's word for what holds a clock down: today's, then that of drivers before 535.
REASONS = ("clocks_event_reasons.active", "clocks_throttle_reasons.active")
# Bits of it that slow a busy GPU; idle (0x1) and set clocks (0x2) don't.
HELD_BY = {
    0x4: "power cap", 0x8: "hardware slowdown", 0x10: "sync boost", 0x20: "software thermal slowdown",
    0x40: "hardware thermal slowdown", 0x80: "power brake",
}  # fmt: skip


def clocks() -> list[Clock]:
    """Per device, where the driver's tool can be read; empty where it can't."""
    told = (
        ask("nvidia-smi", f"--query-gpu=index,clocks.sm,clocks.max.sm,{word}", "--format=csv,noheader,nounits")
        for word in REASONS
    )
    found = []
    for line in next(filter(None, told), "").splitlines():
        row = re.fullmatch(r"(\d+), (\d+), (\d+|\[.*\]), (0x[0-9a-fA-F]+|\[.*\])", line.strip())
        if row:
            bits = int(row[4], 16) if row[4].startswith("0x") else 0
            held = ", ".join(name for bit, name in HELD_BY.items() if bits & bit)
            found.append(Clock(int(row[1]), int(row[2]), int(row[3]) if row[3].isdigit() else None, held))
    return found or _amd_clocks()


def _amd_clocks() -> list[Clock]:
    out = ask("rocm-smi", "--showclocks") or ""
    rows = re.findall(r"GPU\[(\d+)\]\s*:\s*sclk clock[^(\n]*\((\d+)Mhz\)", out)
    return [Clock(int(index), int(mhz), None) for index, mhz in rows]


def first_number(text: str | None) -> str | None:
    """The first dotted number of a tool's output: its version."""
    found = re.search(r"\d+(?:\.\d+)+", text or "")
    return found[0] if found else None


def toolkits() -> dict[str, str]:
    """GPU toolkits by name with their versions: CUDA by nvcc, ROCm by its version file or hipconfig."""
    nvcc = re.search(r"release (\d+\.\d+)", ask("nvcc", "--version") or "")
    file = Path("/opt/rocm/.info/version")
    rocm = first_number(file.read_text()) if file.is_file() else first_number(ask("hipconfig", "--version"))
    found = {"CUDA": nvcc[1] if nvcc else None, "ROCm": rocm}
    return {name: number for name, number in found.items() if number}


def version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "not installed"


def environment() -> dict[str, str]:
    """What a measurement depends on, for the manifest."""
    found = gpus()
    return {
        "gpu": ", ".join(g.name for g in found) or "none",
        "driver": found[0].driver if found else "none",
        "clocks": ", ".join(f"{c.now_mhz} of {c.max_mhz} MHz" for c in clocks()) or "not readable",
        "python": platform.python_version(),
        "torch": version("torch"),
        "triton": version("triton"),
        "platform": sys.platform,
        "cpu": platform.machine(),
        "isolation": isolation.level().name,
    }
