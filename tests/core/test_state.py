"""fold: deterministic, prefix-safe, and what each event means."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.factory import make_events
from turbo_optimize.core import events as ev
from turbo_optimize.core.errors import JournalError
from turbo_optimize.core.state import State, fold, step


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 12), st.integers(0, 10_000), st.data())
def test_fold_is_deterministic_and_prefix_safe(rounds: int, seed: int, data: st.DataObject) -> None:
    events = make_events(rounds, seed)
    cut = data.draw(st.integers(0, len(events)))
    whole = fold(events)
    assert whole == fold(list(events))
    assert fold(events[cut:], fold(events[:cut])) == whole


@settings(max_examples=20, deadline=None)
@given(st.integers(1, 8), st.integers(0, 10_000))
def test_every_prefix_folds_and_rounds_never_get_lost(rounds: int, seed: int) -> None:
    state, known = State(), 0
    for e in make_events(rounds, seed):
        state = step(state, e)
        assert [r.number for r in state.rounds] == list(range(1, len(state.rounds) + 1))
        assert len(state.rounds) >= known
        known = len(state.rounds)


def test_events_survive_json() -> None:
    events = make_events(6, 3)
    assert [ev.EVENT.validate_json(e.model_dump_json()) for e in events] == events


def test_a_round_out_of_order_is_damage() -> None:
    with pytest.raises(JournalError, match="round 99"):
        fold([*make_events(2, 1), ev.Applied(round=99, commit="c")])


def test_time_between_two_runners_does_not_count() -> None:
    s = fold(
        [
            ev.Opened(at=100, command="start", pid=1),
            ev.StopAsked(at=110, why="^C"),
            ev.Opened(at=5000, command="resume", pid=2, again=True),
            ev.StopAsked(at=5003, why="^C"),
        ]
    )
    assert s.elapsed_s == 13


def test_reopening_clears_the_end_and_raises_the_budget() -> None:
    s = fold(make_events(3, 1))
    assert s.reported
    assert s.terminated
    s = fold([ev.Opened(command="resume", pid=1, max_rounds=77, again=True)], s)
    assert not s.reported
    assert s.terminated is None
    assert s.compared == ()
    assert s.max_rounds == 77


def test_undo_moves_the_incumbent_to_the_revert() -> None:
    s = fold(make_events(6, 3))
    kept = s.accepted[-1]
    s = fold(
        [
            ev.UndoDecided(round=kept.number, commit=kept.applied or "", onto="h"),
            ev.Undone(round=kept.number, commit="rev"),
        ],
        s,
    )
    assert s.incumbent == "rev"
    assert s.undo is None
    assert kept.number not in [r.number for r in s.accepted]
    assert s.rounds[kept.number - 1].status == "UNDONE"
