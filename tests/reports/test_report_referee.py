"""What people see of the referee: how fine it measures, what found the planted faults, what objected, what training keeps."""

from __future__ import annotations

import io
import json
import math
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
from rich.console import Console

from tests.factory import LABELS, make_events
from turbo_optimize.core.checks import Norm, Norms
from turbo_optimize.core.events import Baselined, Compared, Event
from turbo_optimize.core.models import POLICIES, CheckRow, GateResult, Sample, Session
from turbo_optimize.core.state import fold
from turbo_optimize.effects.replay import format_samples
from turbo_optimize.effects.store import read_events
from turbo_optimize.reports import console, referee, render
from turbo_optimize.reports.device import device_facts, device_lines, read_device
from turbo_optimize.reports.export import report_data
from turbo_optimize.reports.project import write_projections
from turbo_optimize.reports.rounds import round_row, trained_pct

RECORD = Path(__file__).parents[1] / "replay/h200_gemm_fp8"
Change = Callable[[Event], Mapping[str, object]]


def changed(
    events: list[Event], kind: str, change: Change | Mapping[str, object], round: int | None = None
) -> list[Event]:
    """The events, those of a kind (and round) with fields replaced."""

    def one(e: Event) -> Event:
        if e.kind != kind or (round is not None and getattr(e, "round", None) != round):
            return e
        return e.model_copy(update=dict(change(e) if callable(change) else change))

    return [one(e) for e in events]


def decided(**fields: object) -> Change:
    return lambda e: {"decision": e.decision.model_copy(update=fields)}  # type: ignore[union-attr]


NOISY = {
    "aa_floor_pct": 1.314, "quads": 16, "min_gain_pct": 2.0, "resolves_pct": 2.44, "core_shapes": LABELS[:2],
    "noise_pct": {LABELS[0]: 0.2, LABELS[1]: 0.3, LABELS[2]: 7.2}, "environment": {"isolation": "landlock"},
}  # fmt: skip


def shown(renderable: object) -> str:
    out = io.StringIO()
    Console(file=out, width=80, no_color=True).print(renderable)
    assert max(map(len, out.getvalue().splitlines())) <= 80
    return " ".join(out.getvalue().replace("│", " ").split())


def part(md: str, title: str) -> str:
    return md.split(f"\n## {title}\n", 1)[1].split("\n## ", 1)[0]


def baseline(**fields: object) -> Baselined:
    found = fold(make_events(2)).baseline
    assert found
    return found.model_copy(update=fields)


# -- the baseline ----------------------------------------------------------------------------------------------------------
def test_the_forecast_is_one_line_of_what_is_known():
    standard, cpu = POLICIES["standard"], POLICIES["cpu"]
    b = baseline(resolves_pct=0.94, aa_floor_pct=0.63)
    assert (
        referee.forecast(b, standard) == "3 to 6 sessions resolve 0.94% on these shapes (4 times in 5); A/A floor 0.63%"
    )
    assert referee.forecast(b, cpu).startswith("3 sessions resolve 0.94%")
    one = cpu.model_copy(update={"confirm_sessions": 1})
    assert referee.forecast(b, one).startswith("1 session resolves 0.94%")
    noisy = referee.forecast(baseline(**NOISY), standard)
    assert "1.31%, with twice the quads (16)" in noisy
    assert "least gain 2%" in noisy
    assert referee.forecast(baseline(), standard) == ""


def test_status_report_and_baseline_page_tell_what_the_baseline_found():
    state = fold(changed(make_events(6), "baselined", NOISY))
    told = [
        "3 to 6 sessions resolve 2.44% on these shapes", "1.31%, with twice the quads (16)", "2%: A/A moves by over 1%",
        f"{LABELS[2]} (7.20%): launch-bound, A/A moves by over 5%", "landlock", "3 of 3 planted faults found (K02, K04, K11)",
    ]  # fmt: skip
    pages = [
        shown(console.status_table(state)), shown(console.round_panel(state, 1)),
        part(render.report_md(state), "Referee"), part(render.summary_md(state, 1), "Results"),
    ]  # fmt: skip
    for page in pages:
        assert not [line for line in told if line not in page]
    assert LABELS[0] not in part(render.report_md(state), "Referee")
    assert "planted faults" not in render.summary_md(state, 2)


def test_the_numbers_are_in_data_json():
    data = json.loads(render.report_json(fold(changed(make_events(6), "baselined", NOISY))))["referee"]
    assert (data["resolves_pct"], data["aa_floor_pct"], data["quads_doubled_to"]) == (2.44, 1.314, 16)
    assert (data["min_gain_raised_to_pct"], data["confirm_sessions"], data["isolation"]) == (2.0, 3, "landlock")
    assert data["launch_bound"] == {LABELS[2]: 7.2}
    assert data["self_test"][1] == {
        "fault": "cached output", "code": "K04", "found_by": "K04 stale output", "found": True, "how": "found",
    }  # fmt: skip


def test_the_gate_self_test_is_a_table_of_faults_and_what_found_them():
    tested = (
        GateResult(code="D02", ok=True, detail="added_sleep: measured as -39.8%"),
        GateResult(code="G04", ok=False, detail="scale_error: passed every check | really"),
    )
    state = fold(changed(make_events(3), "learned", {"self_test": tested}))
    for md in (part(render.report_md(state), "Referee"), part(render.summary_md(state, 1), "Results")):
        assert "| added sleep | D02 core shape veto | measured as -39.8% |" in md
        assert "| scale error | nothing | passed every check \\| really |" in md
    assert "1 of 2 planted faults found (D02)" in shown(console.status_table(state))
    assert "added sleep D02 core shape veto measured as -39.8%" in shown(console.round_panel(state, 1))
    assert state.learned
    assert "1 of 2 planted faults found" in shown(console.log_table([state.learned]))


def test_checks_that_the_base_does_not_pass_are_named():
    norms = Norms(fills={"ints": Norm(exact=True)}, heldout=True, rejects_ruined=True, off=("K05",))
    state = fold(changed(make_events(3), "learned", {"norms": norms}))
    line = "K05 one element changed, K19 training steps, K23 not deterministic: the base itself doesn't pass"
    assert line in shown(console.status_table(state))
    forward = [e.model_copy(update={"manifest": e.manifest.model_copy(update={"execution_mode": "forward"})})
               if e.kind == "created" else e for e in changed(make_events(3), "learned", {"norms": norms})]  # fmt: skip
    assert referee.not_armed(fold(forward)) == ["K05", "K23"]
    assert referee.not_armed(fold(make_events(3))) == [], "of a base of which nothing is known nothing is said"


def test_no_confinement_is_said_plainly():
    state = fold(changed(make_events(3), "baselined", {"environment": {"isolation": "none"}}))
    assert "isolation none: nothing confines a candidate's processes but limits" in shown(console.status_table(state))


# -- a round ---------------------------------------------------------------------------------------------------------------
def test_the_check_that_objected_has_code_title_and_page():
    events = changed(make_events(6), "decided", decided(code="K04", reason="out: another's result"), round=6)
    row = CheckRow(shape=LABELS[0], check="FAIL", metrics={"out_snr": 2.0}, detail="another's result", code="K04")
    state = fold(changed(events, "gated", {"checks": (row,)}, round=6))
    for page in (part(render.summary_md(state, 6), "Decision"), shown(console.round_panel(state, 6))):
        assert "Objected: K04 stale output (`turbo-opt rules K04`)" in page
    assert f"Shape {LABELS[0]} FAIL, K04 stale output: another's result" in part(
        render.summary_md(state, 6), "Rollback Analysis"
    )
    assert "Objected" not in render.summary_md(state, 5)
    r = state.round(6)
    assert r
    assert (round_row(state, r)["code"], round_row(state, r)["title"]) == ("K04", "stale output")


def test_a_code_of_another_version_stands_alone():
    state = fold(changed(make_events(4), "decided", decided(code="Z99"), round=4))
    assert "Objected: Z99\n" in render.summary_md(state, 4)
    assert "| Z99 | — | 1 | 4 |" in part(render.report_md(state), "Rejected by the referee")


def test_void_sessions_are_told():
    events = make_events(5)
    first = next(e for e in events if e.kind == "measured" and e.round == 5)
    void = "confirm session 1 void: power brake in 1 of 32 blocks"
    state = fold([e.model_copy(update={"notes": (void,)}) if e is first else e for e in events])
    told = f"{void[0].upper()}{void[1:]}; measured again"
    assert told in part(render.summary_md(state, 5), "Results")
    assert told in shown(console.round_panel(state, 5))
    assert void in shown(console.log_table([first.model_copy(update={"notes": (void,)})]))
    assert report_data(state)["rounds"][4]["void_sessions"] == [void]
    assert "void" not in render.summary_md(state, 2)


def test_the_gain_in_training_steps_stands_beside_the_benchmark_s():
    state = fold(changed(make_events(5), "decided", decided(gain_pct=4.0, train_pct=3.8), round=5))
    line = "In training steps +3.80%, in the benchmark +4.00%: 95% of it is kept"
    assert line in part(render.summary_md(state, 5), "Real-training transfer check")
    assert line in shown(console.round_panel(state, 5))
    assert "inflation" not in render.summary_md(state, 5)
    assert "training steps" not in render.summary_md(fold(make_events(5)), 5)


def test_a_gain_that_fades_is_measured_from_its_session():
    """A round that K24 rejects has no accepted figure: its training session is there all the same."""
    quads = {s: tuple(math.log(1.01) for _ in range(4)) for s in LABELS}
    events = changed(make_events(5), "decided", decided(gain_pct=5.0), round=5)
    last = max(i for i, e in enumerate(events) if e.kind == "measured" and e.round == 5)
    session = Session(level="train", index=1, quads=quads)
    events.insert(last + 1, events[last].model_copy(update={"session": session}))
    state = fold(events)
    r = state.round(5)
    assert r
    assert trained_pct(state, r) == pytest.approx(1.0)
    told = part(render.summary_md(state, 5), "Real-training transfer check")
    assert "In training steps +1.00%, in the benchmark +5.00%: 20% of it is kept; inflation: the gap is over 1%" in told


def test_a_weight_cache_s_cap_is_told():
    state = fold(make_events(5))
    capped = state.rounds[4].model_copy(update={"cap_pct": 3.1})
    state = state.model_copy(update={"rounds": (*state.rounds[:4], capped)})
    assert "would gain +3.10%; no more is claimed" in part(render.summary_md(state, 5), "Real-training transfer check")
    assert "would gain +3.10%" in shown(console.round_panel(state, 5))
    assert "; cap +3.10%" in part(render.report_md(state), "Real-training audit")
    assert report_data(state)["rounds"][4]["cap_pct"] == 3.1


# -- clocks ----------------------------------------------------------------------------------------------------------------
def sample(quad: int, slot: int, level: str = "screen", session: int = 0, **read: object) -> Sample:
    fields = {"level": level, "session": session, "shape": LABELS[0], "quad": quad, "slot": slot, "role": "ABBA"[slot]}
    return Sample.model_validate({**fields, "calls": 20, "step_ms": 1.0, "wall_ms": 20.0, **read})


READ = [sample(0, i, clock_mhz=1700.0 + 100 * i, temp_c=50.0, power_w=600.0, throttle="power cap" if i else None)
        for i in range(4)]  # fmt: skip


def test_clock_temperature_and_power_have_mean_and_range():
    facts = device_facts(READ)
    assert facts["clock_mhz"] == {"mean": 1850.0, "low": 1700.0, "high": 2000.0}
    assert facts["throttle"] == {"power cap": 3}
    assert list(device_lines(facts)) == [
        "Device over 4 blocks, mean and range: clock 1850 MHz (1700 … 2000), temperature 50 °C (50 … 50),"
        " power 600 W (600 … 600)",
        "The driver says: power cap in 3 of 4 blocks",
    ]
    assert not device_facts([sample(0, i) for i in range(4)])


def test_a_round_s_page_has_its_clocks_where_samples_csv_is(tmp_path: Path):
    state, pages = fold(make_events(3)), {}
    r = state.round(2)
    assert r
    session = {"level": r.sessions[0].level, "session": r.sessions[0].index}
    path = tmp_path / "rounds/round-2/artifacts/samples.csv"
    path.parent.mkdir(parents=True)
    mine = [s.model_copy(update=session) for s in READ]
    other = [sample(0, i, "confirm", 99, clock_mhz=9.0) for i in range(4)]  # of a session that isn't journaled
    path.write_text(format_samples([*mine, *other]))
    write_projections(state, tmp_path, pages.__setitem__)
    assert "clock 1850 MHz (1700 … 2000)" in part(pages[tmp_path / "rounds/round-2/summary.md"], "Results")
    assert "Device" not in pages[tmp_path / "rounds/round-3/summary.md"]
    assert "clock 1850 MHz (1700 … 2000)" in shown(console.round_panel(state, 2, read_device(tmp_path, r)))


def test_samples_that_cannot_be_read_say_so(tmp_path: Path):
    r = fold(make_events(3)).rounds[0]
    path = tmp_path / "rounds/round-1/artifacts/samples.csv"
    path.parent.mkdir(parents=True)
    path.write_text(format_samples(READ).replace(",20,", ",x,", 1))
    (line,) = device_lines(read_device(tmp_path, r))
    assert line.startswith("Clock, temperature and power are not known: samples.csv line 2")
    path.write_bytes(b"\xff\xfe")
    (line,) = device_lines(read_device(tmp_path, r))
    assert line.endswith("samples.csv can't be read (it is no text)")


# -- the whole -------------------------------------------------------------------------------------------------------------
def test_the_headline_is_split_and_says_what_training_keeps():
    events = changed(make_events(10), "decided", decided(gain_pct=4.0, train_pct=3.9), round=5)
    state = fold(changed(events, "decided", decided(gain_pct=3.0, train_pct=1.5), round=10))
    assert [r.proposal.bucket for r in state.accepted if r.proposal] == ["W1", "K3"]
    headline = part(render.report_md(state), "Headline")
    assert "Split: S_real +3.00% (K1 to K4), W_real +4.00% (weight caches), residual" in headline
    assert (
        "In training steps: +5.46% of the +7.12% that rounds 5, 10 gained in the benchmark; 77% of it is kept"
        in headline
    )
    assert (
        "**Inflation** in round 10: +3.00% in the benchmark, +1.50% in training steps; the gap is over 1%" in headline
    )
    assert "in round 5" not in headline
    audit = report_data(state)["audit"]
    assert [row["round"] for row in audit["inflated"]] == [10]
    assert audit["train_pct"] == pytest.approx(100 * (1.039 * 1.015 - 1))
    assert "in training steps +3.90%" in part(render.report_md(state), "Real-training audit")


def test_checkpoints_are_a_table():
    found = Compared(what="checkpoint", round=5, gain_pct=4.2, low_pct=3.9, high_pct=4.5)
    events = make_events(6, finish=False)
    state = fold([*events, found])
    assert "| 5 | +4.20% | [+3.90, +4.50]% |" in part(render.report_md(state), "Checkpoints")
    assert "checkpoint round 5: +4.20% [+3.90, +4.50]%" in shown(console.status_table(state))
    assert report_data(state)["checkpoints"][0]["gain_pct"] == 4.2
    assert "## Checkpoints" not in render.report_md(fold(events))


def test_rejections_are_counted_by_code_with_titles():
    state = fold(make_events(12))
    assert referee.rejected(state)[0] == {"code": "D03", "title": "no gain", "rounds": [2, 8]}
    assert sum(len(row["rounds"]) for row in referee.rejected(state)) == len(state.closed) - len(state.accepted)
    section = part(render.report_md(state), "Rejected by the referee")
    assert "| D03 | no gain | 2 | 2, 8 |" in section
    assert "| G03 | build | 2 | 4, 11 |" in section
    assert report_data(state)["rejected"] == referee.rejected(state)
    assert "Nothing." in part(render.report_md(fold(make_events(1))), "Rejected by the referee")


def test_an_old_record_renders_and_nothing_is_invented():
    state = fold(read_events(RECORD / "journal.jsonl"))
    assert referee.words(state) == {}
    pages: dict[Path, str] = {}
    write_projections(state, RECORD, pages.__setitem__)
    everything = "\n".join(text for path, text in pages.items() if path.suffix == ".md")
    for word in ("## Referee", "## Checkpoints", "resolve", "A/A floor", "planted", "In training steps", "Device over"):
        assert word not in everything
    assert "| D03 | no gain | 4 | 5, 6, 8, 9 |" in everything
    status = shown(console.status_table(state))
    assert not [w for w in ("forecast", "floor", "isolation", "self-test", "veto", "armed") if w in status]
    assert report_data(state)["referee"]["forecast"] is None
