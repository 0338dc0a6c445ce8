"""undo, recover, replay, stop and diff over a campaign that was really run."""

from __future__ import annotations

import json
import subprocess
import time
from pathlib import Path

from tests import toy
from turbo_optimize.core.state import fold
from turbo_optimize.effects.store import read_events


def test_undo_takes_the_last_round_back(finished: Path) -> None:
    head = toy.git(finished, "rev-parse", "optimize/done")
    done = toy.run(finished, "undo", "5", "--json")
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert toy.git(finished, "rev-parse", "optimize/done") == told["commit"]
    assert toy.git(finished, "rev-parse", "optimize/done^") == head
    assert toy.git(finished, "show", f"optimize/done:{toy.CONFIG}") == toy.config_text(speed=2).rstrip("\n")
    events = read_events(finished / "campaigns/done/journal.jsonl")
    assert [e.kind for e in events[-3:]] == ["opened", "undo_decided", "undone"]
    assert [r.number for r in fold(events).accepted] == [2]


def test_undo_refuses_what_it_cannot_take_back(finished: Path) -> None:
    before = (finished / "campaigns/done/journal.jsonl").read_bytes()
    for number, said in (("2", "undo those first"), ("3", "not an accepted round"), ("9", "not an accepted round")):
        done = toy.run(finished, "undo", number)
        assert done.returncode == 2
        assert said in done.stderr
    assert (finished / "campaigns/done/journal.jsonl").read_bytes() == before


def test_undo_keeps_edits_that_wait_in_the_worktree(waiting: Path) -> None:
    config = waiting / "campaigns/hand/worktree" / toy.CONFIG
    config.write_text(toy.config_text(speed=2))
    assert toy.run(waiting, "validate", "--round", "2").returncode == 0
    config.write_text(toy.config_text(speed=4))
    done = toy.run(waiting, "undo", "2")
    assert done.returncode == 2
    assert "edits" in done.stderr
    assert config.read_text() == toy.config_text(speed=4)


def test_recover_brings_a_rolled_back_attempt_as_a_branch(finished: Path) -> None:
    done = toy.run(finished, "recover", "3", "--json")
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert told["branch"] == "turbo-opt/done/round-3"
    assert toy.git(finished, "show", f"{told['branch']}:{toy.CONFIG}") == toy.config_text(speed=5).rstrip("\n")
    assert toy.run(finished, "recover", "3").returncode == 0  # already there
    toy.git(finished, "branch", "-f", "turbo-opt/done/round-3", "main")
    again = toy.run(finished, "recover", "3")
    assert again.returncode == 2
    assert "rename or delete" in again.stderr
    assert toy.run(finished, "recover", "3", "--attempt", "2").returncode == 2


def test_every_attempt_of_a_repaired_round_stays(tmp_path: Path) -> None:
    """The sweep's best computes garbage, the next best is taken in its place: both are there afterwards."""
    repo = toy.make(tmp_path)
    done = toy.run(repo, "start", *toy.TOY, "--proposer", "search", "--max-rounds", "2", "--name", "found", "--yes")
    assert done.returncode == 0, done.stderr
    r = fold(read_events(repo / "campaigns/found/journal.jsonl")).rounds[1]
    assert (r.attempt, r.status) == (2, "ACCEPTED")
    assert toy.git(repo, "rev-parse", "refs/turbo-opt/found/round-2") == r.applied
    done = toy.run(repo, "recover", "2", "--attempt", "1", "--json")
    assert done.returncode == 0, done.stderr
    branch = json.loads(done.stdout)["branch"]
    assert branch == "turbo-opt/found/round-2-attempt-1"
    assert json.loads(toy.git(repo, "show", f"{branch}:{toy.CONFIG}"))["step"]["SPEED"] == 3
    assert toy.run(repo, "verify").returncode == 0
    toy.git(repo, "update-ref", "-d", "refs/turbo-opt/found/round-2-attempt-1")
    done = toy.run(repo, "verify")
    assert done.returncode == 1
    assert "round-2-attempt-1 is gone" in done.stdout


def test_replay_under_its_own_rules_repeats_every_verdict(finished: Path, tmp_path: Path) -> None:
    (tmp_path / "same.yaml").write_text("debug_retry: 1\n")
    done = toy.run(finished, "replay", "--policy", str(tmp_path / "same.yaml"), "--json")
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert told["first_difference"] is None
    assert [r["code"] for r in told["rounds"]] == [r["old_code"] for r in told["rounds"]]
    assert [r["verdict"] for r in told["rounds"]] == ["ACCEPTED", "ROLLBACK", "ROLLBACK", "ACCEPTED"]
    assert told["rounds"][0]["gain_pct"] > 20


def test_replay_says_what_was_never_measured_and_where_the_path_parts(finished: Path, tmp_path: Path) -> None:
    (tmp_path / "strict.yaml").write_text("confirm_sessions: 3\n")
    told = json.loads(toy.run(finished, "replay", "--policy", str(tmp_path / "strict.yaml"), "--json").stdout)
    first = told["rounds"][0]
    assert (first["verdict"], first["hypothetical"]) == ("UNDECIDABLE", False)
    assert first["why"].startswith("needs 2 more confirm sessions")
    assert told["first_difference"] == 2
    assert all(r["hypothetical"] for r in told["rounds"][1:])
    said = toy.run(finished, "replay", "--policy", str(tmp_path / "strict.yaml")).stdout
    assert "the path after round 2 is hypothetical" in said


def test_replay_with_higher_bars_turns_a_verdict(finished: Path, tmp_path: Path) -> None:
    (tmp_path / "bar.yaml").write_text("min_gain_pct: 1000\n")
    told = json.loads(toy.run(finished, "replay", "--policy", str(tmp_path / "bar.yaml"), "--json").stdout)
    assert (told["rounds"][0]["verdict"], told["rounds"][0]["code"]) == ("ROLLBACK", "D03")


def test_replay_names_a_bad_policy(finished: Path, tmp_path: Path) -> None:
    done = toy.run(finished, "replay", "--policy", "standart")
    assert done.returncode == 2
    assert "did you mean standard" in done.stderr
    (tmp_path / "bad.yaml").write_text("veto: 3\n")
    done = toy.run(finished, "replay", "--policy", str(tmp_path / "bad.yaml"))
    assert done.returncode == 1
    assert "veto" in done.stderr


def test_diff_between_two_rounds(finished: Path) -> None:
    done = toy.run(finished, "diff", "1", "5")
    assert done.returncode == 0, done.stderr
    assert '-    "SPEED": 1,\n+    "SPEED": 4,' in done.stdout
    told = json.loads(toy.run(finished, "diff", "2", "4", "--json").stdout)
    assert [row["shape"] for row in told["shapes"]] == ["8x8x8", "16x16x16"]
    assert all(row["n"] > 0 for row in told["shapes"])
    assert all(row["m"] is None for row in told["shapes"])  # round 4 computed garbage: never measured
    assert toy.run(finished, "diff", "1", "9").returncode == 2


def test_stop_without_a_runner_ends_and_reports(waiting: Path) -> None:
    done = toy.run(waiting, "stop", "--json")
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert (told["code"], told["reported"]) == ("T4", True)
    assert (waiting / "campaigns/hand/report/report.md").is_file()
    before = (waiting / "campaigns/hand/journal.jsonl").read_bytes()
    assert toy.run(waiting, "stop").returncode == 0  # it has ended: nothing to do
    assert (waiting / "campaigns/hand/journal.jsonl").read_bytes() == before


def test_stop_asks_a_runner(tmp_path: Path) -> None:
    repo = toy.make(tmp_path)
    words = ("start", *toy.TOY, "--proposer", "search", "--name", "live", "--yes", "--json")
    runner = subprocess.Popen(toy.command(*words), cwd=repo, env=toy.environment(), stdout=subprocess.PIPE, text=True)
    try:
        journal = repo / "campaigns/live/journal.jsonl"
        deadline = time.monotonic() + 60
        while not (journal.exists() and "baselined" in journal.read_text()):
            assert time.monotonic() < deadline
            time.sleep(0.05)
        done = toy.run(repo, "stop", "live")
        assert done.returncode == 0, done.stderr
        assert "ends after the present step" in done.stdout
        out, _ = runner.communicate(timeout=60)
    finally:
        runner.kill()
    told = json.loads(out.splitlines()[-1])
    assert (told["code"], told["reported"]) == ("T4", True)
