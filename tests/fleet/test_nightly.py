"""Nights: the gate against the last good one, failing campaigns, the files, the GPUs."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

from tests.fleet.conftest import FAKE, Run, runs
from turbo_optimize.core.errors import GateFailed, TurboOptError
from turbo_optimize.effects.devices import Device
from turbo_optimize.effects.repo import Repo
from turbo_optimize.effects.store import Lock
from turbo_optimize.fleet.nightly import Record, gate, records

GPUS = tuple(Device("gfx942", "AMD Instinct MI300X", str(i)) for i in range(2))


def failures(folder: Path) -> dict[str, str]:
    """Target -> message, of the JUnit file's failures."""
    root = ET.parse(folder / "junit.xml").getroot()
    found = {c.attrib["name"]: c.find("failure") for c in root.iter("testcase")}
    assert root.find("testsuite").attrib["failures"] == str(sum(f is not None for f in found.values()))  # type: ignore[union-attr]
    return {name: f.attrib["message"] for name, f in found.items() if f is not None}


# -- the gate ----------------------------------------------------------------------------------------------------------
def test_a_first_night_is_good_and_becomes_the_reference(night: Run):
    first, folder = night({"a": {"score": 100.0}})
    gate(first)
    assert folder.name == "20260601"
    assert first.good
    assert first.targets[0].reference is None
    assert failures(folder) == {}
    second, folder = night({"a": {"score": 98.0}})
    gate(second)
    assert folder.name == "20260601-2"
    entry = second.targets[0]
    assert entry.reference is not None
    assert (entry.reference.night, entry.reference.score) == ("20260601", 100.0)
    assert entry.change_pct == pytest.approx(-2.0)


def test_a_worse_night_fails_with_its_numbers_and_is_never_the_reference(night: Run):
    night({"a": {"score": 100.0}, "b": {"score": 50.0}})
    worse, folder = night({"a": {"score": 94.0}, "b": {"score": 50.0}})
    assert not worse.good
    with pytest.raises(GateFailed, match=r"1 regression \(a\)") as raised:
        gate(worse)
    assert raised.value.exit_code == 4
    said = failures(folder)
    assert list(said) == ["a"]
    for number in ("94 TFLOPS", "100 TFLOPS", "-6.00%", "threshold is 5%", "20260601"):
        assert number in said["a"]
    # Against the bad night 93 would be −1%; against the last good one it is −7%.
    third, _ = night({"a": {"score": 93.0}, "b": {"score": 50.0}})
    assert third.targets[0].regression
    assert third.targets[0].reference == worse.targets[0].reference
    # A whole bad night is no reference, not even for the target that was fine.
    fourth, _ = night({"a": {"score": 100.0}, "b": {"score": 50.0}})
    assert {e.reference.night for e in fourth.targets if e.reference} == {"20260601"}
    fifth, _ = night({"a": {"score": 100.0}, "b": {"score": 50.0}})
    assert {e.reference.night for e in fifth.targets if e.reference} == {"20260601-4"}


def test_the_threshold_is_the_files(night: Run):
    night({"a": {"score": 100.0}})
    exact, _ = night({"a": {"score": 95.0}})
    assert exact.good, "5% lower is not lower by more than 5%"
    strict, _ = night({"a": {"score": 92.0}}, regression_pct=2)
    assert strict.targets[0].regression


@pytest.mark.parametrize("field", ["op", "backend", "dtype", "shapes", "variant", "metric"])
def test_other_targets_are_not_compared(night: Run, field: str):
    night({"a": {"score": 100.0}})
    other, _ = night({"a": {"score": 1.0}}, targets={"a": {field: "another"}})
    assert other.good
    assert other.targets[0].reference is None


def test_a_renamed_target_is_compared(night: Run):
    night({"a": {"score": 100.0}})
    assert night({"b": {"score": 1.0}})[0].targets[0].regression


def test_other_gpus_and_other_names_are_not_compared(night: Run):
    night({"a": {"score": 100.0}}, devices=GPUS[:1])
    other = Device("gfx942", "AMD Instinct MI325X", "0")
    assert night({"a": {"score": 1.0}}, devices=[other])[0].good
    assert night({"a": {"score": 1.0}}, devices=GPUS[:1], name="another")[0].good
    assert not night({"a": {"score": 1.0}}, devices=GPUS[:1])[0].good


@pytest.mark.parametrize(
    ("play", "why"),
    [
        ({"exit": 1, "say": "no gfx950 on this machine"}, "exit 1: turbo-opt: no gfx950 on this machine"),
        ({"score": 100.0, "final_ok": False}, "the final acceptance failed"),
        ({"score": 100.0, "final_ok": None}, "the final acceptance failed"),
        ({"score": None}, "without a score"),
        ({"say": "not JSON"}, "no result"),
        ({"say": '{"campaign": "x"}'}, "no result"),
        ({"say": "NaN"}, "no result"),
    ],
)
def test_a_failing_campaign_fails_the_night(night: Run, play: dict, why: str):
    night({"a": {"score": 100.0}, "b": {"score": 50.0}})
    bad, folder = night({"a": play, "b": {"score": 50.0}})
    assert why in bad.targets[0].outcome.why
    assert bad.targets[1].outcome.ok, "the other campaigns go on"
    assert why in failures(folder)["a"]
    with pytest.raises(GateFailed, match=r"1 failing campaign \(a\)"):
        gate(bad)
    after, _ = night({"a": {"score": 99.0}, "b": {"score": 50.0}})
    assert after.targets[0].reference is not None
    assert after.targets[0].reference.night == "20260601"


def test_a_hanging_campaign_is_ended(night: Run, tmp_path: Path):
    began = time.monotonic()
    record, folder = night({"a": {"hang": True}, "b": {"score": 1.0}}, timeout="1s")
    assert time.monotonic() - began < 10
    assert "not done after 1 s" in failures(folder)["a"]
    assert [e.outcome.ok for e in record.targets] == [False, True]
    assert not (tmp_path / "a.runs").exists()


NIGHT = """
import signal
import sys
from pathlib import Path
import typer
from turbo_optimize.cli.app import edge
from turbo_optimize.cli.nightly import _ended_by_term
from turbo_optimize.effects.devices import Device
from turbo_optimize.effects.repo import Repo
from turbo_optimize.fleet import nightly
from turbo_optimize.fleet.config import Night
from turbo_optimize.fleet.executors import local

signal.signal(signal.SIGINT, signal.default_int_handler)  # a background job of a shell ignores it

def go():
    top, play, *fake = sys.argv[1:]
    target = {"name": "a", "op": "gemm", "backend": "TRITON", "policy": play}
    night = Night.model_validate({"name": "triton", "targets": [target]})
    with _ended_by_term():
        nightly.run(night, Repo.discover(Path(top)), Path(top, "nights"), local, start_command=fake,
                    devices=[Device("sm_90", "H200", "0")], locks=Path(top, "locks"))

try:
    edge(go)()
except typer.Exit as e:
    sys.exit(e.exit_code)
"""


def hanging(top: Path) -> int | None:
    """The process id that the hanging campaign has written, once it has."""
    lines = [x for log in top.glob("nights/*/a.log") for x in log.read_text().splitlines()]
    return next((int(x.split()[-1]) for x in lines if x.startswith("never ends ")), None)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_night_ends_its_campaigns(repo: Repo, tmp_path: Path, number: signal.Signals):
    (tmp_path / "a.play").write_text('{"hang": true}')
    command = [sys.executable, "-c", NIGHT, str(repo.top), str(tmp_path / "a.play"), *FAKE]
    runner = subprocess.Popen(command, cwd=Path(__file__).parents[2])
    deadline = time.monotonic() + 30
    while (campaign := hanging(repo.top)) is None:
        assert runner.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.05)
    assert Lock(repo.top / "locks" / "gpu-0.lock", "GPU").holder() == str(runner.pid)
    runner.send_signal(number)
    assert runner.wait(20) == 130
    with pytest.raises(ProcessLookupError):
        os.kill(campaign, 0)
    assert not list(repo.top.glob("nights/*/night.json")), "an interrupted night is no night"


# -- the files ---------------------------------------------------------------------------------------------------------
def test_the_record_reads_back_and_git_sees_nothing(night: Run, repo: Repo):
    record, folder = night({"a": {"score": 100.0}})
    assert Record.model_validate_json((folder / "night.json").read_text()) == record
    assert record.commit == repo.resolve("HEAD")
    assert record.targets[0].outcome.campaign == "gemm_20260601"
    assert subprocess.run(["git", "status", "--porcelain"], cwd=repo.top, capture_output=True, check=True).stdout == b""


def test_a_folder_that_was_there_is_not_hidden_from_git(night: Run, repo: Repo):
    (repo.top / "campaigns" / "nightly").mkdir(parents=True)
    night({"a": {"score": 100.0}})
    assert not (repo.top / "campaigns" / "nightly" / ".gitignore").exists()


def test_the_summary_says_what_its_numbers_are(night: Run):
    night({"a": {"score": 100.0}})
    _, folder = night({"a": {"score": 80.0}, "b": {"exit": 1, "say": "a | b <script>"}}, regression_pct=7.5)
    text = (folder / "summary.md").read_text()
    assert "different processes" in text
    assert "7.5% below the last good night" in text
    assert "| a | cpu | 80 TFLOPS | 100 TFLOPS (20260601) | -20.00% |" in text
    assert "1 regressed, 1 failed" in text
    assert r"a \| b \<script>" in text


def test_control_characters_stay_out_of_the_xml(night: Run):
    _, folder = night({"a": {"exit": 1, "say": "\x1b[31mred\x00\x0b <&> "}})
    assert "red" in failures(folder)["a"]


def test_a_damaged_record_is_named(night: Run):
    _, folder = night({"a": {"score": 100.0}})
    (folder / "night.json").write_text("{}")
    with pytest.raises(TurboOptError, match=r"20260601/night.json: not a night's record .*folder"):
        night({"a": {"score": 100.0}})


def test_nights_are_ordered_by_number(night: Run, repo: Repo):
    for score in range(100, 111):
        night({"a": {"score": float(score)}})
    found = records(repo.top / "campaigns" / "nightly", "triton")
    assert [r.night for r in found][-2:] == ["20260601-10", "20260601-11"]
    last, _ = night({"a": {"score": 110.0}})
    assert last.targets[0].reference is not None
    assert last.targets[0].reference.score == 110.0


# -- the GPUs ----------------------------------------------------------------------------------------------------------
def test_two_gpus_run_two_at_a_time_and_never_two_on_one(night: Run, tmp_path: Path):
    names = ("a", "b", "c", "d")
    record, _ = night({n: {"score": 1.0, "hold_s": 0.4} for n in names}, devices=GPUS)
    assert record.good
    found = runs(tmp_path, *names)
    assert {r["HIP_VISIBLE_DEVICES"] for r in found} == {"0", "1"}
    overlaps = [(x, y) for i, x in enumerate(found) for y in found[i + 1 :] if y["began"] < x["ended"]]
    assert overlaps, "two run side by side"
    assert all(x["HIP_VISIBLE_DEVICES"] != y["HIP_VISIBLE_DEVICES"] for x, y in overlaps)


def test_without_a_gpu_one_after_the_other(night: Run, tmp_path: Path):
    night({n: {"score": 1.0, "hold_s": 0.1} for n in ("a", "b")})
    first, second = runs(tmp_path, "a", "b")
    assert second["began"] >= first["ended"]
    assert first["HIP_VISIBLE_DEVICES"] is None


def test_a_target_gets_a_gpu_of_its_kind(night: Run, tmp_path: Path):
    mixed = (Device("gfx942", "MI300X", "0"), Device("sm_90", "H200", "1"))
    targets = {"a": {"gpu": "H200"}, "b": {"gpu": "MI300X"}, "c": {"gpu": "cpu"}}
    record, _ = night({n: {"score": 1.0} for n in targets}, targets=targets, devices=mixed)
    assert [e.outcome.gpu for e in record.targets] == ["sm_90", "gfx942", "cpu"]
    seen = {n: runs(tmp_path, n)[0] for n in targets}
    assert (seen["a"]["CUDA_VISIBLE_DEVICES"], seen["a"]["HIP_VISIBLE_DEVICES"]) == ("1", None)
    assert seen["b"]["HIP_VISIBLE_DEVICES"] == "0"
    assert (seen["c"]["CUDA_VISIBLE_DEVICES"], seen["c"]["HIP_VISIBLE_DEVICES"]) == (None, None)


def test_a_gpu_that_another_night_holds_is_left_alone(night: Run, tmp_path: Path):
    with GPUS[0].lock(tmp_path / "locks"):
        record, _ = night({n: {"score": 1.0} for n in ("a", "b")}, devices=GPUS)
        assert record.good
        assert {r["HIP_VISIBLE_DEVICES"] for r in runs(tmp_path, "a", "b")} == {"1"}
        record, folder = night({"a": {"score": 1.0}}, devices=GPUS[:1], timeout="1s")
        assert "no GPU became free in 1 s" in failures(folder)["a"]
    assert not Lock(tmp_path / "locks" / "gpu-1.lock", "GPU").held_by_other()
    assert night({"a": {"score": 1.0}}, devices=GPUS[:1])[0].good


def test_the_command_line_is_starts(night: Run, tmp_path: Path):
    options = {"gpu": "cpu", "max_rounds": 3, "max_duration": "30m", "target": ">5 TFLOPS", "seed": 0}
    night({"a": {"score": 1.0}}, targets={"a": options})
    argv = runs(tmp_path, "a")[0]["argv"]
    assert argv[-2:] == ["--yes", "--json"]
    given = dict(zip(argv[:-2:2], argv[1:-2:2], strict=True))
    given.pop("--policy")
    assert given == {
        "--op": "gemm", "--backend": "TRITON", "--gpu": "cpu", "--max-rounds": "3", "--max-duration": "30m",
        "--target": ">5 TFLOPS", "--seed": "0",
    }  # fmt: skip
    assert json.loads((tmp_path / "a.play").read_text()) == {"score": 1.0}
