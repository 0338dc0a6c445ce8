"""The candidates of `tests.gpu.referee` through a campaign on a GPU, in as many calls as it takes.

    python -m tests.gpu.campaign FOLDER OUT SECONDS KIND… [--policy "field: value, …"] [--shapes "MxNxK,…"]

FOLDER keeps the repository and the campaign: a call with the same folder resumes. After SECONDS it is interrupted, as a user
would (Ctrl-C), and can be resumed. OUT gets what became of each candidate, where its time went, and the records.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import shutil
import signal
import subprocess
import sys
import tarfile
from pathlib import Path
from typing import Any

from tests.exploits.campaign import CHECKOUT, repository
from tests.gpu import referee

SHAPES = "4096x4096x4096,4096x28672x4096,4096x4096x14336,8192x6144x4096,2048x6144x4096"
GRACE_S = 60.0  # from the interrupt to the end of a call, then it is killed (and resumes all the same)
FIELDS = (
    "round",
    "candidate",
    "verdict",
    "code",
    "gain_pct",
    "low_pct",
    "high_pct",
    "sessions",
    "seconds",
    "parts",
    "reason",
)


def prepare(folder: Path, kinds: list[str], policy: str) -> Path:
    """The repository with its idling base, a patch a candidate, the policy."""
    folder.mkdir(parents=True)
    repo = repository(folder)
    text = (repo / "project.yaml").read_text()
    ours = '"kernels/turbo_kernels/gemm_fp8/triton_*.py"'
    assert ours in text
    (repo / "project.yaml").write_text(text.replace(ours, f'{ours}, "kernels/turbo_kernels/gemm_fp8/ops.py"'))
    referee.write(repo, referee.base(repo))
    referee.git(repo, "add", "--all")
    referee.git(repo, "commit", "--quiet", "-m", "An operator that idles for a known time")
    referee.patches(repo, folder / "patches", kinds)
    fields = [f.strip() for f in policy.split(",") if f.strip()]
    (folder / "policy.yaml").write_text("\n".join(["base: standard", "leave_one_out: false", *fields]) + "\n")
    return repo


def command(folder: Path, shapes: str, started: bool) -> list[str]:
    turbo_opt = [sys.executable, "-m", "turbo_optimize.cli.app"]
    if started:
        return [*turbo_opt, "resume"]
    return [
        *turbo_opt, "start", "--op", "gemm_fp8", "--backend", "TRITON", "--shapes", shapes, "--proposer", "patches",
        "--patches", str(folder / "patches"), "--policy", str(folder / "policy.yaml"), "--max-rounds", "119", "--yes",
    ]  # fmt: skip


def run(repo: Path, argv: list[str], seconds: float, log: Path) -> int:
    env = os.environ | {"PYTHONPATH": os.pathsep.join([str(CHECKOUT), os.environ.get("PYTHONPATH", "")])}
    with log.open("a") as out, subprocess.Popen(argv, cwd=repo, env=env, stdout=out, stderr=out) as process:
        try:
            return process.wait(seconds)
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGINT)
        try:
            return process.wait(GRACE_S)
        except subprocess.TimeoutExpired:
            process.kill()
            return process.wait()


def rounds(events: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """A row a decided round: the decision, the interval, seconds from proposal to decision and by part."""
    rows: list[dict[str, Any]] = []
    begun: dict[int, float] = {}
    titles: dict[int, str] = {}
    parts: dict[int, dict[str, float]] = {}
    for e in events:
        number = e.get("round", 0)
        if e["kind"] in ("analyzed", "proposed"):
            begun.setdefault(number, e["at"])
        if e["kind"] == "proposed":
            titles[number] = str(e.get("proposal", {}).get("hypothesis", ""))
        if e["kind"] == "spent":
            for name, s in e["parts"].items():
                of = parts.setdefault(number, {})
                of[name] = of.get(name, 0.0) + s
        if e["kind"] == "decided":
            d = e["decision"]
            rows.append({
                "round": number, "candidate": titles.get(number, ""), "verdict": d["verdict"], "code": d["code"],
                **{k: None if d[k] is None else round(d[k], 2) for k in ("gain_pct", "low_pct", "high_pct")},
                "sessions": d["sessions"], "seconds": round(e["at"] - begun.get(number, e["at"]), 1),
                "parts": " ".join(f"{k} {v:.1f}" for k, v in parts.get(number, {}).items()), "reason": d["reason"][:160],
            })  # fmt: skip
    return rows


def keep(campaign: Path, out: Path, name: str) -> None:
    """Decisions as CSV, journal, samples and the report, small; the rest of the campaign stays where it is."""
    events = [json.loads(line)["event"] for line in (campaign / "journal.jsonl").read_text().splitlines()]
    rows = rounds(events)
    with (out / f"{name}.csv").open("w", newline="") as f:
        writer = csv.DictWriter(f, FIELDS)
        writer.writeheader()
        writer.writerows(rows)
    with tarfile.open(out / f"{name}.tar.gz", "w:gz") as tar:
        for file in sorted(campaign.rglob("*")):
            if file.is_file() and file.suffix in (".jsonl", ".csv", ".md", ".yaml") and ".scratch" not in file.parts:
                tar.add(file, file.relative_to(campaign))
    for e in events:
        if e["kind"] == "baselined":
            kept = ("aa_floor_pct", "quads", "min_gain_pct", "resolves_pct", "noise_pct", "core_shapes")
            print({k: e.get(k) for k in kept})
        if e["kind"] == "spent" and e["round"] <= 1:
            print(e["round"], {k: round(v, 1) for k, v in e["parts"].items()})
    print(f"{events[-1]['at'] - events[0]['at']:.0f} s from the first event to the last, {len(rows)} rounds")
    for r in rows:
        interval = "" if r["gain_pct"] is None else f"{r['gain_pct']:+.2f} [{r['low_pct']:+.2f} {r['high_pct']:+.2f}]"
        print(f"{r['round']:3} {r['candidate'][:24]:24} {r['verdict'][:8]:8} {r['code']:4} {interval:24} {r['seconds']:5.1f} s  "
              f"{r['parts'][:90]}  {r['reason'][:70]}")  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("seconds", type=float)
    parser.add_argument("kinds", nargs="*")
    parser.add_argument("--policy", default="")
    parser.add_argument("--shapes", default=SHAPES)
    given = parser.parse_args()
    started = given.folder.exists()
    repo = given.folder / "repo" if started else prepare(given.folder, given.kinds, given.policy)
    given.out.mkdir(parents=True, exist_ok=True)
    log = given.folder / "run.log"
    code = run(repo, command(given.folder, given.shapes, started), given.seconds, log)
    shutil.copy(log, given.out / f"{given.folder.name}.log")
    campaigns = list((repo / "campaigns").glob("*/journal.jsonl"))
    if not campaigns:
        sys.exit(log.read_text()[-3000:])
    keep(campaigns[0].parent, given.out, given.folder.name)
    print(f"exit {code}; the log ends:\n{log.read_text()[-600:]}")


if __name__ == "__main__":
    main()
