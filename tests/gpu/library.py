"""Everything about the operator library that wants a GPU, in one call:

    python -m tests.gpu.library FOLDER [--seconds S] [--only tests,accuracy,suite,llama] [--workers N]

Each part is a process of its own with `--seconds` of time; a part that fails or hangs doesn't stop the next. FOLDER gets
junit.xml, accuracy.csv, suite.csv and suite.svg, llama.csv, a log a part, and summary.json: exit codes, seconds, counts of
tests, the worst SNR of every operator. Exits 1 if any part did.
"""

from __future__ import annotations

import argparse
import csv
import json
import math
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

ROOT = Path(__file__).parents[2]
GRACE_S = 20.0  # from the interrupt to the kill: pytest and the suite write their files then
SUITE_SHARE = 0.8  # of a part's time, for the parts that know how to end by themselves


def parts(folder: Path, seconds: float, workers: int) -> dict[str, list[str]]:
    python, inside = sys.executable, str(round(seconds * SUITE_SHARE))
    pytest = [
        python,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        f"--junitxml={folder / 'junit.xml'}",
        "tests/kernels",
    ]
    suite = ["--csv", str(folder / "suite.csv"), "--plot", str(folder / "suite.svg"), "--budget", inside]
    found = {
        "tests": [*pytest, *(["-n", str(workers), "--dist", "worksteal"] if workers > 1 else [])],
        "accuracy": [python, "-m", "tests.gpu.accuracy", str(folder / "accuracy.csv"), "--seconds", inside],
        "suite": [python, "-m", "turbo_kernels.suite", "--quick", *suite],
        "llama": [python, "-m", "tests.kernels.llama_block", "--csv", str(folder / "llama.csv")],
    }
    return (
        found if (ROOT / "tests/kernels/llama_block.py").exists() else {k: v for k, v in found.items() if k != "llama"}
    )


def run(command: Sequence[str], log: Path, seconds: float) -> tuple[int, float]:
    """(exit code, seconds); 124 where the time was up: interrupted, then killed with all that it started."""
    env = os.environ | {
        "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "kernels"), os.environ.get("PYTHONPATH", "")])
    }
    start = time.monotonic()
    with log.open("w") as out, subprocess.Popen(
        command, cwd=ROOT, env=env, stdout=out, stderr=subprocess.STDOUT, start_new_session=True
    ) as process:  # fmt: skip
        try:
            code = process.wait(seconds)
        except subprocess.TimeoutExpired:
            code = 124
            for what, grace in ((signal.SIGINT, GRACE_S), (signal.SIGKILL, None)):
                os.killpg(process.pid, what)
                try:
                    process.wait(grace)
                    break
                except subprocess.TimeoutExpired:
                    continue
    return code, time.monotonic() - start


def counts(junit: Path) -> dict[str, int]:
    """Of tests: passed, failed, errors, skipped."""
    total = dict.fromkeys(("tests", "failures", "errors", "skipped"), 0)
    for suite in ElementTree.parse(junit).getroot().iter("testsuite"):
        for name in total:
            total[name] += int(suite.get(name, 0))
    return total | {"passed": total["tests"] - total["failures"] - total["errors"] - total["skipped"]}


def worst(accuracy: Path) -> dict[str, dict[str, Any]]:
    """By operator, variant and dtype: the least SNR over shapes that passed, how many there were, what was wrong."""
    found: dict[str, dict[str, Any]] = {}
    with accuracy.open(newline="", encoding="utf-8") as f:
        for r in csv.DictReader(f):
            own = found.setdefault(
                f"{r['op']} {r['variant']} {r['dtype']}", {"shapes": 0, "worst_snr_db": None, "wrong": []}
            )
            if r["check"] == "PASS":
                own["shapes"] += 1
                if math.isfinite(db := float(r["worst_snr_db"])):
                    own["worst_snr_db"] = min(db, own["worst_snr_db"] or math.inf)
            else:
                own["wrong"].append(f"{r['check']} {r['kind']} {r['dims']}: {r['note']}")
    return found


def summary(folder: Path, done: Mapping[str, tuple[int, float]]) -> dict[str, Any]:
    """What the parts left, as far as they came."""
    read = {"tests": ("junit.xml", counts), "accuracy": ("accuracy.csv", worst)}
    told: dict[str, Any] = {name: {"exit": code, "seconds": round(s, 1)} for name, (code, s) in done.items()}
    for name, (file, reader) in read.items():
        if name in told and (folder / file).exists():
            told[name]["found"] = reader(folder / file)
    return told


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--seconds", type=float, default=420.0, help="the most that a part may take")
    parser.add_argument("--only", help="parts, comma-separated")
    parser.add_argument("--workers", type=int, default=1, help="pytest workers")
    args = parser.parse_args(argv)
    folder = args.folder.resolve()
    folder.mkdir(parents=True, exist_ok=True)
    all_parts = parts(folder, args.seconds, args.workers)
    chosen = args.only.split(",") if args.only else list(all_parts)
    if unknown := [name for name in chosen if name not in all_parts]:
        parser.error(f"no part {', '.join(unknown)}; there are {', '.join(all_parts)}")
    done: dict[str, tuple[int, float]] = {}
    for name in chosen:
        done[name] = run(all_parts[name], folder / f"{name}.log", args.seconds)
        code, seconds = done[name]
        print(f"{name}: exit {code} after {seconds:.0f} s; its log ends:", flush=True)
        print("\n".join((folder / f"{name}.log").read_text(errors="replace").splitlines()[-8:]), flush=True)
        (folder / "summary.json").write_text(
            json.dumps(summary(folder, done), indent=1)
        )  # after each: a call may be cut
    return 1 if any(code for code, _ in done.values()) else 0


if __name__ == "__main__":
    sys.exit(main())
