"""One lock a GPU: found under whatever name, across processes, nights and users. The driver's tools are played."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from turbo_optimize.core.errors import LockedError, TurboOptError
from turbo_optimize.effects import probe
from turbo_optimize.effects.devices import (
    CPU,
    HELD,
    Device,
    devices,
    first_visible,
    held_gpu,
    hold,
    passed_on,
    stay_off,
    timing_core,
)
from turbo_optimize.effects.probe import Gpu
from turbo_optimize.effects.store import Lock

TOP = Path(__file__).parents[2]
SMI = "#!/bin/sh\ncat <<'END'\n" + "".join(
    f"{i}, NVIDIA H200, 9.0, 570.1, GPU-{i}{i}ab-{i}, 00000000:0{i}:00.0\n" for i in range(4)
)
SMI += "END\n"
ROCMINFO = """#!/bin/sh
cat <<'END'
Agent 1
  Name:                    AMD EPYC 9554
  Uuid:                    CPU-XX
  Marketing Name:          AMD EPYC 9554
  BDFID:                   0
Agent 2
  Name:                    gfx942
  Uuid:                    GPU-8af705259683161c
  Marketing Name:          AMD Instinct MI300X
  BDFID:                   49408
      Name:                    amdgcn-amd-amdhsa--gfx942:sramecc+:xnack-
Agent 3
  Name:                    gfx942
  Uuid:                    GPU-XX
  Marketing Name:
  BDFID:                   1288
      Name:                    amdgcn-amd-amdhsa--gfx942:sramecc+:xnack-
END
"""
H200 = Device("sm_90", "NVIDIA H200", "0", "GPU-00ab-0")


def tool(folder: Path, name: str, text: str) -> None:
    folder.mkdir(exist_ok=True)
    (folder / name).write_text(text)
    (folder / name).chmod(0o755)


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Four H200 by nvidia-smi, and a folder of locks; for this process and its children."""
    tool(tmp_path / "bin", "nvidia-smi", SMI)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    monkeypatch.setenv("TURBO_OPT_LOCKS", str(tmp_path / "locks"))
    monkeypatch.setenv("PYTHONPATH", str(TOP), prepend=os.pathsep)
    for name in ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path


HOLDER = """
import sys
from turbo_optimize.core.errors import TurboOptError
from turbo_optimize.effects.devices import held_gpu
try:
    with held_gpu("sm_90", float(sys.argv[1])):
        print("held", flush=True)
        sys.stdin.read()
except TurboOptError as e:
    print(e, flush=True)
"""


@contextlib.contextmanager
def holder(wait_s: float = 0.0, **environ: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """Another process that takes the lock of its first GPU, and what it says: held, or why not."""
    with subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(wait_s)], env=os.environ | environ, stdin=subprocess.PIPE,
        stdout=subprocess.PIPE, text=True,
    ) as p:  # fmt: skip
        assert p.stdout
        try:
            yield p, p.stdout.readline().strip()
        finally:
            p.kill()


# -- which devices -----------------------------------------------------------------------------------------------------
def test_visible_devices_are_respected():
    amd = [Gpu(i, "MI300X", "gfx942", "6.4") for i in range(4)]
    nvidia = [Gpu(i, "H200", "sm_90", "570") for i in range(2)]
    assert [d.visible for d in devices(amd, {})] == ["0", "1", "2", "3"]
    assert [d.visible for d in devices(amd, {"HIP_VISIBLE_DEVICES": "3, 1"})] == ["3", "1"]
    assert [d.visible for d in devices(amd, {"CUDA_VISIBLE_DEVICES": "2"})] == ["2"], "HIP takes this one too"
    assert devices(amd, {"HIP_VISIBLE_DEVICES": ""}) == ()
    assert [d.visible for d in devices(nvidia, {"CUDA_VISIBLE_DEVICES": "1", "HIP_VISIBLE_DEVICES": "0"})] == ["1"]
    uuid = devices(nvidia, {"CUDA_VISIBLE_DEVICES": "GPU-1a2b"})
    assert [(d.arch, d.environment) for d in uuid] == [("sm_90", {"CUDA_VISIBLE_DEVICES": "GPU-1a2b"})]
    assert devices([], {}) == ()


@pytest.mark.parametrize(
    ("variable", "expected"), [("-1", ()), ("1,-1,0", ("1",)), ("0,9,1", ("0",)), ("1,1", ("1",)), ("none", ())]
)
def test_a_name_of_no_gpu_ends_the_list(variable: str, expected: tuple[str, ...]):
    nvidia = [Gpu(i, "H200", "sm_90", "570") for i in range(2)]
    assert tuple(d.visible for d in devices(nvidia, {"CUDA_VISIBLE_DEVICES": variable})) == expected


def test_a_number_means_the_tools_number():
    assert Device("sm_90", "H200", "1").environment == {"CUDA_VISIBLE_DEVICES": "1", "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
    assert Device("gfx942", "MI300X", "1").environment == {"HIP_VISIBLE_DEVICES": "1"}
    assert CPU.environment == {}


def test_one_gpu_has_one_lock_under_every_name(tmp_path: Path):
    found = [Gpu(i, "H200", "sm_90", "570", f"GPU-{i}{i}ab-{i}") for i in range(4)]

    def path(variable: str | None) -> str:
        return (
            devices(found, {} if variable is None else {"CUDA_VISIBLE_DEVICES": variable})[0].lock(tmp_path).path.name
        )

    assert path("3") == path("3,1") == path("GPU-33ab-3") == path("GPU-33") == "gpu-GPU-33ab-3.lock"
    assert path(None) == path("0") != path("1")
    assert path("MIG-5c89852c") == "gpu-MIG-5c89852c.lock", "a slice that the tool doesn't list"


def test_what_the_drivers_tools_tell(machine: Path):
    assert probe.gpus()[3] == Gpu(3, "NVIDIA H200", "sm_90", "570.1", "GPU-33ab-3", "00000000:03:00.0")
    tool(machine / "bin", "nvidia-smi", "#!/bin/sh\necho '0, NVIDIA H200, 9.0, 570.1, [N/A], [N/A]'\n")
    assert probe.gpus() == [Gpu(0, "NVIDIA H200", "sm_90", "570.1")]
    tool(machine / "bin", "nvidia-smi", "#!/bin/sh\nexit 9\n")
    tool(machine / "bin", "rocminfo", ROCMINFO)
    first, second = probe.gpus()
    assert (first.index, first.name, first.uuid, first.bus) == (
        0, "AMD Instinct MI300X", "GPU-8af705259683161c", "c1:00.0",
    )  # fmt: skip
    assert (second.index, second.name, second.uuid, second.bus) == (1, "gfx942", "", "05:01.0")


# -- the lock ----------------------------------------------------------------------------------------------------------
def test_two_processes_never_hold_one_gpu(machine: Path):
    with holder(CUDA_VISIBLE_DEVICES="3") as (first, taken):
        assert taken == "held"
        for name in ("3", "GPU-33ab-3", "3,0"):
            with holder(CUDA_VISIBLE_DEVICES=name) as (_, said):
                assert said == (
                    f"GPU {name.split(',')[0]} (NVIDIA H200) is held by process {first.pid} — "
                    "wait for it, or pick another GPU with CUDA_VISIBLE_DEVICES"
                )
        with holder(CUDA_VISIBLE_DEVICES="0,3") as (_, said):
            assert said == "held", "the first is another GPU"
        first.kill()
        first.wait()
        with holder(CUDA_VISIBLE_DEVICES="3") as (_, said):
            assert said == "held", "a killed process holds nothing"


def test_waiting_for_it(machine: Path):
    with holder() as (first, said):
        assert said == "held"
        began = time.monotonic()
        with pytest.raises(LockedError, match=f"held by process {first.pid}"):
            hold(H200, 0.3)
        assert 0.3 <= time.monotonic() - began < 3
        assert first.stdin
        first.stdin.close()
        with hold(H200, 10.0) as lock:
            assert lock.path == machine / "locks" / "gpu-GPU-00ab-0.lock"
            assert Lock(lock.path, "").holder() == str(os.getpid())


def test_the_cpu_has_none_and_no_gpu_is_an_error(machine: Path, monkeypatch: pytest.MonkeyPatch):
    with held_gpu("cpu"):
        assert not (machine / "locks").exists()
    assert first_visible("cpu") == CPU
    assert first_visible("sm_90") == Device("sm_90", "NVIDIA H200", "0", "GPU-00ab-0", "00000000:00:00.0")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    with pytest.raises(TurboOptError, match=r"CUDA_VISIBLE_DEVICES hides all 4 — name one"):
        held_gpu("sm_90")
    tool(machine / "bin", "nvidia-smi", "#!/bin/sh\nexit 9\n")
    tool(machine / "bin", "rocminfo", "#!/bin/sh\nexit 1\n")
    with pytest.raises(TurboOptError, match="the driver's tool finds none"):
        held_gpu("sm_90")


@pytest.mark.skipif(os.getuid() != 0, reason="only root can be another user")
def test_other_users_are_kept_off_too():
    top = Path(tempfile.mkdtemp())
    top.chmod(0o755)
    before = os.umask(0o077)
    try:
        with hold(H200, folder=top / "locks") as lock:
            assert _as_nobody(lock.path.parent) == "held"
        assert _as_nobody(lock.path.parent) == "free"
    finally:
        os.umask(before)


def _as_nobody(folder: Path) -> str:
    """What another user finds: held, free, or the error's kind. A fork, since that user may not read this Python."""
    child = os.fork()
    if not child:
        os.setuid(65534)
        said = 0
        try:
            hold(H200, folder=folder).release()
        except LockedError:
            said = 1
        except BaseException:
            said = 2
        os._exit(said)
    return ("free", "held", "error")[os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])]


# -- passed on ---------------------------------------------------------------------------------------------------------
INNER = """
import json, os, subprocess, sys
from turbo_optimize.effects.devices import HELD, held_gpu
lock = held_gpu("sm_90")
look = "import os; print(sum(os.path.realpath('/proc/self/fd/' + n).endswith('.lock') for n in os.listdir('/proc/self/fd')))"
kept = subprocess.run([sys.executable, "-S", "-c", look], capture_output=True, text=True, close_fds=False).stdout
with lock:
    print(json.dumps({"pid": os.getpid(), "kept": int(kept), "told": HELD in os.environ}), flush=True)
    sys.stdin.read()
"""


@contextlib.contextmanager
def inner(lock: Lock, **more: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    environ, files = passed_on(lock)
    with subprocess.Popen(
        [sys.executable, "-c", INNER], env=os.environ | environ | more, pass_fds=files, stdin=subprocess.PIPE,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    ) as p:  # fmt: skip
        assert p.stdout
        assert p.stderr
        try:
            yield p, p.stdout.readline() or p.stderr.read()
        finally:
            p.kill()


def test_a_child_holds_what_its_parent_passed_on_and_passes_nothing_on(machine: Path):
    lock = hold(H200)
    with inner(lock) as (p, told):
        assert json.loads(told) == {"pid": p.pid, "kept": 0, "told": False}
        lock.release()
        with holder() as (_, said):
            assert f"held by process {p.pid}" in said, "the parent let go; its child holds it"
        assert p.stdin
        p.stdin.close()
        p.wait()
        with holder() as (_, said):
            assert said == "held"


def test_what_was_passed_on_for_another_gpu_is_of_no_use(machine: Path):
    with hold(H200) as lock, holder(CUDA_VISIBLE_DEVICES="1") as (other, taken):
        assert taken == "held"
        with inner(lock, CUDA_VISIBLE_DEVICES="1") as (_, said):
            assert f"held by process {other.pid}" in said
        with inner(lock, **{HELD: "999"}) as (_, said):
            assert f"held by process {os.getpid()}" in said


NIGHT = """
import os, sys
from pathlib import Path
from turbo_optimize.effects.devices import devices
from turbo_optimize.effects.probe import gpus
from turbo_optimize.effects.repo import Repo
from turbo_optimize.fleet import nightly
from turbo_optimize.fleet.config import Night
from turbo_optimize.fleet.executors import local
top, play = Path(sys.argv[1]), sys.argv[2]
night = Night.model_validate({"name": "n", "targets": [{"name": "a", "op": "gemm", "backend": "TRITON"}]})
record, _ = nightly.run(night, Repo.discover(top), top / "nights", local, devices=devices(gpus(), os.environ),
                        start_command=[sys.executable, play])
print(record.targets[0].outcome.model_dump_json(), flush=True)
"""
PLAY = """
import json, os, sys, time
from pathlib import Path
from turbo_optimize.effects.devices import held_gpu
go = Path(__file__).with_name("go")
with held_gpu("sm_90"):
    Path(__file__).with_name("began").write_text(str(os.getpid()))
    while not go.exists():
        time.sleep(0.05)
keys = ("code", "rounds", "accepted", "unit", "gain_pct")
print(json.dumps(dict.fromkeys(keys) | {"campaign": "x", "dir": "x", "rounds": 1, "accepted": 0, "score": 1.0,
                                        "final_ok": True}))
"""


def _first_words(file: Path, writer: subprocess.Popen[str]) -> str:
    deadline = time.monotonic() + 30
    while not file.exists() or not file.read_text():
        assert writer.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.05)
    return file.read_text()


@pytest.fixture
def night(machine: Path) -> Iterator[tuple[subprocess.Popen[str], int, Path]]:
    """A night whose campaign (a real `held_gpu`) has begun: its process, the campaign's, the folder to let it go on."""
    identity = ["-c", "user.name=t", "-c", "user.email=t@t"]
    for command in (["init", "-q"], [*identity, "commit", "-q", "--allow-empty", "-m", "first"]):
        subprocess.run(["git", *command], cwd=machine, check=True)
    (machine / "play.py").write_text(PLAY)
    command = [sys.executable, "-c", NIGHT, str(machine), str(machine / "play.py")]
    environ: Mapping[str, str] = os.environ | {"CUDA_VISIBLE_DEVICES": "2"}
    with subprocess.Popen(command, env=environ, stdout=subprocess.PIPE, text=True) as p:
        campaign = 0
        try:
            campaign = int(_first_words(machine / "began", p))
            yield p, campaign, machine
        finally:
            p.kill()
            with contextlib.suppress(ProcessLookupError):
                if campaign:
                    os.kill(campaign, signal.SIGKILL)


def test_a_nights_campaign_takes_the_gpu_that_the_night_holds(night: tuple[subprocess.Popen[str], int, Path]):
    runner, campaign, folder = night
    with holder(CUDA_VISIBLE_DEVICES="2") as (_, said):
        assert f"held by process {campaign}" in said
    (folder / "go").touch()
    assert runner.stdout
    outcome = json.loads(runner.stdout.readline())
    assert (outcome["ok"], outcome["device"]) == (True, "NVIDIA H200"), outcome["why"]
    with holder(CUDA_VISIBLE_DEVICES="2") as (_, said):
        assert said == "held"


def test_a_campaign_that_outlives_its_night_still_holds_its_gpu(night: tuple[subprocess.Popen[str], int, Path]):
    runner, campaign, folder = night
    runner.kill()
    runner.wait()
    with holder(CUDA_VISIBLE_DEVICES="2") as (_, said):
        assert f"held by process {campaign}" in said
    (folder / "go").touch()
    with holder(30.0, CUDA_VISIBLE_DEVICES="2") as (_, said):
        assert said == "held"


# -- the CPU that a GPU's workers are timed on -----------------------------------------------------------------------
def test_each_gpu_has_a_cpu_of_its_own_which_the_runner_leaves() -> None:
    usable = sorted(os.sched_getaffinity(0))
    cores = [timing_core(replace(CPU, visible=str(n))) for n in range(len(usable))]
    assert sorted(cores) == usable
    named = replace(CPU, visible="GPU-1b2c", uuid="GPU-1b2c-77")
    assert timing_core(named) == timing_core(named) in usable
    had = stay_off(cores[0])
    try:
        assert had == set(usable)
        assert os.sched_getaffinity(0) == (had - {cores[0]} or had)
    finally:
        os.sched_setaffinity(0, had)
