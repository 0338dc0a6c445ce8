"""Writes every rendered file of a campaign directory from its state. Delete them all and this brings them back.

The clocks that a summary tells are read from the round's samples.csv.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path

from turbo_optimize.core.state import State
from turbo_optimize.reports import render
from turbo_optimize.reports.device import read_device

Write = Callable[[Path, str], None]

LOGS: dict[str, Callable[[State], str]] = {
    "logs/optimize.md": render.optimize_md,
    "logs/performance_trend.md": render.trend_md,
    "logs/cost.md": render.cost_md,
}
REPORTS: dict[str, Callable[[State], str]] = {
    "report/report.md": render.report_md,
    "report/data.json": render.report_json,
    "report/junit.xml": render.junit_xml,
}


def write_projections(state: State, campaign_dir: Path, write: Write, rounds: Iterable[int] | None = None) -> None:
    """Writes summaries, proposals and logs, and the report once the campaign has ended.

    `write(path, text)` makes the folders it needs. With `rounds`, only those rounds' summaries and proposals are
    written (what a running campaign does after each round); the logs, and the report if any, are always whole.
    """
    wanted = None if rounds is None else frozenset(rounds)
    for n, text in render.summaries(state, wanted, partial(read_device, campaign_dir)):
        write(campaign_dir / f"rounds/round-{n}/summary.md", text)
    for r in state.rounds:
        if r.proposal and (wanted is None or r.number in wanted):
            write(campaign_dir / f"rounds/round-{r.number}/proposal.json", r.proposal.model_dump_json(indent=2) + "\n")
    files = LOGS | REPORTS if state.terminated else LOGS
    for name, text_of in files.items():
        write(campaign_dir / name, text_of(state))
