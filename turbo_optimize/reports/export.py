"""What other programs read of a campaign: report/data.json and report/junit.xml."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ET
from typing import Any

from turbo_optimize.core.state import Round, State
from turbo_optimize.reports import lessons, referee, rounds, tables
from turbo_optimize.reports.text import clean

FORMAT = 1  # of data.json; counts up when a key changes its meaning or goes


def report_data(state: State) -> dict[str, Any]:
    """report/data.json; plain JSON values. Keys (percentages in percent, times in seconds, scores in `status.unit`):

    format       int, see FORMAT
    manifest     the manifest, or null
    status       where the campaign stands: tables.status_facts
    referee      what BASELINE and the gate self-test found: referee.facts
    final        the paired baseline-to-head measurement (events.Compared), or null; checkpoints: [those on the way]
    rejected     what objected to the rounds that rolled back: referee.rejected
    rounds       one object a round: rounds.round_row
    trend        the trend table, cells as text: {columns: [...], rows: [{column: text}]}
    gain_curve   product of accepted paired gains after each round
    leave_one_out, effective, ineffective, audit: lessons.py
    acceptance   the final gates [{code, ok, detail}], or null where there was no final acceptance
    cost         {parts_s, total_s, elapsed_s, overhead_pct, rounds: [...]}
    next_steps   [text], tips [{context, signal, takeaway, applicability}]
    environment  {name: text}, as found at the baseline
    """
    final = lessons.final_comparison(state)
    return {
        "format": FORMAT,
        "manifest": state.manifest.model_dump(mode="json") if state.manifest else None,
        "status": tables.status_facts(state),
        "referee": referee.facts(state),
        "final": final.model_dump(mode="json") if final else None,
        "checkpoints": [c.model_dump(mode="json") for c in referee.checkpoints(state)],
        "rejected": referee.rejected(state),
        "rounds": [rounds.round_row(state, r) for r in state.rounds],
        "trend": {"columns": list(tables.trend_columns(rounds.unit(state))), "rows": tables.trend_rows(state)},
        "gain_curve": tables.cumulative_gain_pct(state),
        "leave_one_out": lessons.leave_one_out(state),
        "effective": lessons.effective_directions(state),
        "ineffective": lessons.ineffective_directions(state),
        "audit": lessons.audit(state),
        "acceptance": [g.model_dump() for g in state.final.gates] if state.final else None,
        "cost": {**tables.cost_facts(state), "rounds": tables.cost_rows(state)},
        "next_steps": lessons.next_steps(state),
        "tips": list(lessons.tips(state) if state.tips is None else state.tips),
        "environment": environment(state),
    }


def report_json(state: State) -> str:
    """`report_data` as text, a line a top-level key. ValueError where a number isn't finite: JSON has none such."""
    lines = (f"{json.dumps(k)}: {json.dumps(v, allow_nan=False)}" for k, v in report_data(state).items())
    return "{\n" + ",\n".join(lines) + "\n}\n"


def environment(state: State) -> dict[str, str]:
    """The machine as found at the baseline, else as the manifest says."""
    found = state.baseline.environment if state.baseline else {}
    return dict(found or (state.manifest.environment if state.manifest else {}))


def junit_xml(state: State) -> str:
    """One test case a round and one a gate of the final acceptance.

    A rollback is a normal outcome and passes, with its decision as output; only a failed final acceptance fails. What
    wasn't finished (an open round, no final acceptance) is skipped.
    """
    name = state.manifest.campaign if state.manifest else "campaign"
    cases = [_round_case(name, r) for r in state.rounds]
    cases += _acceptance_cases(name, state)
    counts = {tag: sum(c.find(tag) is not None for c in cases) for tag in ("failure", "skipped")}
    suite = ET.Element(
        "testsuite", name=clean(name), tests=str(len(cases)), failures=str(counts["failure"]), errors="0",
        skipped=str(counts["skipped"]), time=f"{state.elapsed_s:.3f}",
    )  # fmt: skip
    suite.extend(cases)
    root = ET.Element("testsuites")
    root.append(suite)
    ET.indent(root)
    return '<?xml version="1.0" encoding="utf-8"?>\n' + ET.tostring(root, encoding="unicode") + "\n"


def _round_case(campaign: str, r: Round) -> ET.Element:
    title = clean(f"round {r.number}: {rounds.description(r)}")
    seconds = max(0.0, r.ended - r.started)
    case = ET.Element("testcase", classname=clean(campaign), name=title, time=f"{seconds:.3f}")
    line = clean(rounds.decision_line(r))
    if r.applied:
        ET.SubElement(case, "system-out").text = line
    else:
        ET.SubElement(case, "skipped", message=line)
    return case


def _acceptance_cases(campaign: str, state: State) -> list[ET.Element]:
    classname = clean(f"{campaign}.final")
    if state.final is None:
        case = ET.Element("testcase", classname=classname, name="final acceptance", time="0")
        ET.SubElement(case, "skipped", message="not done yet")
        return [case]
    cases = []
    for g in state.final.gates:
        case = ET.Element("testcase", classname=classname, name=f"final acceptance {g.code}", time="0")
        if not g.ok:
            ET.SubElement(case, "failure", message=clean(g.detail or g.code)).text = clean(g.detail)
        cases.append(case)
    return cases
