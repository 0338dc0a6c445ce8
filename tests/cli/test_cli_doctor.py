"""turbo-opt doctor: it can always look, and what isn't ok has its mend."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from tests.cli.conftest import TOP, Cli
from tests.factory import make_events
from turbo_optimize import doctor
from turbo_optimize.effects import probe
from turbo_optimize.effects.devices import Device, hold
from turbo_optimize.effects.store import Journal

NVIDIA = """#!/bin/sh
case "$*" in
  *compute_cap*) echo "0, NVIDIA H200, 9.0, 570.1"; echo "1, NVIDIA H200, 9.0, 570.1" ;;
  *clocks_event_reasons*) echo 'Field "clocks_event_reasons.active" is not a valid field to query.'; exit 2 ;;
  *clocks*) echo "0, 1980, 1980, 0x0000000000000001"; echo "1, 345, 1980, 0x0000000000000044" ;;
esac
"""
ROCM = """#!/bin/sh
printf '  Name:                    AMD EPYC 9554\\n  Marketing Name:          AMD EPYC 9554\\n'
printf '  Name:                    gfx942\\n  Marketing Name:          AMD Instinct MI300X\\n'
printf '      Name:                    amdgcn-amd-amdhsa--gfx942:sramecc+:xnack-\\n'
"""


def tool(folder: Path, name: str, text: str) -> None:
    folder.mkdir(exist_ok=True)
    (folder / name).write_text(text)
    (folder / name).chmod(0o755)


def findings(cli: Cli, **kwargs) -> dict[str, dict[str, str]]:
    done = cli("doctor", "--json", **kwargs)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert all(set(f) == {"name", "state", "found", "mend"} for f in found)
    for f in found:
        assert f["state"] in ("ok", "warn", "missing")
        assert bool(f["mend"]) == (f["state"] != "ok"), f
    return {f["name"]: f for f in found}


def test_outside_of_a_repository_and_within_eighty_columns(cli: Cli):
    done = cli("doctor")
    assert done.returncode == 0
    assert max(map(len, done.stdout.splitlines())) <= 80
    found = findings(cli)
    assert found["repository"]["state"] == "missing"
    assert "git init" in found["repository"]["mend"]
    assert "project file" not in found


def test_in_a_repository(cli: Cli, checkout: Path):
    found = findings(cli, cwd=checkout)
    assert found["repository"]["found"] == str(checkout)
    count = len(yaml.safe_load((checkout / "project.yaml").read_text())["ops"])
    assert found["project file"] == {
        "name": "project file",
        "state": "ok",
        "found": f"project.yaml, {count} ops",
        "mend": "",
    }
    assert found["campaigns"]["state"] == "ok"
    assert found["noise floor"]["mend"] == "measure one: turbo-opt start --op OP"
    (checkout / "project.yaml").write_text("name: x\nops: {}\nopps: {}\n")
    assert "did you mean ops?" in findings(cli, cwd=checkout)["project file"]["found"]
    (checkout / "project.yaml").unlink()
    assert findings(cli, cwd=checkout)["project file"]["state"] == "missing"


def test_git_identity_and_no_git(cli: Cli, checkout: Path, tmp_path: Path):
    for key in ("user.name", "user.email"):  # empty here, whatever this user or system says
        subprocess.run(["git", "config", key, ""], cwd=checkout, check=True)
    found = findings(cli, cwd=checkout)["git identity"]
    assert found["state"] == "warn"
    assert "no user.name and user.email: commits will be by turbo-opt" in found["found"]
    subprocess.run(["git", "config", "user.name", "Ada"], cwd=checkout, check=True)
    subprocess.run(["git", "config", "user.email", "ada@example.org"], cwd=checkout, check=True)
    assert findings(cli, cwd=checkout)["git identity"]["found"] == "Ada <ada@example.org>"
    bare = findings(cli, cwd=checkout, env={"PATH": str(tmp_path)})
    assert bare["git"]["state"] == "missing"
    assert "repository" not in bare


def test_without_torch_and_triton(tmp_path: Path):
    """A Python that sees nothing but the doctor's own needs."""
    needed = (
        "typer", "rich", "pydantic", "pydantic_core", "yaml", "git", "gitdb", "smmap", "click", "annotated_types",
        "annotated_doc", "mdurl", "typing_extensions.py", "typing_inspection", "pygments", "markdown_it", "shellingham",
    )  # fmt: skip
    import typer

    site = Path(typer.__file__).parents[1]
    lean = tmp_path / "lean"
    lean.mkdir()
    for name in needed:
        if (site / name).exists():
            (lean / name).symlink_to(site / name)
    env = {"PATH": os.environ["PATH"], "PYTHONPATH": f"{lean}:{TOP}", "HOME": str(tmp_path)}
    command = [sys.executable, "-S", "-m", "turbo_optimize.cli.app", "doctor", "--json"]
    done = subprocess.run(command, env=env, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found = {f["name"]: f for f in json.loads(done.stdout)}
    for name in ("torch", "triton", "numpy"):
        assert found[name]["state"] == "missing"
        assert "pip install" in found[name]["mend"]


def test_an_nvidia_machine(cli: Cli, tmp_path: Path):
    tool(tmp_path / "bin", "nvidia-smi", NVIDIA)
    tool(tmp_path / "bin", "ncu", "#!/bin/sh\necho 'NVIDIA Nsight Compute'; echo 'Version 2025.1.1.0 (build 1)'\n")
    found = findings(cli, env={"PATH": f"{tmp_path / 'bin'}:{os.environ['PATH']}"})
    assert found["GPU"]["found"] == "2 × NVIDIA H200, sm_90, driver 570.1"
    assert found["clocks"]["state"] == "warn", "the second GPU is throttled, the first is only idle"
    assert "345 to 1980 MHz now, at most 1980 MHz" in found["clocks"]["found"]
    assert "(GPU 1: power cap, hardware thermal slowdown)" in found["clocks"]["found"]
    assert found["profilers"]["found"] == "ncu 2025.1.1.0"


def test_who_uses_the_gpu_and_what_it_tells(cli: Cli, tmp_path: Path):
    """NVML and nvidia-smi are played; a process that holds the second GPU's lock is real."""
    tool(tmp_path / "bin", "nvidia-smi", NVIDIA)
    tool(tmp_path / "bin", "pynvml.py", (TOP / "tests" / "effects" / "fake_nvml.py").read_text())
    env = {
        "PATH": f"{tmp_path / 'bin'}:{os.environ['PATH']}", "PYTHONPATH": f"{tmp_path / 'bin'}:{TOP}:{TOP / 'kernels'}",
        "TURBO_OPT_LOCKS": str(tmp_path / "locks"),
    }  # fmt: skip
    found = findings(cli, env=env)
    assert found["GPU use"] == {"name": "GPU use", "state": "ok", "found": "nobody's", "mend": ""}
    assert found["telemetry"] == {"name": "telemetry", "state": "ok", "found": "1980 MHz, 38 °C, 79 W", "mend": ""}
    assert not (tmp_path / "locks").exists(), "it only looked"
    with hold(Device("sm_90", "NVIDIA H200", "1"), folder=tmp_path / "locks"):
        told = {"pids": [1], "temp": "Not Supported", "event_reasons": 4}
        found = findings(cli, env=env | {"FAKE_NVML": json.dumps(told)})
    assert found["GPU use"]["state"] == "warn"
    assert "GPU 0: 1 foreign process (1) on NVIDIA H200" in found["GPU use"]["found"]
    assert f"GPU 1: a campaign of process {os.getpid()}" in found["GPU use"]["found"]
    assert found["telemetry"]["found"] == "1980 MHz, 79 W, power cap (temp_c: Not Supported)"
    only = findings(cli, env=env | {"CUDA_VISIBLE_DEVICES": "1", "FAKE_NVML": json.dumps(told)})
    assert "GPU 0" not in only["GPU use"]["found"]


def test_an_amd_machine(cli: Cli, tmp_path: Path):
    tool(tmp_path / "bin", "rocminfo", ROCM)
    tool(tmp_path / "bin", "rocm-smi", "#!/bin/sh\nprintf 'GPU[0]\\t\\t: sclk clock level: 1: (2100Mhz)\\n'\n")
    tool(tmp_path / "bin", "hipconfig", "#!/bin/sh\nprintf 6.4.43482-0f2d60242\n")
    found = findings(cli, env={"PATH": f"{tmp_path / 'bin'}:{os.environ['PATH']}"})
    assert found["GPU"]["found"].startswith("1 × AMD Instinct MI300X, gfx942, driver amdgpu")
    assert found["clocks"]["found"] == "2100 MHz now"
    assert "ROCm 6.4.43482" in found["toolkit"]["found"]
    assert found["profilers"]["found"] == "no rocprofv3, no rocprof-compute"


@pytest.mark.parametrize(
    ("version", "state"),
    [("2.5.1", "warn"), ("2.6.0", "ok"), ("2.13.0+cpu", "ok"), ("not installed", "missing")],
)
def test_torch_versions(monkeypatch: pytest.MonkeyPatch, version: str, state: str):
    monkeypatch.setattr(probe, "version", lambda package: version)
    assert next(doctor._torch(doctor.Place(Path(), ()))).state == state


@pytest.mark.parametrize(
    ("version", "state"), [("3.5.1", "warn"), ("3.6.0", "ok"), ("3.9.1", "ok"), ("3.10.0", "warn")]
)
def test_triton_versions(monkeypatch: pytest.MonkeyPatch, version: str, state: str):
    monkeypatch.setattr(probe, "version", lambda package: version)
    assert next(doctor._triton(doctor.Place(Path(), ()))).state == state


def test_numpy_beside_triton():
    assert doctor.numpy_finding("2.4.0", "3.6.0").state == "warn"
    assert doctor.numpy_finding("2.3.5", "3.6.0").state == "ok"
    assert doctor.numpy_finding("2.4.0", "3.7.0").state == "ok"


def journal(checkout: Path, name: str, gpu: str) -> Path:
    """A recorded campaign whose baseline was measured on the device called `gpu`."""
    file = Journal(checkout / "campaigns" / name / "journal.jsonl")
    for event in make_events(2):
        environment = getattr(event, "environment", None)
        file.append(event.model_copy(update={"environment": {"gpu": gpu}}) if environment else event)
    return file.path


def test_the_noise_floor_is_this_devices(cli: Cli, checkout: Path):
    old, new = journal(checkout, "old", "none"), journal(checkout, "new", "NVIDIA H200")
    os.utime(old, (1, 1))
    here = probe.environment()["gpu"]
    found = findings(cli, cwd=checkout)["noise floor"]
    assert ("0.23% a session" in found["found"]) == (here in ("none", "NVIDIA H200"))
    new.write_bytes(new.read_bytes().replace(b'"n":3', b'"n":9'))
    damaged = findings(cli, cwd=checkout)
    assert "line 3" in damaged["journal"]["found"]
    assert ("0.23%" in damaged["noise floor"]["found"]) == (here == "none")


def test_a_folder_that_can_not_be_written(checkout: Path):
    (checkout / "campaigns").write_text("a file")
    found = {f.name: f for f in doctor.examine(checkout)}["campaigns"]
    assert found.state == "warn"
    assert stat.S_ISREG((checkout / "campaigns").stat().st_mode), "it only looked"
