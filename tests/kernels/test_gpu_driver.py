"""tests/gpu/library.py without a GPU: a part that fails or hangs doesn't stop the next, and what was found is summed up."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

import pytest

from tests.gpu import accuracy, library


def part(code: str) -> list[str]:
    return [sys.executable, "-c", code]


def test_parts_go_on_after_a_failure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(library, "GRACE_S", 0.5)
    hangs = (
        "import signal, time; signal.signal(signal.SIGINT, signal.SIG_IGN); print('begun', flush=True); time.sleep(60)"
    )
    commands = {"bad": part("print('oh'); raise SystemExit(3)"), "hangs": part(hangs), "good": part("print('done')")}
    monkeypatch.setattr(library, "parts", lambda folder, seconds, workers: commands)
    start = time.monotonic()
    assert library.main([str(tmp_path), "--seconds", "2"]) == 1
    assert time.monotonic() - start < 30
    told = json.loads((tmp_path / "summary.json").read_text())
    assert {name: p["exit"] for name, p in told.items()} == {"bad": 3, "hangs": 124, "good": 0}
    assert (tmp_path / "bad.log").read_text() == "oh\n"
    assert library.main([str(tmp_path), "--only", "good"]) == 0


def test_an_unknown_part_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        library.main([str(tmp_path), "--only", "nothing"])
    assert "no part nothing; there are tests, accuracy" in capsys.readouterr().err


def test_counts_and_worst_are_read(tmp_path: Path) -> None:
    (tmp_path / "junit.xml").write_text(
        '<testsuites><testsuite tests="9" failures="1" errors="2" skipped="3"/></testsuites>'
    )
    assert library.counts(tmp_path / "junit.xml")["passed"] == 3
    (tmp_path / "accuracy.csv").write_text(
        "op,variant,dtype,kind,dims,check,worst_snr_db,note\n"
        "gemm,default,bf16,small,M1,PASS,50.0,\ngemm,default,bf16,odd,M3,PASS,48.5,\n"
        "gemm,default,bf16,real,M9,FAIL,3.0,da: bad\ngemm,default,fp32,small,M1,PASS,inf,\n"
    )
    found = library.worst(tmp_path / "accuracy.csv")
    assert found["gemm default bf16"] == {"shapes": 2, "worst_snr_db": 48.5, "wrong": ["FAIL real M9: da: bad"]}
    assert found["gemm default fp32"]["worst_snr_db"] is None
    told = library.summary(tmp_path, {"tests": (1, 2.0), "suite": (0, 3.0)})
    assert told["tests"]["found"]["failures"] == 1 and "found" not in told["suite"]


def test_accuracy_of_small_and_odd_shapes(tmp_path: Path) -> None:
    out = tmp_path / "a.csv"
    assert accuracy.main([str(out), "--op", "gemm,gemm_fp8"]) == 0
    found = library.worst(out)
    assert {"gemm default bf16", "gemm default fp32", "gemm_fp8 blockwise bf16"} <= set(found)
    assert all(f["shapes"] and f["worst_snr_db"] > 20 for f in found.values())
    assert accuracy.main([str(out), "--op", "gemm", "--seconds", "0"]) == 1  # nothing was looked at
