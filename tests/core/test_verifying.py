"""What a journal promises, also one that lines are missing of."""

from __future__ import annotations

from tests.factory import make_events
from turbo_optimize.core.state import fold
from turbo_optimize.core.verifying import attempts, between, fold_past, links, trailers


def test_fold_past_is_fold_where_nothing_is_lost() -> None:
    events = make_events(15, undo=(10,))
    assert fold_past(events) == fold(events)


def test_fold_past_keeps_every_round_that_is_left() -> None:
    events = make_events(9)
    whole = fold(events)
    left = fold_past(e for e in events if getattr(e, "round", None) not in (3, 4))
    assert left.rounds[2].decision is None
    assert left.rounds[3].decision is None
    assert [r.decision for r in left.rounds[4:]] == [r.decision for r in whole.rounds[4:]]


def test_links_are_accepted_rounds_and_reverts_in_order() -> None:
    events = make_events(15, undo=(10,))
    found = links(events)
    assert [(x.round, x.undoes is not None) for x in found] == [(5, False), (10, False), (15, False), (10, True)]
    assert found[-1].undoes == found[1].commit


def test_attempts_name_the_last_and_the_earlier_ones() -> None:
    patched = next(e for e in make_events(3) if e.kind == "patched")
    again = patched.model_copy(update={"attempt": 3, "commit": "f" * 40})
    found = attempts([patched, again, again])
    assert {name: e.commit for name, e in found.items()} == {"round-2-attempt-1": patched.commit, "round-2": "f" * 40}


def test_trailers_are_the_last_paragraph_alone() -> None:
    message = "subject\n\nHypothesis: x\n\nRound: 99\n\nCampaign: one\nRound: 2\nScore: 5 TFLOPS\n"
    assert trailers(message) == {"Campaign": "one", "Round": "2", "Score": "5 TFLOPS"}


def test_between_names_the_neighbours_of_a_lost_line() -> None:
    events = make_events(3)
    i = next(i for i, e in enumerate(events) if e.kind == "gated")
    assert between([*events[:i], None, *events[i + 1 :]], i) == "between patched of round 2 and measured of round 2"
    assert between([None, *events[1:]], 0) == "between the beginning and opened"
    assert between([*events, None], len(events)) == "between reported and the end"
