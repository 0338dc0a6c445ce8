"""verify: a whole campaign passes, and whatever is changed afterwards is named."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from tests import toy
from turbo_optimize.core.verifying import Finding
from turbo_optimize.effects.layout import Layout
from turbo_optimize.effects.repo import Repo
from turbo_optimize.effects.store import _chain
from turbo_optimize.verify import verify

BRANCH = "optimize/done"


def findings(repo: Path) -> list[Finding]:
    return verify(Layout(repo / "campaigns" / "done"), Repo.discover(repo))


def mismatches(repo: Path) -> set[tuple[str, str]]:
    return {(f.check, f.where) for f in findings(repo) if not f.ok}


def edit(path: Path, change: Callable[[str], str]) -> None:
    before = path.read_text()
    after = change(before)
    assert after != before
    path.write_text(after)


def lines_of(repo: Path) -> tuple[Path, list[str]]:
    path = repo / "campaigns/done/journal.jsonl"
    return path, path.read_text().splitlines(keepends=True)


def index_of(lines: list[str], kind: str, round: int) -> int:
    return next(i for i, x in enumerate(lines) if f'"kind":"{kind}","round":{round},' in x)


def bump(text: str) -> str:
    """The first number's first digit behind the point, counted up by one."""
    return re.sub(r"(\d\.)(\d)", lambda m: f"{m[1]}{(int(m[2]) + 1) % 10}", text, count=1)


def test_a_whole_campaign_passes(finished: Path) -> None:
    done = toy.run(finished, "verify", "--json")
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert told["ok"] is True
    checks = {f["check"] for f in told["findings"]}
    assert checks == {
        "journal", "manifest.yaml", "harness", "samples.csv", "CSV hash", "score", "noise", "quads", "verdict",
        "final gain", "lineage", "commit", "ref", "patch", "rendered files",
    }  # fmt: skip
    assert sum(f["check"] == "verdict" for f in told["findings"]) == 4


def test_a_mismatch_is_a_row_and_exit_1(finished: Path) -> None:
    edit(finished / "campaigns/done/rounds/round-2/artifacts/benchmark.csv", bump)
    done = toy.run(finished, "verify")
    assert done.returncode == 1
    assert "MISMATCH" in done.stdout
    assert "benchmark.csv is not what was recorded" in done.stdout
    assert "don't match" in done.stderr


def test_a_number_of_benchmark_csv(finished: Path) -> None:
    edit(finished / "campaigns/done/rounds/round-2/artifacts/benchmark.csv", bump)
    assert ("CSV hash", "round 2") in mismatches(finished)


def test_a_csv_that_no_longer_reads(finished: Path) -> None:
    edit(finished / "campaigns/done/rounds/round-5/artifacts/benchmark.csv", lambda t: t.replace("PASS", "PAST", 1))
    said = {(f.check, f.where): f.detail for f in findings(finished) if not f.ok}
    assert "C20" in said["score", "round 5"]


def test_a_number_of_samples_csv(finished: Path) -> None:
    path = finished / "campaigns/done/rounds/round-5/artifacts/samples.csv"
    edit(path, bump)
    assert {("samples.csv", "round 5"), ("quads", "round 5")} <= mismatches(finished)
    path.unlink()
    assert {("samples.csv", "round 5"), ("quads", "round 5")} <= mismatches(finished)


def test_the_baselines_samples(finished: Path) -> None:
    edit(finished / "campaigns/done/rounds/round-1/artifacts/samples.csv", bump)
    assert {("samples.csv", "round 1"), ("noise", "round 1")} <= mismatches(finished)


def test_the_published_gains_samples(finished: Path) -> None:
    edit(finished / "campaigns/done/report/artifacts/final/samples.csv", bump)
    assert mismatches(finished) == {("final gain", "report")}


def test_an_edited_journal_line(finished: Path) -> None:
    path, lines = lines_of(finished)
    i = index_of(lines, "decided", 3)
    lines[i] = lines[i].replace("ROLLBACK", "ACCEPTED")
    path.write_text("".join(lines))
    found = mismatches(finished)
    assert ("journal", f"line {i + 1}") in found
    assert ("verdict", "round 3") in found
    assert [w for c, w in found if c == "journal"] == [f"line {i + 1}"]  # the lines after it are fine


def test_an_edited_journal_line_with_its_chain_mended(finished: Path) -> None:
    """Somebody who knows the format rewrites all sums: the evidence still contradicts the word."""
    path, lines = lines_of(finished)
    i = index_of(lines, "decided", 3)
    lines[i] = lines[i].replace("ROLLBACK", "ACCEPTED")
    previous, out = "turbo-opt", []
    for n, line in enumerate(lines, start=1):
        body = line[line.index('"event":') + len('"event":') : -2]
        previous = _chain(previous, body)
        out.append(f'{{"n":{n},"sum":"{previous}","event":{body}}}\n')
    path.write_text("".join(out))
    found = mismatches(finished)
    assert not [w for c, w in found if c == "journal"]
    assert ("verdict", "round 3") in found
    assert ("lineage", BRANCH) in found


def test_a_deleted_journal_line(finished: Path) -> None:
    path, lines = lines_of(finished)
    i = index_of(lines, "measured", 2)
    del lines[i]
    path.write_text("".join(lines))
    said = {(f.check, f.where): f.detail for f in findings(finished) if not f.ok}
    assert [w for c, w in said if c == "journal"] == [f"line {i + 1}"]
    assert "of round 2" in said["journal", f"line {i + 1}"]
    assert ("verdict", "round 2") in said
    assert not [w for c, w in said if w in ("round 3", "round 4", "round 5")]  # the others are checked, and fine


def test_an_unreadable_journal_line_says_what_it_was(finished: Path) -> None:
    path, lines = lines_of(finished)
    i = index_of(lines, "applied", 5)
    lines[i] = lines[i].replace("{", "[", 1)
    path.write_text("".join(lines))
    said = {(f.check, f.where): f.detail for f in findings(finished) if not f.ok}
    assert said["journal", f"line {i + 1}"] == "not a journal line; lost: applied of round 5"
    assert ("lineage", BRANCH) in said


def test_every_line_of_a_round_lost(finished: Path) -> None:
    path, lines = lines_of(finished)
    path.write_text("".join(x for x in lines if '"round":3,' not in x))
    said = {(f.check, f.where): f.detail for f in findings(finished) if not f.ok}
    assert any(c == "journal" for c, _ in said)
    assert not [w for c, w in said if c in ("verdict", "quads", "score")]


def test_the_targets_line_lost(finished: Path) -> None:
    path, lines = lines_of(finished)
    path.write_text("".join(["x\n", *lines[1:]]))
    said = {(f.check, f.where): f.detail for f in findings(finished)}
    assert "not a journal line" in said["journal", "line 1"]
    assert said["verdict", "round 5"] == ""  # judged by the target that manifest.yaml has


def test_a_torn_tail_is_no_error(finished: Path) -> None:
    path, lines = lines_of(finished)
    path.write_text("".join(lines) + '{"n":99,"su')
    found = findings(finished)
    assert all(f.ok for f in found)
    assert any("11 bytes" in f.detail for f in found if f.check == "journal")


def test_an_amended_branch(finished: Path) -> None:
    tree, parent = toy.git(finished, "rev-parse", f"{BRANCH}^{{tree}}"), toy.git(finished, "rev-parse", f"{BRANCH}^")
    other = toy.git(finished, "commit-tree", tree, "-p", parent, "-m", "mine")
    toy.git(finished, "update-ref", f"refs/heads/{BRANCH}", other)
    assert ("lineage", BRANCH) in mismatches(finished)


def test_a_commit_on_top_of_the_branch(finished: Path) -> None:
    head = toy.git(finished, "rev-parse", BRANCH)
    other = toy.git(finished, "commit-tree", f"{BRANCH}^{{tree}}", "-p", head, "-m", "mine")
    toy.git(finished, "update-ref", f"refs/heads/{BRANCH}", other)
    assert mismatches(finished) == {("lineage", BRANCH)}


def test_a_branch_that_is_gone(finished: Path) -> None:
    toy.git(finished, "update-ref", "-d", f"refs/heads/{BRANCH}")
    assert ("lineage", "base") in mismatches(finished)


@pytest.mark.parametrize("name", ["round-1", "round-2", "round-3", "round-5"])
def test_a_dropped_or_moved_ref(finished: Path, name: str) -> None:
    ref = f"refs/turbo-opt/done/{name}"
    other = toy.git(finished, "rev-parse", "refs/turbo-opt/done/round-4")
    toy.git(finished, "update-ref", ref, other)
    assert mismatches(finished) == {("ref", name)}
    toy.git(finished, "update-ref", "-d", ref)
    assert mismatches(finished) == {("ref", name)}


def test_an_edited_harness(finished: Path) -> None:
    edit(finished / "campaigns/done/quick_test_bench.py", lambda t: t + "\n# faster\n")
    assert mismatches(finished) == {("harness", "quick_test_bench.py")}


def test_an_edited_adapter_of_the_base_tree(finished: Path) -> None:
    base = toy.git(finished, "rev-parse", "HEAD")
    edit(Layout(finished / "campaigns/done").tree(base) / "bench/toy_adapter.py", lambda t: t + "\n# passes\n")
    assert mismatches(finished) == {("harness", "quick_test_bench.py")}


def test_an_edited_manifest(finished: Path) -> None:
    edit(finished / "campaigns/done/manifest.yaml", lambda t: t.replace("max_rounds: 30", "max_rounds: 31"))
    said = [f.detail for f in findings(finished) if not f.ok]
    assert said == ["differs from the journal in max_rounds"]
    assert toy.run(finished, "report").returncode == 0  # what `resume` tells to do about it
    assert not mismatches(finished)


def test_rendered_files_that_are_gone(finished: Path) -> None:
    for name in ("logs/cost.md", "rounds/round-3/summary.md", "report/data.json"):
        (finished / "campaigns/done" / name).unlink()
    (found,) = [f for f in findings(finished) if not f.ok]
    assert found.check == "rendered files"
    assert all(name in found.detail for name in ("logs/cost.md", "rounds/round-3/summary.md", "report/data.json"))


@pytest.mark.parametrize(
    ("name", "check"),
    [
        ("report/report.md", "rendered files"),
        ("report/data.json", "rendered files"),
        ("report/junit.xml", "rendered files"),
        ("logs/performance_trend.md", "rendered files"),
        ("rounds/round-2/summary.md", "rendered files"),
        ("rounds/round-2/proposal.json", "rendered files"),
        ("rounds/round-2/patch.diff", "patch"),
        (f"rounds/round-2/kernel_snapshot/{toy.CONFIG}", "patch"),
    ],
)
def test_a_file_that_says_something_else_is_named(finished: Path, name: str, check: str) -> None:
    path = finished / "campaigns/done" / name
    path.write_text(path.read_text() + "+99%\n")
    (found,) = [f for f in findings(finished) if not f.ok]
    assert found.check == check
    assert name.rsplit("round-2/", maxsplit=1)[-1] in found.detail


def test_an_undone_round_is_part_of_the_lineage(finished: Path) -> None:
    assert toy.run(finished, "undo", "5").returncode == 0
    found = findings(finished)
    assert all(f.ok for f in found)
    assert ("commit", "round 5 undone") in {(f.check, f.where) for f in found}


def test_an_edited_target_in_the_journal_is_named_not_a_bug(finished: Path) -> None:
    path, lines = lines_of(finished)
    lines[0] = lines[0].replace("16x16x16", "17x17x17")
    path.write_text("".join(lines))
    found = mismatches(finished)
    assert ("journal", "line 1") in found
    assert ("score", "round 2") in found


def test_a_lost_project_file(finished: Path) -> None:
    (finished / "campaigns/done/project.yaml").unlink()
    said = {(f.check, f.where): f.detail for f in findings(finished) if not f.ok}
    assert "no such file" in said["harness", "quick_test_bench.py"]


def test_a_crash_between_a_decision_and_its_fact_is_no_mismatch(finished: Path) -> None:
    """Git may be one step ahead of the journal there, and nowhere else."""
    path, lines = lines_of(finished)
    first = toy.git(finished, "rev-list", "--reverse", f"main..{BRANCH}").split("\n")[0]
    toy.git(finished, "update-ref", f"refs/heads/{BRANCH}", first)
    path.write_text("".join(lines[: index_of(lines, "decided", 2) + 1]))
    assert not mismatches(finished)
    path.write_text("".join(lines[: index_of(lines, "decided", 2)]))
    assert mismatches(finished) == {("lineage", BRANCH), ("ref", "round-2")}


def test_a_crash_within_a_session_is_no_mismatch(finished: Path) -> None:
    """The files hold a session that the journal doesn't speak of yet; what it speaks of is checked in them."""
    path, lines = lines_of(finished)
    patched = json.loads(lines[index_of(lines, "patched", 2)])["event"]["commit"]
    toy.git(finished, "update-ref", f"refs/heads/{BRANCH}", "main")
    toy.git(finished, "update-ref", "refs/turbo-opt/done/round-2", patched)
    path.write_text("".join(lines[: index_of(lines, "measured", 2) + 1]))
    found = findings(finished)
    assert all(f.ok for f in found)
    assert ("samples.csv", "round 2") in {(f.check, f.where) for f in found}
    edit(finished / "campaigns/done/rounds/round-2/artifacts/samples.csv", bump)
    assert {("samples.csv", "round 2"), ("quads", "round 2")} <= mismatches(finished)
