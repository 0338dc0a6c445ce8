"""A night's record for people (summary.md) and for test dashboards (junit.xml). Pure."""

from __future__ import annotations

import xml.etree.ElementTree as ET

from turbo_optimize.fleet.nightly import Entry, Record
from turbo_optimize.reports.text import NONE, TIMES_NOTE, clean, duration, inline, md_table, num, pct, short

COLUMNS = ("Target", "GPU", "Score", "Last good night", "Change", "Gain", "Rounds", "Result")


def summary_md(record: Record) -> str:
    """The night as Markdown: the verdict, a table, and what its numbers may be read as."""
    bad = [f"{len(record.regressions)} regressed"] * bool(record.regressions)
    bad += [f"{len(record.failing)} failed"] * bool(record.failing)
    head = f"# Night {record.night} of {inline(record.name)}: {'good' if record.good else ', '.join(bad)}"
    count = len(record.targets)
    facts = f"{count} campaign{'s' * (count > 1)} at commit {short(record.commit)}, begun {record.created}."
    parts = [head, facts, md_table(COLUMNS, [_row(e) for e in record.targets]), _reading(record)]
    if any(e.outcome.gpu == "cpu" for e in record.targets):
        parts.append(f"Of cpu campaigns: {TIMES_NOTE}.")
    return "\n\n".join(parts) + "\n"


def _reading(record: Record) -> str:
    return (
        "Scores of two nights are absolute numbers of different processes, on clocks and temperatures of their own:"
        " they move by some percent when nothing has changed. So only a score more than"
        f" {record.regression_pct:g}% below the last good night's counts as a regression; smaller differences say"
        " nothing. Gain is a campaign's own paired measurement, base against head; it doesn't suffer from that."
    )


def _score(value: float | None, unit: str | None) -> str:
    return f"{num(value)} {unit or ''}".strip() if value is not None else NONE


def _row(e: Entry) -> dict[str, object]:
    o, reference = e.outcome, e.reference
    cells = (
        o.target,
        o.gpu if o.device == o.gpu else f"{o.device} ({o.gpu})",
        _score(o.score, o.unit),
        f"{_score(reference.score, o.unit)} ({reference.night})" if reference else NONE,
        pct(e.change_pct),
        pct(o.gain_pct),
        NONE if o.rounds is None else f"{o.rounds}, {o.accepted} accepted, {o.code or 'not ended'}",
        result(e),
    )
    return dict(zip(COLUMNS, cells, strict=True))


def result(e: Entry) -> str:
    """One word, and the reason of a failure."""
    if not e.outcome.ok:
        return f"failed: {e.outcome.why}"
    if e.regression:
        return "regression"
    return "ok" if e.reference else "ok, nothing to compare with"


def failure(e: Entry, regression_pct: float) -> str | None:
    """Why a target fails its night, with the numbers; None where it doesn't."""
    o = e.outcome
    if not o.ok:
        return f"failing campaign: {o.why}"
    if e.regression and e.reference:
        return (
            f"regression: {_score(o.score, o.unit)} is {pct(e.change_pct)} against {_score(e.reference.score, o.unit)}"
            f" of night {e.reference.night}; the threshold is {regression_pct:g}%"
        )
    return None


def junit_xml(record: Record) -> str:
    """A test case a target; a failing campaign or a regression is a failure with its numbers."""
    why = [failure(e, record.regression_pct) for e in record.targets]
    total_s = sum(e.outcome.seconds for e in record.targets)
    suite = ET.Element(
        "testsuite", name=clean(record.name), tests=str(len(why)), failures=str(sum(w is not None for w in why)),
        errors="0", skipped="0", time=f"{total_s:.3f}", timestamp=record.created,
    )  # fmt: skip
    for e, text in zip(record.targets, why, strict=True):
        o = e.outcome
        facts = {"classname": clean(record.name), "name": clean(o.target), "time": f"{o.seconds:.3f}"}
        case = ET.SubElement(suite, "testcase", facts)
        if text is not None:
            ET.SubElement(case, "failure", message=clean(text)).text = clean(f"{text}\ncampaign: {o.dir or NONE}")
        told = f"{_score(o.score, o.unit)}, change {pct(e.change_pct)}, gain {pct(o.gain_pct)}, {duration(o.seconds)}"
        ET.SubElement(case, "system-out").text = clean(told)
    root = ET.Element("testsuites")
    root.append(suite)
    ET.indent(root)
    return '<?xml version="1.0" encoding="utf-8"?>\n' + ET.tostring(root, encoding="unicode") + "\n"
