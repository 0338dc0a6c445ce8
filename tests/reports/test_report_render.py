"""The rendered files: sections, numbers, escaping."""

from __future__ import annotations

import json
import re
import xml.etree.ElementTree as ET

import pytest

from tests.factory import make_events
from turbo_optimize.core.events import Reported
from turbo_optimize.core.models import Manifest
from turbo_optimize.core.state import State, fold
from turbo_optimize.reports import render, text
from turbo_optimize.reports.text import TIMES_NOTE

SECTIONS = [
    "Hypothesis", "Single change", "Results", "Decision", "Attribution", "Next direction",
    "Real-training transfer check",
]  # fmt: skip
REPORT = [
    "Headline", "Referee", "Lineage", "Shapes", "Rejected by the referee", "Leave one out", "Effective directions",
    "Ineffective directions", "Final acceptance", "Real-training audit", "Cost", "Next steps", "Tips", "Environment",
]  # fmt: skip
EVIL = "a | b\n## Decision\n\n**ACCEPTED**\n```\n<!-- <script>x</script> ![x](http://y) \\<b> \x1b[31m\u202e\x00 | tail"


def sections(md: str) -> list[str]:
    return re.findall(r"^## (.*)$", md, re.MULTILINE)


def part(md: str, title: str) -> str:
    return md.split(f"\n## {title}\n", 1)[1].split("\n## ", 1)[0]


def cells(row: str) -> list[str]:
    return re.split(r"(?<!\\)(?:\\\\)*\|", row.strip())[1:-1]


def tables_of(md: str) -> list[list[str]]:
    return [block.split("\n") for block in re.split(r"\n\n", md) if block.startswith("|")]


def test_summary_has_its_sections_in_order_and_rollback_analysis_only_where_rolled_back():
    state = fold(make_events(16, undo=(5,)))
    for r in state.rounds:
        rolled_back = r.status in ("ROLLBACK", "INCONCLUSIVE")
        assert sections(render.summary_md(state, r.number)) == SECTIONS + ["Rollback Analysis"] * rolled_back
    assert {r.status for r in state.rounds} == {"BASELINE", "ACCEPTED", "ROLLBACK", "INCONCLUSIVE", "UNDONE"}


def test_summary_holds_the_round_s_numbers():
    state = fold(make_events(12))
    for r in state.closed:
        md, d = render.summary_md(state, r.number), r.decision
        assert d
        assert r.proposal
        assert r.proposal.hypothesis in part(md, "Hypothesis")
        assert r.proposal.change in part(md, "Single change")
        assert f"{d.verdict} ({d.code})" in part(md, "Decision")
        if d.gain_pct is None:
            assert "Nothing was measured." in part(md, "Results")
            continue
        assert r.score
        assert text.gain(d.gain_pct, d.low_pct, d.high_pct) in part(md, "Results")
        assert text.num(r.score.value) in part(md, "Results")
        for s in d.shapes:
            assert f"| {s.shape} | PASS |" in part(md, "Results")
            assert f"{s.gain_pct:+.2f}% | [{s.low_pct:+.2f}, {s.high_pct:+.2f}]%" in part(md, "Results")


def test_failed_gate_and_shape_are_told():
    state = fold(make_events(6))
    broken = part(render.summary_md(state, 4), "Rollback Analysis")
    assert "Gate G03 build failed: ptxas: out of registers" in broken
    wrong = render.summary_md(state, 6)
    assert "| FAIL row 7 is zero |" in part(wrong, "Results")
    assert "turbo-opt recover 6" in part(wrong, "Rollback Analysis")


def test_trade_off_is_recorded():
    state = fold(make_events(15))
    assert "Trade-off, recorded: 2048x6144x4096 -1.20%" in part(render.summary_md(state, 15), "Decision")


def test_undone_round_is_told_everywhere():
    state = fold(make_events(12, undo=(5,)))
    undone = state.round(5)
    assert undone
    assert undone.undone
    revert = undone.undone[:10]
    assert "# Round 5: UNDONE" in render.summary_md(state, 5)
    assert f"revert `{revert}`" in part(render.summary_md(state, 5), "Decision")
    assert "| 5 | UNDONE |" in render.trend_md(state)
    assert f"reverted by {revert}" in part(render.report_md(state), "Lineage")
    assert f"UNDONE by {revert}" in render.optimize_md(state)


def test_open_round_has_a_summary():
    events = make_events(3, finish=False)
    assert [e.kind for e in events[-3:]] == ["decided", "applied", "spent"]
    events = events[:-3]
    md = render.summary_md(fold(events), 3)
    assert "OPEN: not decided yet" in part(md, "Decision")
    assert sections(md) == SECTIONS


def test_unknown_round_is_an_error():
    with pytest.raises(LookupError, match="no round 9: the campaign has 3"):
        render.summary_md(fold(make_events(3)), 9)


def test_a_summary_reads_nothing_that_came_later():
    events = make_events(20, finish=False)
    whole, state, done = fold(events), State(), {}
    for e in events:
        state = fold([e], state)
        if e.kind == "spent" and e.round > 1:
            done[e.round] = render.summary_md(state, e.round)
    assert len(done) == 19
    assert done == dict(render.summaries(whole, range(2, 21)))
    ahead = part(done[2], "Next direction")  # what was untried then, though round 3 has tried it since
    assert re.findall(r"Untried: (\S+):", ahead) == ["fuse/quantize", "ctx/transpose"]


def test_hypotheses_cannot_forge_sections_rows_or_terminal_codes():
    state = fold(make_events(6, hypothesis=EVIL))
    r = state.round(5)
    assert r
    assert r.proposal
    odd = r.model_copy(update={"proposal": r.proposal.model_copy(update={"summary": EVIL, "change": "# " + EVIL})})
    state = state.model_copy(update={"rounds": (*state.rounds[:4], odd, *state.rounds[5:])})
    assert sections(render.summary_md(state, 5)) == SECTIONS
    assert sections(render.report_md(state)) == REPORT
    assert "- \\# a | b ## Decision" in render.summary_md(state, 5)
    for md in (render.summary_md(state, 5), render.trend_md(state), render.optimize_md(state), render.report_md(state)):
        assert not set(md) & {"\x1b", "\x00", "\u202e"}
        assert not re.search(r"(?<!\\)(?:\\\\)*<(?=[a-z/!])", md)
        assert not re.search(r"(?<!\\)!\[", md)
        for rows in tables_of(md):
            assert {len(cells(row)) for row in rows} == {len(cells(rows[0]))}


@pytest.mark.parametrize("value", ["a|b", "a\\|b", "\\", "a\nb", "", "<b>", "\\<b>"])
def test_a_cell_stays_one_cell(value: str):
    row = text.md_table(["x", "y"], [{"x": value, "y": 1}]).split("\n")[2]
    assert len(cells(row)) == 2
    assert "\n" not in row


def test_cpu_campaigns_say_so_at_every_table_and_gpu_campaigns_never():
    cpu, gpu = fold(make_events(8, gpu="cpu")), fold(make_events(8))
    for f in (render.trend_md, render.cost_md, render.report_md):
        md = f(cpu)
        assert md.count(f"\n\nNote: {TIMES_NOTE}.") >= len(tables_of(md)) > 0
        assert TIMES_NOTE not in f(gpu)
    assert TIMES_NOTE in part(render.summary_md(cpu, 2), "Results")


def test_optimize_log_has_an_entry_a_round_in_order():
    state = fold(make_events(12))
    assert sections(render.optimize_md(state)) == [f"Round {r.number}: {r.status}" for r in state.rounds]


def test_trend_has_a_row_a_round_and_no_delta_on_row_one():
    rows = tables_of(render.trend_md(fold(make_events(12))))[0]
    assert len(rows) == 2 + 12
    assert cells(rows[2])[8].strip() == "—"
    assert cells(rows[3])[8].strip().startswith("step ")


def test_memory_class_speaks_of_bandwidth():
    md = render.trend_md(fold(make_events(4, schema_class="memory")))
    assert "Combined Step GB/s" in md
    assert "TFLOPS" not in md


def test_report_tells_the_paired_headline_the_phantom_and_the_acceptance():
    state = fold(make_events(20))
    md = render.report_md(state)
    final = next(c for c in state.compared if c.what == "final")
    assert final.before
    assert sections(md) == REPORT
    headline = part(md, "Headline")
    assert f"**{text.gain(final.gain_pct, final.low_pct, final.high_pct)}**" in headline
    assert text.num(final.before.value) in headline
    assert "Absolute numbers of different sessions are never compared" in headline
    assert re.findall(r"Round (\d+).*\*\*phantom\*\*", part(md, "Leave one out")) == ["10"]
    assert "G04: ok" in part(md, "Final acceptance")
    assert "G04: **FAILED**, 3 failed, 40 passed" in render.report_md(fold(make_events(20, final_ok=False)))
    assert re.findall(r"^(\d)\. ", part(md, "Next steps"), re.MULTILINE) == ["1", "2", "3"]
    assert re.findall(r"Round (\d+)", part(md, "Real-training audit")) == ["5", "10", "15", "20"]


def test_report_claims_nothing_that_was_not_shown():
    state = fold(make_events(20))
    weak = [c.model_copy(update={"low_pct": -0.1}) if c.what == "final" else c for c in state.compared]
    assert "no gain is proven" in render.report_md(state.model_copy(update={"compared": tuple(weak)}))
    assert "**Not measured**" in render.report_md(state.model_copy(update={"compared": ()}))
    assert "**No gain**: no accepted round stands" in render.report_md(
        fold(make_events(6, accept_every=0, finish=False))
    )


def test_report_is_the_same_before_and_after_it_is_journaled():
    events = make_events(12)
    assert isinstance(events[-1], Reported)
    assert render.report_md(fold(events)) == render.report_md(fold(events[:-1]))


def test_every_prefix_renders():
    events = make_events(6, undo=(5,))
    for n in range(len(events) + 1):
        state = fold(events[:n])
        for f in (render.optimize_md, render.trend_md, render.cost_md, render.report_md, render.junit_xml):
            assert f(state).endswith("\n")
        assert len(list(render.summaries(state))) == len(state.rounds)


def test_data_json_is_plain_and_complete():
    state = fold(make_events(12, undo=(5,)))
    data = json.loads(render.report_json(state))
    assert data == render.report_data(state) | {"tips": data["tips"]}
    assert data["format"] == 1
    assert [r["status"] for r in data["rounds"]] == [r.status for r in state.rounds]
    assert Manifest.model_validate(data["manifest"]) == state.manifest
    assert data["final"]["gain_pct"] == state.compared[0].gain_pct
    empty = json.loads(render.report_json(State()))
    assert list(empty) == list(data)


def test_junit_passes_rollbacks_and_fails_only_a_failed_acceptance():
    suite = ET.fromstring(render.junit_xml(fold(make_events(12, hypothesis=EVIL)))).find("testsuite")
    assert suite is not None
    assert (suite.get("tests"), suite.get("failures"), suite.get("skipped")) == ("14", "0", "0")
    outs = [c.findtext("system-out") for c in suite.findall("testcase")]
    assert any((o or "").startswith("ROLLBACK (D03)") for o in outs)
    suite = ET.fromstring(render.junit_xml(fold(make_events(12, final_ok=False)))).find("testsuite")
    assert suite is not None
    assert suite.get("failures") == "1"
    failure = suite.find("testcase/failure")
    assert failure is not None
    assert failure.get("message") == "3 failed, 40 passed"


def test_junit_skips_what_is_not_finished_and_stays_xml():
    state = fold(make_events(6, finish=False))
    r = state.rounds[-1]
    assert r.proposal
    odd = r.model_copy(update={"applied": None, "proposal": r.proposal.model_copy(update={"summary": EVIL})})
    state = state.model_copy(update={"rounds": (*state.rounds[:-1], odd)})
    suite = ET.fromstring(render.junit_xml(state)).find("testsuite")
    assert suite is not None
    assert suite.get("skipped") == "2"


def test_sparkline_spans_its_bars():
    assert text.sparkline([0, 1, 2]) == "▁▅█"
    assert text.sparkline([3, 3]) == "▁▁"
    assert text.sparkline([]) == ""
    long = text.sparkline([float(i) for i in range(1000)])
    assert (len(long), long[0], long[-1]) == (60, "▁", "█")


@pytest.mark.parametrize(
    ("value", "shown"),
    [(None, "—"), (1234.5, "1234"), (501.31, "501.3"), (0.0000123456, "1.235e-05"), (12345.6, "12346")],
)
def test_numbers(value: float | None, shown: str):
    assert text.num(value) == shown


@pytest.mark.parametrize(
    ("seconds", "shown"), [(3.21, "3.2 s"), (130, "2 min 10 s"), (3725, "1 h 02 min"), (None, "—"), (59.99, "60.0 s")]
)
def test_durations(seconds: float | None, shown: str):
    assert text.duration(seconds) == shown
