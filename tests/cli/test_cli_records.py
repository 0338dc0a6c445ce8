"""status, list, show, log and report: what a journal says, read beside a runner, by people, programs and pipes."""

from __future__ import annotations

import json
import resource
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.cli.conftest import TOP, Cli
from tests.factory import make_events, make_manifest
from turbo_optimize.core.events import Event
from turbo_optimize.core.models import Sample
from turbo_optimize.core.state import fold
from turbo_optimize.effects import store
from turbo_optimize.effects.replay import format_samples


def record(checkout: Path, events: Sequence[Event], name: str = "one") -> Path:
    """A campaign folder whose journal holds `events`, as a runner's journal does (without its fsyncs)."""
    root = checkout / "campaigns" / name
    root.mkdir(parents=True)
    lines, total = [], store.GENESIS
    for n, event in enumerate(events, start=1):
        line, total = store._encode(n, total, event)
        lines.append(line)
    (root / "journal.jsonl").write_text("".join(lines))
    return root


@pytest.fixture
def campaign(checkout: Path) -> Path:
    return record(checkout, make_events(12, undo=(5,)))


def test_status_says_where_a_campaign_stands(cli: Cli, checkout: Path, campaign: Path) -> None:
    done = cli("status", cwd=checkout)
    assert done.returncode == 0, done.stderr
    assert "12 of 12" in done.stdout
    assert "T3" in done.stdout
    assert "the campaign has ended" in done.stdout
    facts = json.loads(cli("status", "one", "--json", cwd=checkout).stdout)
    assert (facts["phase"], facts["rounds"], facts["undone"], facts["runner_pid"]) == ("DONE", 12, 1, None)


def test_status_names_the_runner_and_leaves_its_lock_and_journal_alone(
    cli: Cli, checkout: Path, campaign: Path
) -> None:
    journal = campaign / "journal.jsonl"
    with journal.open("ab") as f:
        f.write(b'{"n":9')  # a line that the runner is writing now
    before = journal.read_bytes()
    with store.Lock(campaign / ".lock", "x").acquire():
        facts = json.loads(cli("status", "--json", cwd=checkout).stdout)
        assert facts["runner_pid"] == (campaign / ".lock").read_text().strip()
        assert cli("report", cwd=checkout).returncode == 0
    assert journal.read_bytes() == before


def test_status_of_a_thousand_rounds_takes_under_two_seconds(cli: Cli, checkout: Path) -> None:
    record(checkout, make_events(1000, finish=False))
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = cli("status", cwd=checkout)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert "1000 of 1000" in done.stdout, done.stderr
    assert (after.ru_utime + after.ru_stime) - (before.ru_utime + before.ru_stime) < 2.0


@pytest.mark.parametrize(
    "words",
    [
        ("status",),
        ("list",),
        ("show", "3"),
        ("log",),
        ("log", "--events"),
        ("report",),
        ("verify",),
        ("diff", "1", "1"),
    ],
    ids=" ".join,
)
def test_reading_imports_nothing_heavy(words: tuple[str, ...], checkout: Path, campaign: Path) -> None:
    script = (
        "import sys, atexit\n"
        "heavy = {'torch', 'triton', 'pandas'}\n"
        "atexit.register(lambda: print('HEAVY', sorted(heavy & set(sys.modules)), file=sys.stderr))\n"
        "from turbo_optimize.cli.app import main\nmain()\n"
    )
    command = [sys.executable, "-c", script, *words]
    env = {"PYTHONPATH": str(TOP), "PATH": "/usr/bin:/bin"}
    done = subprocess.run(command, cwd=checkout, env=env, capture_output=True, text=True, check=False)
    assert "HEAVY []" in done.stderr


def test_list_shows_every_campaign(cli: Cli, checkout: Path, campaign: Path) -> None:
    record(checkout, make_events(3, finish=False), "two")
    assert [x["campaign"] for x in json.loads(cli("list", "--json", cwd=checkout).stdout)] == ["one", "two"]
    done = cli("list", cwd=checkout)
    assert done.returncode == 0
    assert "one" in done.stdout
    assert "two" in done.stdout


def test_list_of_none(cli: Cli, checkout: Path) -> None:
    assert "turbo-opt start" in cli("list", cwd=checkout).stdout
    assert json.loads(cli("list", "--json", cwd=checkout).stdout) == []


def test_list_goes_on_past_a_damaged_journal_and_says_so(cli: Cli, checkout: Path, campaign: Path) -> None:
    bad = record(checkout, make_events(3), "bad") / "journal.jsonl"
    bad.write_text(bad.read_text().replace('"n":4', '"n":5', 1))
    done = cli("list", cwd=checkout)
    assert done.returncode == 1
    assert "one" in done.stdout
    assert "line 4" in done.stderr
    told = {x["campaign"]: x for x in json.loads(cli("list", "--json", cwd=checkout).stdout)}
    assert "line 4" in told["bad"]["error"]
    assert told["one"]["phase"] == "DONE"


def test_show_has_the_round_in_full(cli: Cli, checkout: Path, campaign: Path) -> None:
    done = cli("show", "5", cwd=checkout)
    assert done.returncode == 0, done.stderr
    assert "UNDONE" in done.stdout
    assert "Hypothesis" in done.stdout
    data = json.loads(cli("show", "5", "-c", "one", "--json", cwd=checkout).stdout)
    assert (data["round"], data["status"]) == (5, "UNDONE")
    assert [g["code"] for g in data["gates"]] == ["G01", "G02", "G03", "G04"]


def test_status_tells_what_the_referee_can_see(cli: Cli, checkout: Path) -> None:
    found = {"resolves_pct": 0.94, "aa_floor_pct": 0.63}
    events = [e.model_copy(update=found) if e.kind == "baselined" else e for e in make_events(3)]
    record(checkout, events)
    shown = " ".join(cli("status", cwd=checkout).stdout.split())
    assert "3 to 6 sessions resolve 0.94% on these shapes" in shown
    assert "3 of 3 planted faults found" in shown
    told = json.loads(cli("status", "--json", cwd=checkout).stdout)["referee"]
    assert (told["resolves_pct"], told["aa_floor_pct"], len(told["self_test"])) == (0.94, 0.63, 3)


def test_show_has_the_clocks_of_samples_csv(cli: Cli, checkout: Path, campaign: Path) -> None:
    path = campaign / "rounds/round-2/artifacts/samples.csv"
    path.parent.mkdir(parents=True)
    measured = fold(make_events(12)).rounds[1].sessions[0]
    block = Sample(
        level=measured.level, session=measured.index, shape="x", quad=0, slot=0, role="A", calls=20, step_ms=1.0,
        wall_ms=20.0, clock_mhz=1755.0, temp_c=48.0,
    )  # fmt: skip
    path.write_text(format_samples([block]))
    assert "clock 1755 MHz (1755 … 1755)" in " ".join(cli("show", "2", cwd=checkout).stdout.replace("│", "").split())
    told = json.loads(cli("show", "2", "--json", cwd=checkout).stdout)
    assert told["device"]["temp_c"] == {"mean": 48.0, "low": 48.0, "high": 48.0}
    assert json.loads(cli("show", "3", "--json", cwd=checkout).stdout)["device"] is None


def test_show_of_no_such_round(cli: Cli, checkout: Path, campaign: Path) -> None:
    done = cli("show", "13", cwd=checkout)
    assert done.returncode == 2
    assert "1 to 12" in done.stderr


def test_log_has_rounds_or_events(cli: Cli, checkout: Path, campaign: Path) -> None:
    events = make_events(12, undo=(5,))
    assert len(json.loads(cli("log", "--json", cwd=checkout).stdout)) == 12
    told = json.loads(cli("log", "--events", "--json", cwd=checkout).stdout)
    assert [e["kind"] for e in told] == [e.kind for e in events]
    assert "undo_decided" in cli("log", "--events", cwd=checkout).stdout


def test_a_closed_pipe_is_quiet(cli: Cli, checkout: Path) -> None:
    record(checkout, make_events(200))
    env = {"PYTHONPATH": str(TOP), "PATH": "/usr/bin:/bin"}
    for words in (("log", "--events"), ("log", "--events", "--json"), ("show", "3")):
        with subprocess.Popen(
            [sys.executable, "-m", "turbo_optimize.cli.app", *words],
            cwd=checkout,
            env=env,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        ) as p:
            assert p.stdout is not None
            assert p.stderr is not None
            p.stdout.close()
            assert p.stderr.read() == b""


def test_report_rebuilds_every_file_from_the_journal(cli: Cli, checkout: Path, campaign: Path) -> None:
    first = cli("report", cwd=checkout)
    assert first.returncode == 0, first.stderr
    assert first.stdout.strip() == str(campaign / "report" / "report.md")
    written = {p: p.read_bytes() for p in campaign.rglob("*") if p.is_file() and p.name != "journal.jsonl"}
    names = {str(p.relative_to(campaign)) for p in written}
    assert {
        "manifest.yaml",
        "logs/optimize.md",
        "logs/cost.md",
        "report/data.json",
        "rounds/round-12/summary.md",
    } <= names
    for p in written:
        p.unlink()
    again = json.loads(cli("report", "--json", cwd=checkout).stdout)
    assert again["report"] == str(campaign / "report" / "report.md")
    assert {p: p.read_bytes() for p in written} == written


def test_report_of_a_campaign_that_goes_on(cli: Cli, checkout: Path) -> None:
    root = record(checkout, make_events(4, finish=False))
    assert cli("report", cwd=checkout).returncode == 0
    assert (root / "report" / "report.md").is_file()


def test_report_before_the_baseline(cli: Cli, checkout: Path) -> None:
    root = record(checkout, make_events(4)[:2])
    done = cli("report", cwd=checkout)
    assert done.returncode == 0, done.stderr
    assert (root / "manifest.yaml").is_file()


def test_unknown_campaign_has_its_nearest_name(cli: Cli, checkout: Path, campaign: Path) -> None:
    done = cli("status", "onne", cwd=checkout)
    assert done.returncode == 2
    assert "did you mean one" in done.stderr


def test_an_exact_match_survives_the_journal(checkout: Path) -> None:
    events = make_events(2, manifest=make_manifest())
    gated = next(e for e in events if e.kind == "gated")
    check = gated.checks[0].model_copy(update={"metrics": {"out_snr": float("inf")}})
    exact = gated.model_copy(update={"checks": (check,)})
    root = record(checkout, [*events[: events.index(gated)], exact])
    assert store.read_events(root / "journal.jsonl")[-1] == exact
