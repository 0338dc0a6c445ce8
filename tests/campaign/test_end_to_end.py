"""Whole campaigns on the toy through the command line: what they leave, how they end, what can't stop them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.campaign.conftest import Shared
from tests.toy import (
    CONFIG,
    KERNEL,
    TOY,
    campaign_of,
    command,
    config_text,
    environment,
    git,
    make,
    patch_text,
    patches,
    run,
)
from turbo_optimize import engine
from turbo_optimize.core.state import Round, State, fold
from turbo_optimize.effects.layout import Layout
from turbo_optimize.effects.repo import Repo
from turbo_optimize.effects.store import read_events


def state_of(repo: Path) -> State:
    return fold(read_events(campaign_of(repo) / "journal.jsonl"))


def decided(repo: Path) -> list[tuple[int, str, str]]:
    return [(r.number, r.decision.verdict.value, r.decision.code) for r in state_of(repo).rounds if r.decision]


def reason(repo: Path, number: int) -> str:
    r = state_of(repo).round(number)
    assert isinstance(r, Round)
    assert r.decision
    return r.decision.reason


def start(repo: Path, *args: str, **kwargs: Any) -> dict[str, Any]:
    """`turbo-opt start … --json`, which must succeed: the facts on its last line."""
    done = run(repo, "start", *TOY, *args, "--json", **kwargs)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def branch_of(repo: Path) -> str:
    return f"optimize/{campaign_of(repo).name}"


def subjects(repo: Path, ref: str) -> list[str]:
    return git(repo, "log", "--reverse", "--format=%s", f"main..{ref}").splitlines()


def folder_of(tmp: Path, *texts: str) -> Path:
    folder = tmp / "own-patches"
    folder.mkdir()
    for n, text in enumerate(texts, start=1):
        (folder / f"{n:04}.patch").write_text(text)
    return folder


# -- the four patches --------------------------------------------------------------------------------------------------
@pytest.fixture(scope="session")
def ended(shared: Shared) -> Path:
    """A campaign over the four patches, ended by its rounds (T3). Only looked at."""

    def fill(folder: Path) -> None:
        facts = start(make(folder), "--patches", str(patches(folder)), "--max-rounds", "5")
        (folder / "facts.json").write_text(json.dumps(facts))

    return shared("ended", fill) / "toy"


def test_outcome_of_the_four_patches(ended: Path) -> None:
    facts = json.loads((ended.parent / "facts.json").read_text())
    assert (facts["code"], facts["rounds"], facts["accepted"], facts["final_ok"]) == ("T3", 5, 2, True)
    assert facts["gain_pct"] > 100
    assert decided(ended) == [
        (2, "ACCEPTED", "D00"), (3, "ROLLBACK", "D02"), (4, "ROLLBACK", "G04"), (5, "ACCEPTED", "D00")
    ]  # fmt: skip


FILES = (
    "manifest.yaml", "journal.jsonl", "quick_test_bench.py", "logs/optimize.md", "logs/performance_trend.md",
    "logs/cost.md", "report/report.md", "report/data.json", "report/junit.xml", "worktree/.git",
    *(f"rounds/round-{n}/summary.md" for n in range(1, 6)),
    *(f"rounds/round-{n}/proposal.json" for n in range(2, 6)),
    *(f"rounds/round-{n}/patch.diff" for n in range(2, 6)),
    *(f"rounds/round-{n}/kernel_snapshot/{CONFIG}" for n in range(2, 6)),
    *(f"rounds/round-{n}/artifacts/{name}" for n in (1, 2, 3, 5) for name in ("benchmark.csv", "samples.csv")),
)  # fmt: skip


@pytest.mark.parametrize("name", FILES)
def test_files_of_a_campaign(ended: Path, name: str) -> None:
    assert (campaign_of(ended) / name).stat().st_size > 0


def test_branch_holds_what_was_accepted_and_nothing_else(ended: Path) -> None:
    branch = branch_of(ended)
    assert subjects(ended, branch) == [
        "[optimize] toy TRITON round-2: twice as fast", "[optimize] toy TRITON round-5: four times as fast"
    ]  # fmt: skip
    assert git(ended, "show", f"{branch}:{CONFIG}") + "\n" == config_text(speed=4)
    body = git(ended, "log", "-1", "--format=%B", branch)
    name = campaign_of(ended).name
    for line in ("Hypothesis: four times as fast", "Result: D00", f"Campaign: {name}", "Round: 5", "Score: "):
        assert line in body
    assert git(ended, "log", "-1", "--format=%an <%ae>", branch) == "Toy Maker <toy@example.com>"
    assert git(ended, "rev-parse", f"{branch}~2") == git(ended, "rev-parse", "main")


def test_every_attempt_has_a_ref_on_its_parent(ended: Path) -> None:
    name, state = campaign_of(ended).name, state_of(ended)
    for r in state.rounds[1:]:
        ref = f"refs/turbo-opt/{name}/round-{r.number}"
        assert git(ended, "rev-parse", f"{ref}^") == r.parent
        assert git(ended, "diff", "--name-only", f"{ref}^", ref) == CONFIG
    assert [
        git(ended, "show", f"refs/turbo-opt/{name}/round-{n}:{CONFIG}").split("SPEED")[1][3] for n in range(2, 6)
    ] == [*"2534"]


def test_rollback_leaves_the_branch(ended: Path) -> None:
    three, four, five = state_of(ended).rounds[2:]
    assert three.applied == three.parent == four.parent == four.applied == five.parent
    assert git(ended, "status", "--porcelain", "--branch") == "## main"
    worktree = campaign_of(ended) / "worktree"
    assert git(worktree, "status", "--porcelain", "--branch", "--ignored") == f"## {branch_of(ended)}"


def test_going_on_after_the_end_changes_nothing(ended: Path) -> None:
    before = [e.kind for e in read_events(campaign_of(ended) / "journal.jsonl")]
    done = run(ended, "resume")
    assert done.returncode == 0, done.stderr
    kinds = [e.kind for e in read_events(campaign_of(ended) / "journal.jsonl")]
    assert [k for k in kinds if k != "opened"] == [k for k in before if k != "opened"]


# -- other proposers ---------------------------------------------------------------------------------------------------
def test_search_repairs_with_its_next_best_and_ends_when_nothing_is_left(tmp_path: Path) -> None:
    repo = make(tmp_path)
    assert start(repo)["code"] == "T6"
    assert decided(repo) == [(2, "ACCEPTED", "D00"), (3, "ACCEPTED", "D00"), (4, "ROLLBACK", "D02")]
    two = state_of(repo).round(2)
    assert two
    assert two.attempt == 2
    name = campaign_of(repo).name
    first = git(repo, "show", f"refs/turbo-opt/{name}/round-2-attempt-1:{CONFIG}")
    assert '"SPEED": 3' in first  # the fastest in the sweep, and wrong
    assert git(repo, "show", f"{branch_of(repo)}:{CONFIG}") + "\n" == config_text(speed=4, lanes=2)


def test_manual_rounds_wait_for_a_person(tmp_path: Path) -> None:
    repo = make(tmp_path)
    assert start(repo, "--proposer", "manual", "--max-rounds", "3")["reported"] is False
    edited = campaign_of(repo) / "worktree" / CONFIG
    edited.write_text(config_text(speed=2))
    waiting = run(repo, "resume")
    assert waiting.returncode == 0, waiting.stderr
    assert edited.read_text() == config_text(speed=2)  # nothing is lost by going on
    done = run(repo, "validate", "--round", "2", "--hypothesis", "half the sleep", "--json")
    assert done.returncode == 0, done.stderr
    assert decided(repo) == [(2, "ACCEPTED", "D00")]
    assert subjects(repo, branch_of(repo)) == ["[optimize] toy TRITON round-2: half the sleep"]
    again = run(repo, "validate", "--round", "3")
    assert again.returncode == 2
    assert "nothing was changed" in again.stderr


def test_a_proposal_that_changes_nothing_is_d08(tmp_path: Path) -> None:
    repo = make(tmp_path)
    start(repo, "--proposer", "manual", "--max-rounds", "2")
    c, lock = engine.open_campaign(Layout(campaign_of(repo)), Repo.discover(repo))
    with lock:
        engine.begin(c, "validate")
        engine.propose_worktree(c, 2, "as it is")
        engine.run(c)
    assert decided(repo) == [(2, "ROLLBACK", "D08")]
    assert subjects(repo, branch_of(repo)) == []


# -- endings -----------------------------------------------------------------------------------------------------------
ENDS = {
    "T1": ("--target", ">0.000000001 TFLOPS"),
    "T5": ("--max-duration", "1s"),
    "T6": ("--max-rounds", "9"),
}


@pytest.mark.parametrize("code", ENDS)
def test_ends(tmp_path: Path, code: str) -> None:
    repo = make(tmp_path)
    folder = folder_of(tmp_path, _speed(repo, 2))
    facts = start(repo, "--patches", str(folder), *ENDS[code])
    assert facts["code"] == code
    assert facts["reported"]
    assert facts["rounds"] in {"T1": (1,), "T5": (1, 2), "T6": (2,)}[code]


def _speed(repo: Path, speed: int) -> str:
    return patch_text(repo, {CONFIG: config_text(speed)}, f"speed {speed}")


def test_a_raised_budget_goes_on_also_over_a_torn_tail(tmp_path: Path) -> None:
    repo = make(tmp_path)
    assert start(repo, "--patches", str(patches(tmp_path)), "--max-rounds", "2")["code"] == "T3"
    journal = campaign_of(repo) / "journal.jsonl"
    whole = journal.read_bytes()
    journal.write_bytes(whole + whole[: len(whole) // 3].rpartition(b"\n")[2])
    done = run(repo, "resume", "--max-rounds", "3", "--json")
    assert done.returncode == 0, done.stderr
    facts = json.loads(done.stdout.splitlines()[-1])
    assert (facts["code"], facts["rounds"], facts["accepted"]) == ("T3", 3, 1)
    assert journal.read_bytes().startswith(whole)
    assert decided(repo) == [(2, "ACCEPTED", "D00"), (3, "ROLLBACK", "D02")]


# -- where accepted changes go -----------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("args", "ref"),
    [
        (("--branch", "none"), "refs/turbo-opt/c/head"),
        (("--no-commit",), "refs/turbo-opt/c/head"),
        (("--branch", "mine/faster"), "refs/heads/mine/faster"),
    ],
)
def test_branch_options(tmp_path: Path, args: tuple[str, ...], ref: str) -> None:
    repo = make(tmp_path)
    start(repo, "--patches", str(folder_of(tmp_path, _speed(repo, 2))), "--max-rounds", "2", "--name", "c", *args)
    assert subjects(repo, ref) == ["[optimize] toy TRITON round-2: speed 2"]
    heads = git(repo, "for-each-ref", "--format=%(refname)", "refs/heads/").splitlines()
    assert heads == sorted({"refs/heads/main", *([ref] if ref.startswith("refs/heads") else [])})
    assert git(repo / "campaigns/c/worktree", "rev-parse", "HEAD") == git(repo, "rev-parse", ref)


# -- bad candidates ----------------------------------------------------------------------------------------------------
def edited_kernel(repo: Path, old: str, new: str, subject: str) -> str:
    text = git(repo, "show", f"HEAD:{KERNEL}") + "\n"
    assert text.count(old) == 1
    return patch_text(repo, {KERNEL: text.replace(old, new)}, subject)


def _hang(repo: Path) -> str:
    """It answers its check, then never ends a timed block."""
    text = git(repo, "show", f"HEAD:{KERNEL}") + "\n"
    text = text.replace("import json\n", "import itertools\nimport json\n")
    hang = "def work(share):\n    if next(calls) > 4:\n        time.sleep(600)\n"
    text = text.replace("def work(share):\n", f"calls = itertools.count()\n\n\n{hang}")
    return patch_text(repo, {KERNEL: text}, "hangs")


CANDIDATES: tuple[tuple[Callable[[Path], str], str, str], ...] = (
    (lambda r: patch_text(r, {"bench/toy_adapter.py": "check = None\n"}, "kind"), "G01", "bench/toy_adapter.py"),
    (
        lambda r: edited_kernel(r, "    work(FORWARD_SHARE)\n", "    raise RuntimeError('boom')\n", "raises"),
        "G04",
        "boom",
    ),
    (
        lambda r: edited_kernel(r, "    work(FORWARD_SHARE)\n", "    work(FORWARD_SHARE\n", "no Python"),
        "G03",
        "not Python",
    ),
    (lambda r: edited_kernel(r, "import time\n", "import time\nimport nowhere\n", "no module"), "G03", "nowhere"),
    (lambda r: _speed(r, 2).replace('"SPEED": 1', '"SPEED": 9'), "G03", "doesn't apply"),
    (_hang, "L01", "no answer to trial within 3 s"),
)


def test_bad_candidates_are_named_and_the_campaign_goes_on(tmp_path: Path) -> None:
    repo = make(tmp_path)
    folder = folder_of(tmp_path, *(text(repo) for text, _, _ in CANDIDATES), _speed(repo, 4))
    policy = tmp_path / "hasty.yaml"
    policy.write_text("block_timeout_s: 1\ncompile_timeout_s: 3\n")
    facts = start(repo, "--patches", str(folder), "--policy", str(policy))
    assert facts["code"] == "T6"
    last = len(CANDIDATES) + 2
    codes = [code for _, code, _ in CANDIDATES]
    assert decided(repo) == [
        *((n, "ROLLBACK", code) for n, code in enumerate(codes, start=2)),
        (last, "ACCEPTED", "D00"),
    ]
    for n, (_, _, word) in enumerate(CANDIDATES, start=2):
        assert word in reason(repo, n)
    assert subjects(repo, branch_of(repo)) == [f"[optimize] toy TRITON round-{last}: speed 4"]


def test_a_failure_on_a_heldout_shape_leaves_nothing_for_the_next_round(tmp_path: Path) -> None:
    """The base's twin answers beside the candidate: an answer that nobody waited for must not be taken for a later one."""
    repo = make(tmp_path)
    line = "    work(FORWARD_SHARE)\n"
    raises = edited_kernel(repo, line, "    if len(a) % 2:\n        raise RuntimeError('odd')\n" + line, "raises")
    wrong = edited_kernel(repo, line, line + "    if len(a) % 2:\n        return [0.0 for _ in a]\n", "wrong")
    start(repo, "--patches", str(folder_of(tmp_path, raises, wrong, raises, _speed(repo, 4))), "--max-rounds", "5")
    assert [code for _, _, code in decided(repo)] == ["K13", "K04", "K13", "D00"]
    assert "odd" in reason(repo, 2)


def test_a_heldout_shape_that_the_base_itself_cannot_run_objects_to_nobody(tmp_path: Path) -> None:
    repo = make(tmp_path)
    line, marker = "    work(FORWARD_SHARE)\n", tmp_path / "odd sizes are refused"
    text = (repo / KERNEL).read_text()
    raises = f"    if len(a) % 2 and Path({str(marker)!r}).exists():\n        raise RuntimeError('odd')\n"
    (repo / KERNEL).write_text(text.replace(line, raises + line))
    git(repo, "commit", "--quiet", "--all", "-m", "Refuses odd sizes, one day")
    start(repo, "--patches", str(folder_of(tmp_path, _speed(repo, 4))), "--max-rounds", "1")
    marker.touch()  # no more than PREPARE's shapes happened to show
    assert run(repo, "resume", "--max-rounds", "2").returncode == 0
    assert decided(repo) == [(2, "ACCEPTED", "D00")]


# -- interruptions -----------------------------------------------------------------------------------------------------
@contextmanager
def runner(repo: Path, *args: str) -> Iterator[subprocess.Popen[str]]:
    """A runner in a session of its own, as a terminal has it."""
    process = subprocess.Popen(
        command(*args), cwd=repo, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        start_new_session=True,
    )  # fmt: skip
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def wait_for(process: subprocess.Popen[str], word: str) -> None:
    assert process.stderr
    for line in process.stderr:
        if word in line:
            return
    raise AssertionError(f"ended without {word!r}")


def interrupt(process: subprocess.Popen[str]) -> None:
    os.killpg(process.pid, signal.SIGINT)  # as a terminal's ^C: to the runner and whatever runs in its group


@pytest.mark.parametrize("moment", ["adding the worktree", "aa session", "screen session"])
def test_one_interrupt_ends_after_the_step_and_reports(tmp_path: Path, moment: str) -> None:
    repo = make(tmp_path)
    with runner(repo, "start", *TOY, "--patches", str(patches(tmp_path)), "--json") as process:
        wait_for(process, moment)
        interrupt(process)
        out, err = process.communicate(timeout=60)
    assert process.returncode == 0, err
    facts = json.loads(out.splitlines()[-1])
    assert (facts["code"], facts["reported"]) == ("T4", True)
    assert (campaign_of(repo) / "report/report.md").is_file()
    assert facts["rounds"] == {"adding the worktree": 0, "aa session": 1, "screen session": 2}[moment]
    again = run(repo, "resume", "--max-rounds", "3", "--json")
    assert again.returncode == 0, again.stderr
    assert json.loads(again.stdout.splitlines()[-1])["code"] == "T3"
    assert decided(repo) == [(2, "ACCEPTED", "D00"), (3, "ROLLBACK", "D02")]


def test_two_interrupts_leave_at_once_and_resume_finishes(tmp_path: Path) -> None:
    repo = make(tmp_path)
    with runner(repo, "start", *TOY, "--patches", str(patches(tmp_path)), "--max-rounds", "3") as process:
        wait_for(process, "screen session")
        interrupt(process)
        wait_for(process, "stopping after this step")
        began = time.monotonic()
        interrupt(process)
        process.wait(timeout=10)
        assert time.monotonic() - began < 2
    assert process.returncode == 130
    assert not state_of(repo).terminated
    done = run(repo, "resume")
    assert done.returncode == 0, done.stderr
    assert decided(repo) == [(2, "ACCEPTED", "D00"), (3, "ROLLBACK", "D02")]


def test_second_runner_is_refused_in_one_line(tmp_path: Path) -> None:
    repo = make(tmp_path)
    with runner(repo, "start", *TOY, "--patches", str(patches(tmp_path))) as process:
        wait_for(process, "aa session")
        second = run(repo, "resume")
        assert second.returncode == 1
        assert second.stderr.splitlines() == [
            f"turbo-opt: campaign {campaign_of(repo).name} is held by process {process.pid} — "
            "wait for it, or end it with `turbo-opt stop`"
        ]


# -- weight caches -----------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(("share", "accepted"), [("30.0", True), ("0.5", False), ("1 / 0", False)])
def test_a_weight_caches_gain_is_capped_by_what_the_weight_takes(tmp_path: Path, share: str, accepted: bool) -> None:
    """`search` moves one parameter, as bucket W1; the toy's harness says how much of a step depends on the weight."""
    repo = make(tmp_path)
    project, adapter = repo / "project.yaml", repo / "bench/toy_adapter.py"
    project.write_text(project.read_text().replace("params: [SPEED],", "params: [SPEED], bucket: W1,"))
    adapter.write_text(adapter.read_text() + f"\n\ndef weight_share():\n    return {share}\n")
    git(repo, "commit", "--quiet", "--all", "-m", "A weight cache")
    start(repo, "--max-rounds", "2")
    two = state_of(repo).round(2)
    assert two
    assert two.proposal
    assert two.decision
    assert two.proposal.bucket == "W1"
    if accepted:
        assert two.decision.accepted
        assert two.cap_pct == pytest.approx(100 * 30 / 70)
        assert two.decision.gain_pct == two.cap_pct  # it measures as over 100%
    elif share == "1 / 0":  # it can't be told: no gain is claimed, and the campaign goes on
        assert two.cap_pct is None
        assert "ZeroDivisionError" in two.decision.reason
        assert not two.decision.accepted
    else:
        assert (two.decision.code, two.cap_pct) == ("D09", pytest.approx(100 * 0.5 / 99.5))
