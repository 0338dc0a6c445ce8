"""What a journal promises of a campaign's files and commits, for verify.py to compare with what is there. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from turbo_optimize.core.errors import JournalError
from turbo_optimize.core.events import Applied, Decided, Event, Measured, Patched, UndoDecided, Undone
from turbo_optimize.core.models import Frozen
from turbo_optimize.core.state import Round, State, step


class Finding(Frozen):
    """One comparison: what was checked, of which round or file, and the difference where there is one."""

    check: str
    where: str
    ok: bool
    detail: str = ""


class Link(NamedTuple):
    """A commit that the branch must have: an accepted round, or the revert of one."""

    commit: str
    round: int
    attempt: str | None  # the commit whose files an accepted one has
    undoes: str | None = None  # the accepted commit that a revert takes back


def fold_past(events: Iterable[Event], state: State | None = None) -> State:
    """`fold` over a journal with lost lines: rounds that nothing is left of are empty, all others are as told."""
    state = state or State()
    for event in events:
        number = getattr(event, "round", None) or 0
        while number > len(state.rounds) + 1:
            state = state.model_copy(update={"rounds": (*state.rounds, Round(number=len(state.rounds) + 1))})
        try:
            state = step(state, event)
        except JournalError:  # it speaks of a round that the lines before it contradict: as good as lost
            continue
    return state


def links(events: Sequence[Event]) -> list[Link]:
    """The commits after the base commit, oldest first, as the journal tells them."""
    out: list[Link] = []
    attempt: dict[int, str] = {}
    accepted: dict[int, bool] = {}
    undoing: dict[int, str] = {}
    for e in events:
        if isinstance(e, Patched):
            attempt[e.round] = e.commit
        elif isinstance(e, Decided):
            accepted[e.round] = e.decision.accepted
        elif isinstance(e, Applied) and accepted.get(e.round):
            out.append(Link(e.commit, e.round, attempt.get(e.round)))
        elif isinstance(e, UndoDecided):
            undoing[e.round] = e.commit
        elif isinstance(e, Undone):
            out.append(Link(e.commit, e.round, None, undoing.get(e.round)))
    return out


def last_measured(events: Iterable[Event]) -> dict[tuple[int, bool], Measured]:
    """The last session of every round, by (round, whether it was a full validation): the CSVs hold those numbers."""
    return {(e.round, e.session.level == "full"): e for e in events if isinstance(e, Measured)}


def attempts(events: Iterable[Event]) -> dict[str, Patched]:
    """Ref name -> the attempt that it holds: `round-N` is a round's last, `round-N-attempt-K` an earlier one."""
    out: dict[str, Patched] = {}
    for e in events:
        if isinstance(e, Patched):
            before = out.get(f"round-{e.round}")
            if before and before.attempt != e.attempt:
                out[f"round-{e.round}-attempt-{before.attempt}"] = before
            out[f"round-{e.round}"] = e
    return out


def trailers(message: str) -> dict[str, str]:
    """`Key: value` lines of a commit message's last paragraph."""
    last = message.strip().split("\n\n")[-1]
    return dict(line.split(": ", 1) for line in last.split("\n") if ": " in line)


def between(events: Sequence[Event | None], index: int) -> str:
    """Where in the story a lost line stood: the nearest events that are left on both sides of it."""

    def told(found: Iterable[Event | None]) -> str:
        e = next((x for x in found if x is not None), None)
        number = getattr(e, "round", None)
        return "the end" if e is None else f"{e.kind}{f' of round {number}' if number else ''}"

    before = told(reversed(events[:index])) if any(events[:index]) else "the beginning"
    return f"between {before} and {told(events[index + 1 :])}"
