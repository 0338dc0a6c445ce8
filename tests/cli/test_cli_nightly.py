"""turbo-opt nightly as a process, with the real `start` behind it."""

from __future__ import annotations

import json
import subprocess
import xml.etree.ElementTree as ET
from pathlib import Path

from tests.cli.conftest import Cli


def test_a_failing_campaign_is_exit_4_and_everything_is_written(cli: Cli, checkout: Path, tmp_path: Path):
    """An op that the project doesn't have: `start` says so, the night fails with its words."""
    config = tmp_path / "night.yaml"
    config.write_text("name: n\ntargets: [{op: gemmm, backend: TRITON, gpu: cpu}]\n")
    summary = tmp_path / "step.md"
    summary.write_text("before\n")
    done = cli("nightly", str(config), "--json", cwd=checkout, env={"GITHUB_STEP_SUMMARY": str(summary)})
    assert done.returncode == 4, done.stderr
    assert "1 failing campaign (gemmm_triton_cpu)" in done.stderr
    record = json.loads(done.stdout)
    assert "unknown op 'gemmm' — did you mean gemm" in record["targets"][0]["outcome"]["why"]
    folder = checkout / "campaigns" / "nightly" / record["night"]
    assert json.loads((folder / "night.json").read_text()) == record
    failure = next(ET.parse(folder / "junit.xml").getroot().iter("failure"))
    assert "did you mean gemm" in failure.attrib["message"]
    assert summary.read_text() == "before\n" + (folder / "summary.md").read_text()
    assert subprocess.run(["git", "status", "--porcelain"], cwd=checkout, capture_output=True, check=True).stdout == b""


def test_the_summary_is_the_output_in_a_pipe(cli: Cli, checkout: Path, tmp_path: Path):
    config = tmp_path / "night.yaml"
    config.write_text("name: n\ntargets: [{op: gemmm, backend: TRITON, gpu: cpu}]\n")
    done = cli("nightly", str(config), "--dir", str(tmp_path / "nights"), cwd=checkout)
    (folder,) = (tmp_path / "nights").glob("2*")
    assert done.stdout == (folder / "summary.md").read_text() + f"night: {folder}\n"
    assert "gemmm_triton_cpu: running on cpu" in done.stderr


def test_a_terminal_gets_a_live_line_a_campaign(cli: Cli, checkout: Path, tmp_path: Path):
    config = tmp_path / "night.yaml"
    config.write_text("name: n\ntargets: [{op: gemmm, backend: TRITON, gpu: cpu}]\n")
    done = cli("nightly", str(config), cwd=checkout, env={"FORCE_COLOR": "1", "TERM": "xterm"})
    assert done.returncode == 4
    assert "gemmm_triton_cpu \x1b[31mfailed" in done.stderr
    assert "\x1b[" in done.stdout, "the summary is rendered"


def test_errors_before_the_night_are_one_line(cli: Cli, checkout: Path, tmp_path: Path):
    config = tmp_path / "night.yaml"
    config.write_text("name: n\ntargts: []\n")
    done = cli("nightly", str(config), cwd=checkout)
    assert done.returncode == 1
    assert done.stderr.count("\n") == 1
    assert str(config) in done.stderr
    config.write_text("name: n\ntargets: [{op: gemm, backend: TRITON}]\n")
    done = cli("nightly", str(config), "--executor", "locl", cwd=checkout)
    assert done.returncode == 2
    assert "did you mean local?" in done.stderr
    assert "not inside a git checkout" in cli("nightly", str(config)).stderr
    assert not (checkout / "campaigns").exists()
