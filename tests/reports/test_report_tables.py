"""The rows: every number is the state's own."""

from __future__ import annotations

import json
import math

import pytest

from tests.factory import LABELS, make_events, make_manifest
from turbo_optimize.core.events import Analyzed, Created, Proposed, Terminated
from turbo_optimize.core.models import Proposal
from turbo_optimize.core.scoring import trend_delta
from turbo_optimize.core.state import State, fold
from turbo_optimize.reports import tables
from turbo_optimize.reports.lessons import BUCKETS, audit, leave_one_out
from turbo_optimize.reports.text import TIMES_NOTE, num

TREND = [
    "Round", "Status", "Description", "Fwd Avg TFLOPS", "Fwd Peak TFLOPS", "Bwd Avg TFLOPS", "Bwd Peak TFLOPS",
    "Combined Step TFLOPS", "vs Baseline", "Key Finding",
]  # fmt: skip


def test_trend_columns_are_the_specified_ones_and_follow_the_unit():
    assert list(tables.trend_rows(fold(make_events(3)))[0]) == TREND
    memory = tables.trend_rows(fold(make_events(3, schema_class="memory")))
    assert list(memory[0]) == [c.replace("TFLOPS", "GB/s") for c in TREND]


def test_trend_rows_hold_the_state_s_numbers():
    state = fold(make_events(12))
    rows = tables.trend_rows(state)
    assert [r["Round"] for r in rows] == [str(n) for n in range(1, 13)]
    assert rows[0]["vs Baseline"] == "—"
    assert state.baseline
    for row, r in zip(rows[1:], state.rounds[1:], strict=True):
        if r.score is None:
            assert (row["Combined Step TFLOPS"], row["vs Baseline"]) == ("—", "—")
            continue
        assert row["Combined Step TFLOPS"] == num(r.score.value)
        assert row["Fwd Peak TFLOPS"] == num(r.score.forward_peak)
        assert row["vs Baseline"] == trend_delta(r.score, state.baseline.score)
        assert r.decision
        assert f"{r.decision.gain_pct:+.2f}%" in row["Key Finding"]


def test_a_prefix_of_the_journal_always_has_tables():
    events = make_events(8, undo=(5,))
    for n in range(len(events) + 1):
        state = fold(events[:n])
        assert len(tables.trend_rows(state)) == len(state.rounds)
        assert tables.status_facts(state)["rounds"] == len(state.rounds)
        tables.cost_facts(state)
        if state.manifest:
            assert len(tables.next_steps(state)) == 3


def test_paired_gain_is_the_product_of_what_stands():
    everything, taken_back = fold(make_events(20)), fold(make_events(20, undo=(5,)))
    gains = {r.number: 1 + r.decision.gain_pct / 100 for r in everything.accepted if r.decision and r.decision.gain_pct}
    assert set(gains) == {5, 10, 15, 20}
    whole = 100 * (math.prod(gains.values()) - 1)
    facts = tables.status_facts(everything)
    assert facts["gain_pct"] == pytest.approx(whole)
    assert tables.cumulative_gain_pct(everything)[-1] == pytest.approx(whole)
    assert facts["accepted"] + facts["rolled_back"] + facts["inconclusive"] + 1 == facts["rounds"] == 20
    del gains[5]
    facts = tables.status_facts(taken_back)
    assert facts["gain_pct"] == pytest.approx(100 * (math.prod(gains.values()) - 1))
    assert (facts["undone"], facts["incumbent_measured"]) == (1, False)


def test_undone_round_says_so():
    state = fold(make_events(6, undo=(5,)))
    undone = state.round(5)
    assert undone
    assert undone.undone
    line = tables.decision_line(undone)
    assert line.startswith(f"UNDONE by {undone.undone[:10]}: was ACCEPTED (D00)")
    assert tables.trend_rows(state)[4]["Status"] == "UNDONE"


def test_directions_are_grouped_and_kept_apart():
    state = fold(make_events(30))
    good, bad = tables.effective_directions(state), tables.ineffective_directions(state)
    kept = {r.proposal.direction for r in state.accepted if r.proposal}
    assert {row["direction"] for row in good} == kept
    assert not kept & {row["direction"] for row in bad}
    assert [row["gain_pct"] for row in good] == sorted((row["gain_pct"] for row in good), reverse=True)
    tried = {n for row in good + bad for n in row["rounds"]}
    assert tried == set(range(2, 31))


def test_a_direction_that_never_was_measured_is_not_called_refuted():
    state = fold(make_events(6))
    rows = {row["direction"]: row for row in tables.ineffective_directions(state)}
    broken = state.round(4)  # its build failed
    assert broken
    assert broken.proposal
    row = rows[broken.proposal.direction]
    assert (row["measured"], row["refuted"], row["best_gain_pct"]) == (False, False, None)
    assert broken.proposal.direction not in " ".join(t["takeaway"] for t in tables.tips(state))


def test_cost_adds_up():
    state = fold(make_events(10, finish=False))
    rows, facts = tables.cost_rows(state), tables.cost_facts(state)
    assert sum(row["total"] for row in rows) == pytest.approx(facts["total_s"])
    assert sum(facts["parts_s"].values()) == pytest.approx(facts["total_s"])
    assert facts["overhead_pct"] == pytest.approx(100 * (state.elapsed_s - facts["total_s"]) / state.elapsed_s)
    assert rows[0]["measure"] == 30.0
    assert tables.cost_facts(State())["overhead_pct"] is None


def test_next_steps_are_three_and_start_with_phantoms():
    state = fold(make_events(20))
    phantom = next(row for row in leave_one_out(state) if row["phantom"])
    steps = tables.next_steps(state)
    assert len(steps) == 3
    assert f"turbo-opt undo {phantom['round']}" in steps[0]


def test_next_steps_name_ranked_directions_that_nobody_tried():
    ranked = ({"name": "forward/tile", "change": "x"}, {"name": "never/tried", "change": "wide loads", "bucket": "K1"})
    events = [*make_events(9, finish=False), Analyzed(round=10, bottleneck="memory", evidence="", directions=ranked)]
    steps = " ".join(tables.next_steps(fold(events)))
    assert "Try never/tried: wide loads (bucket K1)." in steps
    assert "Try forward/tile" not in steps


def test_phantoms_are_named_only_where_the_interval_holds_zero():
    for row in leave_one_out(fold(make_events(30))):
        assert row["phantom"] == (row["low_pct"] <= 0)


def test_audit_splits_the_gain_by_bucket_and_finds_inflation():
    state = fold(make_events(40))
    a = audit(state)
    assert (1 + a["s_real_pct"] / 100) * (1 + a["w_real_pct"] / 100) == pytest.approx(1 + a["claimed_pct"] / 100)
    assert a["w_real_pct"] > 0
    assert a["inflation"] is False
    low = [
        c.model_copy(update={"gain_pct": 0.5, "low_pct": 0.2, "high_pct": 0.8}) if c.what == "final" else c
        for c in state.compared
    ]
    assert audit(state.model_copy(update={"compared": tuple(low)}))["inflation"] is True
    wide = [c.model_copy(update={"high_pct": 1e6}) if c.what == "final" else c for c in low]
    assert (
        audit(state.model_copy(update={"compared": tuple(wide)}))["inflation"] is False
    )  # the interval holds the claim
    assert audit(fold(make_events(40, finish=False)))["inflation"] is None
    assert {row["bucket"] for row in a["rounds"]} <= set(BUCKETS)


def test_tips_are_at_most_five_with_four_facts_each():
    found = tables.tips(fold(make_events(60)))
    assert 1 <= len(found) <= 5
    assert all(list(t) == ["context", "signal", "takeaway", "applicability"] and all(t.values()) for t in found)
    assert all(TIMES_NOTE in t["applicability"] for t in tables.tips(fold(make_events(60, gpu="cpu"))))
    assert tables.tips(State()) == []


def test_shape_rows_come_in_the_target_s_order_with_paired_numbers():
    state = fold(make_events(5))
    r = state.round(5)
    assert r
    assert r.decision
    rows = tables.shape_rows(state, r)
    assert tuple(row["shape"] for row in rows) == LABELS
    assert [row["gain_pct"] for row in rows] == [d.gain_pct for d in r.decision.shapes]
    assert json.dumps(tables.round_row(state, r))


def test_phase_follows_the_journal():
    m = make_manifest()
    assert tables.status_facts(State())["phase"] == "DEFINE_TARGET"
    assert tables.status_facts(fold([Created(manifest=m)]))["phase"] == "PREPARE_ENVIRONMENT"
    events = make_events(4, finish=False)
    assert tables.status_facts(fold(events))["phase"] == "ANALYZE"
    assert tables.status_facts(fold([*events, Terminated(code="T4", why="^C")]))["phase"] == "REPORT"
    proposed = Proposed(round=5, proposal=Proposal(hypothesis="h", change="c", summary="s"))
    facts = tables.status_facts(fold([*events, proposed]))
    assert (facts["phase"], facts["open_round"]) == ("OPTIMIZE", 5)
