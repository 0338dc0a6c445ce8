"""The campaign directory: everything comes back from the journal, a round costs one summary, 1,000 rounds a second."""

from __future__ import annotations

import json
import shutil
import time
from pathlib import Path

from tests.factory import make_events
from turbo_optimize.core.models import Proposal
from turbo_optimize.core.state import fold
from turbo_optimize.reports.project import write_projections

REPORTS = {"report/report.md", "report/data.json", "report/junit.xml"}
LOGS = {"logs/optimize.md", "logs/performance_trend.md", "logs/cost.md"}


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")


def written(root: Path) -> dict[str, str]:
    return {p.relative_to(root).as_posix(): p.read_text(encoding="utf-8") for p in root.rglob("*") if p.is_file()}


def test_everything_is_written_and_comes_back_the_same(tmp_path: Path):
    state = fold(make_events(8))
    write_projections(state, tmp_path, write)
    first = written(tmp_path)
    summaries = {f"rounds/round-{n}/summary.md" for n in range(1, 9)}
    proposals = {f"rounds/round-{n}/proposal.json" for n in range(2, 9)}  # the baseline has none
    assert set(first) == summaries | proposals | LOGS | REPORTS
    shutil.rmtree(tmp_path / "rounds")
    write_projections(state, tmp_path, write)
    assert written(tmp_path) == first


def test_proposal_json_is_the_proposal(tmp_path: Path):
    state = fold(make_events(3))
    write_projections(state, tmp_path, write)
    data = json.loads((tmp_path / "rounds/round-3/proposal.json").read_text())
    assert Proposal.model_validate(data) == state.rounds[2].proposal


def test_a_running_campaign_has_no_report_and_writes_only_the_named_rounds():
    state = fold(make_events(8, finish=False))
    paths: list[str] = []
    write_projections(state, Path("c"), lambda p, _: paths.append(p.relative_to("c").as_posix()), rounds=[8])
    assert set(paths) == {"rounds/round-8/summary.md", "rounds/round-8/proposal.json"} | LOGS


def test_a_thousand_rounds_in_under_a_second():
    state = fold(make_events(1000))
    files: dict[Path, str] = {}
    write_projections(state, Path("c"), files.__setitem__)  # compiles the templates
    best = min(_timed(lambda: write_projections(state, Path("c"), files.__setitem__)) for _ in range(3))
    assert len(files) == 1000 + 999 + len(LOGS) + len(REPORTS)
    assert best < 1.0


def _timed(f) -> float:
    start = time.process_time()  # other work on the machine doesn't count
    f()
    return time.process_time() - start
