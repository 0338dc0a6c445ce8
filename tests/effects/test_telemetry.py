"""Telemetry: what each kind of device tells, who else is on it, and what voids a session."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.effects import fake_nvml
from turbo_optimize.effects import sensors, telemetry
from turbo_optimize.effects.devices import CPU, Device, first_visible
from turbo_optimize.effects.probe import gpus
from turbo_optimize.effects.sensors import split_reasons
from turbo_optimize.effects.telemetry import Reading, Telemetry, Watch, health, quiet, verdict

H200 = Device("sm_90", "NVIDIA H200", "0", "GPU-8e3c7682")
MI300X = Device("gfx942", "AMD Instinct MI300X", "0", "GPU-8af705259683161c", "c1:00.0")
GONE = 2**22 + 1  # above any process number of this kernel: one of another namespace
GONE_TOO = GONE + 1


@pytest.fixture
def nvml(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What the driver tells; a test changes it."""
    monkeypatch.setitem(sys.modules, "pynvml", fake_nvml)
    fake_nvml.told.clear()
    fake_nvml.told.update(fake_nvml.IDLE)
    return fake_nvml.told


# -- NVIDIA ------------------------------------------------------------------------------------------------------------
def test_a_reading_and_what_it_costs(nvml: dict[str, Any]):
    nvml |= {"event_reasons": 0x4 | 0x40, "pids": [os.getpid()]}
    t = Telemetry(H200)
    assert nvml["asked"] == "GPU-8e3c7682"
    assert t.read() == Reading(1980.0, 38.0, 79.001, ("hardware thermal slowdown",), ("power cap",))
    assert (t.name, t.problem) == ("NVIDIA H200", "")
    watch = Watch(t, [os.getpid()])
    costs_ms = []
    for _ in range(50):
        began = time.perf_counter()
        assert watch.block().foreign == 0
        costs_ms.append(1e3 * (time.perf_counter() - began))
    assert min(costs_ms) < 2, "without the driver's own time"
    Telemetry(Device("sm_90", "H200", "3"))
    assert nvml["asked"] == 3, "by its number where no UUID is known"


@pytest.mark.parametrize(
    ("bits", "voiding", "harmless"),
    [
        (0x0, (), ()),
        (0x1, (), ("idle",)),
        (0x2, (), ("set clocks",)),
        (0x4, (), ("power cap",)),
        (0x8, ("hardware slowdown",), ()),
        (0x10, (), ("sync boost",)),
        (0x20, ("software thermal slowdown",), ()),
        (0x40, ("hardware thermal slowdown",), ()),
        (0x80, ("power brake",), ()),
        (0x100, (), ("display clocks",)),
        (0x48, ("hardware slowdown", "hardware thermal slowdown"), ()),
        (0x2004, (), ("power cap", "reason 0x2000")),
    ],
)
def test_which_reasons_void(bits: int, voiding: tuple[str, ...], harmless: tuple[str, ...]):
    assert split_reasons(bits) == (voiding, harmless)


def test_what_the_driver_refuses_is_none_and_told_once(nvml: dict[str, Any]):
    nvml |= {"power": "Not Supported", "temp": "GPU is lost"}
    t = Telemetry(H200)
    for _ in range(3):
        assert t.read() == Reading(1980.0, None, None)
    assert t.problem == "temp_c: GPU is lost; power_w: Not Supported"


def test_an_older_driver_has_the_older_word(nvml: dict[str, Any]):
    nvml |= {"event_reasons": "Function Not Found", "throttle_reasons": 0x20}
    assert Telemetry(H200).read().throttle == ("software thermal slowdown",)


def test_no_driver_no_package(nvml: dict[str, Any], monkeypatch: pytest.MonkeyPatch):
    nvml["init"] = "NVML Shared Library Not Found"
    t = Telemetry(H200)
    assert t.read() == Reading()
    assert "Shared Library Not Found" in t.problem
    assert "libnvidia-ml.so.1" in t.mend
    assert t.others().count is None
    assert quiet(t) is None, "what can't be known is no accusation"
    monkeypatch.setitem(sys.modules, "pynvml", None)
    t = Telemetry(H200)
    assert t.read() == Reading()
    assert (t.problem, t.mend) == ("NVML can't be asked: no nvidia-ml-py", "pip install nvidia-ml-py")
    assert health(t) == ("nothing can be read (NVML can't be asked: no nvidia-ml-py)", "pip install nvidia-ml-py")


# -- who else ----------------------------------------------------------------------------------------------------------
@contextlib.contextmanager
def process(code: str = "input()") -> Iterator[tuple[subprocess.Popen[str], int]]:
    """A process and the number that its first line tells (its own)."""
    command = [sys.executable, "-S", "-c", f"import os, subprocess, sys\nprint(os.getpid(), flush=True)\n{code}"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as p:
        assert p.stdout
        try:
            yield p, int(p.stdout.readline())
        finally:
            p.kill()


GRANDCHILD = "subprocess.run([sys.executable, '-S', '-c', 'import os; print(os.getpid(), flush=True); input()'])"


def test_whose_a_process_is(nvml: dict[str, Any]):
    t = Telemetry(H200)
    with process(GRANDCHILD) as (p, child):
        assert p.stdout
        nvml["pids"] = [os.getpid(), child, int(p.stdout.readline())]
        assert t.others() == t.others([child]) == telemetry.Others(0)
        assert p.stdin
        nvml["pids"] += [os.getppid(), GONE]
        found = t.others()
        assert (found.count, found.pids) == (2, (os.getppid(), GONE)), (
            "not ours: who started us, and who isn't to be seen"
        )
        p.stdin.write("\n")


def test_process_numbers_of_another_namespace_are_counted(nvml: dict[str, Any]):
    t = Telemetry(H200)
    nvml["pids"] = [GONE, GONE_TOO]
    assert t.others([11, 12]).count == 0
    assert "counted" in t.others([11, 12]).unsure
    assert (t.others([11]).count, t.others([11]).pids) == (1, ())
    assert (t.others().count, t.others().pids) == (2, (GONE, GONE_TOO)), "none of ours runs: all are foreign"


def test_a_driver_that_lists_not_even_ours(nvml: dict[str, Any]):
    t = Telemetry(H200)
    assert t.others() == telemetry.Others(0)
    assert t.others([os.getpid()]).count is None
    assert "not even ours" in t.others([os.getpid()]).unsure
    assert Watch(t, [os.getpid()]).block().foreign is None
    assert verdict([Watch(t, [os.getpid()]).block()], []) is None


def test_quiet(nvml: dict[str, Any], monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(telemetry, "SETTLE_S", 0.25)
    t = Telemetry(H200)
    assert quiet(t) is None
    nvml["pids"] = [GONE]
    assert quiet(t) == f"1 foreign process ({GONE}) on NVIDIA H200"
    nvml["pids"] = [1, GONE]
    assert quiet(t) == f"2 foreign processes (1, {GONE}) on NVIDIA H200"
    nvml |= {"pids": [], "busy": 5}
    assert quiet(t) is None
    nvml["busy"] = 40
    assert quiet(t) == "NVIDIA H200 is 40% busy while nothing of ours runs"
    assert quiet(t, busy_pct=50) is None
    before = iter([98, 30, 0])
    nvml["busy"] = lambda: next(before)
    assert quiet(t) is None, "what ran before is forgotten"
    nvml |= {"busy": 0, "memory": 530 << 20}
    assert quiet(t) == "530 MiB of NVIDIA H200 are taken, though no process is listed"
    assert quiet(t, [os.getpid()]) is None, "it is ours"


# -- the verdict -------------------------------------------------------------------------------------------------------
def at(*mhz: float, **more: Any) -> list[Reading]:
    return [Reading(m, 60.0, 500.0, **more) for m in mhz]


STEADY = at(1980, 1980, 1965, 1980)
HOT = [Reading(1200, 91.0, 400.0, throttle=("hardware thermal slowdown",))]


@pytest.mark.parametrize(
    ("a", "b", "why"),
    [
        ([], [], None),
        (STEADY, STEADY, None),
        (STEADY, at(1950, 1950, 1950, 1950), None),
        (STEADY, at(1900, 1900, 1900, 1900), "the clock was 1976 MHz under A, 1900 under B: 3.9% apart, at most 2%"),
        (at(1900, 1900, 1900, 1900), STEADY, "the clock was 1900 MHz under A, 1976 under B: 3.9% apart, at most 2%"),
        (STEADY, at(1900, 1900, 1900), None),  # too few to tell
        (STEADY, [Reading()] * 8, None),  # unreadable
        (STEADY, at(*[1500] * 8, note=("power cap",)), None),  # the kernel's own draw
        (STEADY, STEADY + at(*[1500] * 8, note=("power cap",)), None),
        (STEADY, at(*[1900] * 4, note=("set clocks",)), "3.9% apart"),
        ([*STEADY, *HOT], STEADY, "hardware thermal slowdown in 1 of 9 blocks, at 91 °C"),
        (
            STEADY,
            [*HOT, Reading(throttle=("power brake",)), *STEADY],
            "hardware thermal slowdown, power brake in 2 of 10",
        ),
        (STEADY, [Reading(throttle=("power brake",))], "power brake in 1 of 5 blocks"),
        (at(1980, foreign=0), at(1980, foreign=1), "a foreign process was on the GPU in 1 of 2 blocks"),
        (at(1980, foreign=None), at(1980, foreign=0), None),
        ([*HOT, *at(1980, foreign=2)], [], "hardware thermal slowdown"),
    ],
)
def test_what_voids_a_session(a: list[Reading], b: list[Reading], why: str | None):
    found = verdict(a, b)
    assert found == why or (why and found and why in found)


def test_the_clocks_bar_is_an_argument_and_none_for_a_cpu(nvml: dict[str, Any]):
    slower = at(1900, 1900, 1900, 1900)
    assert verdict(STEADY, slower, 5.0) is None
    assert "at most 1%" in (verdict(STEADY, at(*[1950] * 4), 1.0) or "")
    assert verdict(STEADY, slower, None) is None
    assert Watch(Telemetry(CPU), []).verdict(STEADY, slower) is None
    assert Watch(Telemetry(H200), []).verdict(STEADY, slower)
    assert Watch(Telemetry(H200), [], clock_pct=5.0).verdict(STEADY, slower) is None


# -- AMD ---------------------------------------------------------------------------------------------------------------
def card(root: Path, number: int, address: str, unique: str | None) -> Path:
    """One GPU's folder as amdgpu lays it out, and its node of the compute driver."""
    device = root / "devices" / address
    hwmon = device / "hwmon" / f"hwmon{number + 3}"
    hwmon.mkdir(parents=True)
    files = {
        "vendor": "0x1002", "pp_dpm_sclk": "0: 132Mhz\n1: 2100Mhz *", "gpu_busy_percent": "0",
        "mem_info_vram_used": str(300 << 20), "hwmon/temp1_label": "edge", "hwmon/temp1_input": "41000",
        "hwmon/temp2_label": "junction", "hwmon/temp2_input": "52000", "hwmon/power1_average": "130000000",
        "hwmon/power1_cap": "750000000",
    } | ({"unique_id": unique} if unique else {})  # fmt: skip
    for name, text in files.items():
        (hwmon / name.removeprefix("hwmon/") if name.startswith("hwmon/") else device / name).write_text(text + "\n")
    drm = root / "class" / "drm" / f"card{number}"
    drm.mkdir(parents=True)
    (drm / "device").symlink_to(device)
    node = root / "class/kfd/kfd/topology/nodes" / str(number + 1)
    node.mkdir(parents=True)
    bus = int(address[5:7], 16)
    (node / "properties").write_text(f"simd_count 1216\nlocation_id {bus << 8}\ndomain {int(address[:4], 16)}\n")
    (node / "gpu_id").write_text(f"{1000 + number}\n")
    return device


@pytest.fixture
def amd(tmp_path: Path) -> Path:
    """sysfs of a machine with two GPUs; the second is the one that is asked for."""
    card(tmp_path, 0, "0000:05:00.0", "1111111111111111")
    card(tmp_path, 1, "0000:c1:00.0", "8af705259683161c")
    connector = tmp_path / "class/drm/card1-DP-1"
    connector.mkdir()
    (connector / "device").symlink_to("../card1")
    node = tmp_path / "class/kfd/kfd/topology/nodes/0"  # a CPU
    node.mkdir()
    (node / "properties").write_text("cpu_cores_count 96\nlocation_id 0\ndomain 0\n")
    return tmp_path


def holds(root: Path, pid: int, gpu: int, vram: int) -> None:
    folder = root / f"class/kfd/kfd/proc/{pid}"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"vram_{1000 + gpu}").write_text(f"{vram}\n")


def test_an_amd_gpu(amd: Path):
    t = Telemetry(MI300X, amd)
    assert t.read() == Reading(2100.0, 52.0, 130.0)
    assert t.problem == "throttle: amdgpu names no slow-down reasons in sysfs"
    (amd / "devices/0000:c1:00.0/hwmon/hwmon4/power1_average").write_text("749000000\n")
    (amd / "devices/0000:c1:00.0/pp_dpm_sclk").write_text("S: 19Mhz\n0: 500Mhz\n1: 1385Mhz *\n2: 2100Mhz\n")
    assert t.read() == Reading(1385.0, 52.0, 749.0, note=("power cap",))


def test_an_amd_gpu_by_its_address_or_as_the_only_one(amd: Path, tmp_path: Path):
    (amd / "devices/0000:05:00.0/hwmon/hwmon3/temp2_input").write_text("77000\n")
    by_address = Telemetry(Device("gfx942", "MI300X", "1", "", "05:00.0"), amd)
    assert by_address.read().temp_c == 77.0
    unknown = Telemetry(Device("gfx942", "MI300X", "1"), amd)
    assert unknown.read() == Reading()
    assert "has 2 AMD GPUs, not one that is GPU 1" in unknown.problem
    card(tmp_path / "one", 0, "0000:05:00.0", None)
    assert Telemetry(Device("gfx942", "MI300X", "0"), tmp_path / "one").read().sm_clock_mhz == 2100.0


def test_who_is_on_an_amd_gpu(amd: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(telemetry, "MEMORY_MIB", 400)
    t = Telemetry(MI300X, amd)
    holds(amd, GONE, 0, 1 << 30)  # the other GPU
    holds(amd, GONE, 1, 0)  # opened, not used
    holds(amd, os.getpid(), 1, 1 << 20)
    assert t.others() == telemetry.Others(0)
    assert quiet(t) is None
    holds(amd, 1, 1, 1 << 30)
    assert t.others().pids == (1,)
    assert quiet(t) == "1 foreign process (1) on AMD Instinct MI300X"


AMD_SMI = """#!/bin/sh
[ "$*" = "metric --gpu 0000:c1:00.0 --json" ] || exit 1
echo '{"gpu_data": [{"gpu": 1, "usage": {"gfx_activity": {"value": 7, "unit": "%"}},
 "power": {"socket_power": {"value": 140, "unit": "W"}}, "clock": {"gfx_0": {"clk": {"value": 1900, "unit": "MHz"}}},
 "temperature": {"edge": "N/A", "hotspot": "N/A"}}]}'
"""


def test_amd_smi_tells_what_sysfs_lacks_but_not_between_blocks(
    amd: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    tool = tmp_path / "bin" / "amd-smi"
    tool.parent.mkdir()
    tool.write_text(AMD_SMI)
    tool.chmod(0o755)
    (amd / "devices/0000:c1:00.0/pp_dpm_sclk").unlink()
    (amd / "devices/0000:c1:00.0/hwmon/hwmon4/power1_average").unlink()
    t = Telemetry(MI300X, amd)
    monkeypatch.setenv("PATH", f"{tool.parent}:{os.environ['PATH']}")
    assert t.read(slow=True) == Reading(1900.0, 52.0, 140.0)
    assert t.read() == Reading(None, 52.0, None)
    assert "sm_clock_mhz: pp_dpm_sclk: no such file or directory" in t.problem
    tool.write_text('#!/bin/sh\necho \'[{"gpu": 1, "clock"\'\n')
    assert t.read(slow=True) == Reading(None, 52.0, None)
    assert "amd-smi: " in t.problem
    tool.unlink()
    assert t.read(slow=True).power_w is None


# -- the CPU -----------------------------------------------------------------------------------------------------------
def test_a_cpu(tmp_path: Path):
    for n in os.sched_getaffinity(0):
        folder = tmp_path / f"devices/system/cpu/cpu{n}/cpufreq"
        folder.mkdir(parents=True)
        (folder / "scaling_cur_freq").write_text("2450000\n")
    for n, (kind, temp) in enumerate([("acpitz", 99000), ("x86_pkg_temp", 47000), ("x86_pkg_temp", 51000)]):
        zone = tmp_path / f"class/thermal/thermal_zone{n}"
        zone.mkdir(parents=True)
        (zone / "type").write_text(kind + "\n")
        (zone / "temp").write_text(f"{temp}\n")
    t = Telemetry(CPU, tmp_path)
    assert t.read() == Reading(2450.0, 51.0)
    assert t.others().count is None
    assert quiet(t) is None
    bare = Telemetry(CPU, tmp_path / "nothing")
    assert bare.read() == Reading()
    assert "scaling_cur_freq: no such file" in bare.problem


def test_whatever_a_backend_raises_stays_in_it(monkeypatch: pytest.MonkeyPatch):
    def broken(device: Device, root: Path) -> sensors.Sensors:
        raise RuntimeError("the driver is being replaced")

    monkeypatch.setitem(sensors.BACKENDS, "sm_", broken)
    t = Telemetry(H200)
    assert t.read() == Reading()
    assert t.problem == "the driver is being replaced"


# -- a real one --------------------------------------------------------------------------------------------------------
ON_GPU = "import torch\nx = torch.zeros(8, device='cuda')\nprint('there', flush=True)\ninput()"


@pytest.mark.gpu
@pytest.mark.skipif(not gpus(), reason="no GPU here")
def test_a_real_gpu(monkeypatch: pytest.MonkeyPatch):
    t = Telemetry(first_visible(gpus()[0].arch))
    r = t.read()
    assert r.sm_clock_mhz and r.temp_c and r.power_w, t.problem
    before = quiet(t)
    assert before is None, before
    command = [sys.executable, "-c", ON_GPU]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as p:
        try:
            assert p.stdout and p.stdout.readline() == "there\n"
            assert t.others([p.pid]).count in (0, None)
            monkeypatch.setattr(os, "getpid", lambda: 0)  # as another process would see it
            assert t.others().count == 1
            assert quiet(t) == f"1 foreign process ({p.pid}) on {t.name}"
        finally:
            p.kill()
    costs_ms = []
    for _ in range(50):
        began = time.perf_counter()
        Watch(t, [p.pid]).block()
        costs_ms.append(1e3 * (time.perf_counter() - began))
    assert sorted(costs_ms)[25] < 2
