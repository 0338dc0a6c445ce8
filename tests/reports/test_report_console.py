"""The terminal: 80 columns, whole numbers, no foreign markup, colour only where it is wanted."""

from __future__ import annotations

import io
import subprocess
import sys
from typing import get_args

import pytest
from rich.console import Console

from tests.factory import make_events
from turbo_optimize.core.events import Event
from turbo_optimize.core.state import State, fold
from turbo_optimize.reports import console
from turbo_optimize.reports.text import TIMES_NOTE, num


def shown(renderable: object, width: int = 80, colour: bool = False) -> str:
    out = io.StringIO()
    Console(file=out, width=width, force_terminal=colour, no_color=None if colour else True).print(renderable)
    return out.getvalue()


@pytest.fixture(scope="module")
def events() -> list[Event]:
    return make_events(119, undo=(5,))


@pytest.fixture(scope="module")
def state(events: list[Event]) -> State:
    return fold(events)


def test_everything_fits_eighty_columns(events: list[Event], state: State):
    every = [console.status_table(state), console.list_table({"x" * 70: state}), console.trend_table(state)]
    every += [console.round_panel(state, n) for n in range(1, 9)] + [console.log_table(events)]
    for renderable in every:
        assert max(map(len, shown(renderable).splitlines())) <= 80


def test_trend_numbers_are_whole(state: State):
    out = shown(console.trend_table(state))
    for r in state.rounds:
        line = next(x for x in out.splitlines() if x.split()[:1] == [str(r.number)])
        assert r.status in line
        if r.score:
            assert num(r.score.value) in line.split()
        if r.decision and r.decision.gain_pct is not None:
            assert f"{r.decision.gain_pct:+.2f}%" in line.split()


def test_status_names_the_numbers(state: State):
    out = shown(console.status_table(state))
    assert state.baseline
    assert f"{num(state.baseline.score.value)} TFLOPS" in out
    assert "119 of 119: 22 accepted" in out
    assert "1 undone" in out
    assert "before an undo; the head is not measured" in out
    assert shown(console.status_table(State())).startswith("no campaign yet")


def test_cpu_tables_say_so():
    cpu = fold(make_events(6, gpu="cpu"))
    for renderable in (console.status_table(cpu), console.trend_table(cpu), console.list_table({"a": cpu})):
        assert TIMES_NOTE in " ".join(shown(renderable).split())
    assert TIMES_NOTE not in shown(console.trend_table(fold(make_events(6))))


def test_foreign_words_are_not_markup_and_not_codes():
    state = fold(make_events(3, hypothesis="[red]x[/red] [bold \x1b[31m z"))
    out = shown(console.round_panel(state, 2), colour=False)
    assert "[red]x[/red] [bold" in out
    assert "\x1b[31m" not in shown(console.round_panel(state, 2), colour=True).replace("\x1b[31mROLLBACK", "")


def test_no_color_is_respected(state: State, monkeypatch: pytest.MonkeyPatch):
    assert "\x1b[32m" in shown(console.trend_table(state), colour=True)
    monkeypatch.setenv("NO_COLOR", "1")
    assert "\x1b[32m" not in shown(console.trend_table(state), colour=True)


def test_every_kind_of_event_has_words(events: list[Event]):
    assert set(console.DETAILS) == set(get_args(Event))
    out = shown(console.log_table(events[:30]))
    assert "created" in out
    assert "ROLLBACK (D03)" in out


def test_unknown_round_is_an_error(state: State):
    with pytest.raises(LookupError, match="no round 500"):
        console.round_panel(state, 500)


def test_rich_is_not_imported_before_it_is_needed():
    code = "import sys, turbo_optimize.reports.console; print({'rich', 'pandas', 'torch', 'jinja2'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert done.stdout.strip() == "set()"
