"""validate: a person drives a manual campaign; a closed round is measured again without a trace."""

from __future__ import annotations

import json
from pathlib import Path

from tests import toy
from turbo_optimize.core.state import State, fold
from turbo_optimize.effects.store import read_events


def state(repo: Path, name: str) -> State:
    return fold(read_events(repo / "campaigns" / name / "journal.jsonl"))


def edit(repo: Path, text: str) -> None:
    (repo / "campaigns/hand/worktree" / toy.CONFIG).write_text(text)


def test_an_open_round_is_measured_decided_and_applied(waiting: Path) -> None:
    edit(waiting, toy.config_text(speed=2))
    done = toy.run(waiting, "validate", "--round", "2", "--hypothesis", "half the sleep\nof before", "--json")
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert (told["verdict"], told["code"], told["level"]) == ("ACCEPTED", "D00", "quick")
    assert told["gain_pct"] > 20
    assert "--round 3" in told["next"]
    assert toy.git(waiting, "show", f"optimize/hand:{toy.CONFIG}") == toy.config_text(speed=2).rstrip("\n")
    subject = toy.git(waiting, "log", "-1", "--format=%s", "optimize/hand")
    assert subject == "[optimize] toy TRITON round-2: half the sleep of before"
    s = state(waiting, "hand")
    assert s.rounds[1].proposal is not None
    assert s.rounds[1].proposal.risk == "low"
    assert s.current is not None
    assert s.current.number == 3


def test_a_slower_edit_is_rolled_back_and_kept_under_its_ref(waiting: Path) -> None:
    edit(waiting, toy.config_text(speed=5))
    done = toy.run(waiting, "validate", "--round", "2")
    assert done.returncode == 0, done.stderr
    assert "ROLLBACK" in done.stdout
    assert "turbo-opt validate --round 3" in done.stdout
    assert (waiting / "campaigns/hand/worktree" / toy.CONFIG).read_text() == toy.config_text()
    kept = toy.git(waiting, "show", f"refs/turbo-opt/hand/round-2:{toy.CONFIG}")
    assert kept == toy.config_text(speed=5).rstrip("\n")


def test_level_full_demands_the_full_validation(tmp_path: Path) -> None:
    """A gain of this size is taken on the representative shapes alone; at level full all target shapes decide."""
    repo = toy.make(tmp_path)
    shapes = ("--shapes", "8x8x8,16x16x16,24x24x24")
    done = toy.run(
        repo, "start", *toy.TOY, *shapes, "--proposer", "manual", "--name", "hand", "--max-rounds", "9", "--yes"
    )
    assert done.returncode == 0, done.stderr
    for number, speed, level in ((2, 2, ()), (3, 4, ("--level", "full"))):
        edit(repo, toy.config_text(speed=speed))
        done = toy.run(repo, "validate", "--round", str(number), *level)
        assert done.returncode == 0, done.stderr
    quick, full = state(repo, "hand").rounds[1:3]
    assert (quick.status, full.status) == ("ACCEPTED", "ACCEPTED")
    assert "full" not in {s.level for s in quick.sessions}
    (session,) = [s for s in full.sessions if s.level == "full"]
    assert len(session.quads) == 3
    told = json.loads(toy.run(repo, "validate", "--round", "2", "--level", "full", "--json").stdout)
    assert told["repeats"] is True
    assert told["full_gain_pct"] > 0
    assert toy.run(repo, "verify").returncode == 0


def test_nothing_edited_is_refused_and_costs_no_round(waiting: Path) -> None:
    before = (waiting / "campaigns/hand/journal.jsonl").read_bytes()
    done = toy.run(waiting, "validate", "--round", "2")
    assert done.returncode == 2
    assert "nothing was changed" in done.stderr
    assert (waiting / "campaigns/hand/journal.jsonl").read_bytes() == before


def test_another_round_than_the_open_one_is_refused(waiting: Path) -> None:
    edit(waiting, toy.config_text(speed=2))
    for number, said in (("1", "round 2 is open"), ("3", "no round 3")):
        done = toy.run(waiting, "validate", "--round", number)
        assert done.returncode == 2
        assert said in done.stderr
    assert toy.run(waiting, "validate", "--round", "2", "--level", "deep").returncode == 2


def test_the_time_of_editing_does_not_count(waiting: Path) -> None:
    kinds = [e.kind for e in read_events(waiting / "campaigns/hand/journal.jsonl")]
    edit(waiting, toy.config_text(speed=5))
    assert toy.run(waiting, "validate", "--round", "2").returncode == 0
    new = [e.kind for e in read_events(waiting / "campaigns/hand/journal.jsonl")][len(kinds) :]
    assert new[:3] == ["opened", "proposed", "patched"]


def test_a_closed_round_is_measured_again_and_leaves_no_trace(finished: Path) -> None:
    root = finished / "campaigns/done"
    before = {
        p: p.read_bytes() for p in root.rglob("*") if p.is_file() and p.name != ".lock" and "worktree" not in p.parts
    }
    refs = toy.git(finished, "for-each-ref")
    for number, verdict in ((2, "ACCEPTED"), (3, "ROLLBACK"), (4, "ROLLBACK")):
        done = toy.run(finished, "validate", "--round", str(number), "--json")
        assert done.returncode == 0, done.stderr
        told = json.loads(done.stdout)
        assert (told["repeats"], told["verdict"]) == (True, verdict)
        assert told["full_gain_pct"] is None
    after = {
        p: p.read_bytes() for p in root.rglob("*") if p.is_file() and p.name != ".lock" and "worktree" not in p.parts
    }
    assert after == before
    assert toy.git(finished, "for-each-ref") == refs


def test_a_closed_round_again_at_level_full(finished: Path) -> None:
    done = toy.run(finished, "validate", "--round", "3", "--level", "full", "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["full_gain_pct"] < 0
    said = toy.run(finished, "validate", "--round", "2", "--level", "full").stdout
    assert "over all 2 shapes" in said
    assert "the verdict repeats" in said


def test_a_verdict_that_does_not_repeat_is_said(finished: Path) -> None:
    """The accepted attempt's ref is moved to the slower one: what is measured is what the ref holds."""
    slower = toy.git(finished, "rev-parse", "refs/turbo-opt/done/round-3")
    toy.git(finished, "update-ref", "refs/turbo-opt/done/round-5", slower)
    done = toy.run(finished, "validate", "--round", "5")
    assert done.returncode == 0, done.stderr
    assert "does not repeat" in done.stdout


def test_a_campaign_held_by_a_runner_is_not_validated(finished: Path) -> None:
    from turbo_optimize.effects.store import Lock

    with Lock(finished / "campaigns/done/.lock", "x").acquire():
        done = toy.run(finished, "validate", "--round", "2")
    assert done.returncode == 1
    assert "is held by process" in done.stderr


def test_status_says_what_a_manual_campaign_waits_for(waiting: Path) -> None:
    told = toy.run(waiting, "status").stdout
    assert "validate --round 2" in " ".join(told.split())
    assert "resume" not in told
