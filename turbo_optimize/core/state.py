"""What a journal adds up to: fold(events) -> State. Deterministic; any prefix folds to the state of then."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from pydantic import Field

from turbo_optimize.core.errors import JournalError
from turbo_optimize.core.events import (
    Analyzed,
    Applied,
    Baselined,
    Compared,
    Created,
    Decided,
    Event,
    FinalAccepted,
    Gated,
    Learned,
    Measured,
    Opened,
    Patched,
    Prepared,
    Proposed,
    Reported,
    Spent,
    StopAsked,
    Terminated,
    Tipped,
    UndoDecided,
    Undone,
)
from turbo_optimize.core.models import (
    CheckRow,
    Decision,
    Frozen,
    GateResult,
    Manifest,
    Proposal,
    Score,
    Session,
    Verdict,
)


class Round(Frozen):
    """Everything the journal says of one round. Round 1 is the baseline."""

    number: int
    proposal: Proposal | None = None
    attempt: int = 1
    analysis: Analyzed | None = None
    commit: str | None = None  # the candidate that was measured
    parent: str | None = None
    files: tuple[str, ...] = ()
    gates: tuple[GateResult, ...] = ()
    checks: tuple[CheckRow, ...] = ()
    repairable: bool = False
    sessions: tuple[Session, ...] = ()
    cap_pct: float | None = None  # of a weight cache's gain
    notes: tuple[str, ...] = ()
    score: Score | None = None
    incumbent_score: Score | None = None
    csv_sha256: str | None = None
    samples_sha256: str | None = None
    binary_sha256: str | None = None
    decision: Decision | None = None
    applied: str | None = None
    undone: str | None = None
    started: float = 0.0
    proposed_at: float = 0.0
    decided_at: float = 0.0
    ended: float = 0.0
    spent: dict[str, float] = Field(default_factory=dict)

    @property
    def status(self) -> str:
        if self.number == 1:
            return "BASELINE"
        if self.undone:
            return "UNDONE"
        return self.decision.verdict.value if self.decision and self.applied else "OPEN"


class State(Frozen):
    """What the journal says, folded."""

    manifest: Manifest | None = None
    prepared: Prepared | None = None
    learned: Learned | None = None
    baseline: Baselined | None = None
    rounds: tuple[Round, ...] = ()
    incumbent: str | None = None
    max_rounds: int = 0
    max_duration_s: float | None = None
    elapsed_s: float = 0.0  # while a runner had it
    last_at: float = 0.0
    stop_asked: str | None = None
    terminated: Terminated | None = None
    compared: tuple[Compared, ...] = ()
    final: FinalAccepted | None = None
    tips: tuple[dict[str, str], ...] | None = None
    reported: bool = False
    undo: UndoDecided | None = None  # an undo without its fact
    events: int = 0

    @property
    def current(self) -> Round | None:
        """The open round, if any (round 1 is open until BASELINE is done)."""
        last = self.rounds[-1] if self.rounds else None
        return last if last and last.number > 1 and not last.applied else None

    @property
    def closed(self) -> tuple[Round, ...]:
        return tuple(r for r in self.rounds if r.number > 1 and r.applied)

    @property
    def accepted(self) -> tuple[Round, ...]:
        return tuple(r for r in self.closed if r.decision and r.decision.accepted and not r.undone)

    @property
    def rollbacks_in_a_row(self) -> int:
        n = 0
        for r in reversed(self.closed):
            if r.decision and r.decision.verdict is Verdict.ACCEPTED:
                break
            n += 1
        return n

    def round(self, number: int) -> Round | None:
        return next((r for r in self.rounds if r.number == number), None)


def _in_round(state: State, number: int, at: float, **changes: Any) -> State:
    """The state with round `number` changed; a first mention opens it."""
    rounds = state.rounds
    i = number - 1
    if i == len(rounds):
        rounds = (*rounds, Round(number=number, started=at))
        i = len(rounds) - 1
    elif i > len(rounds):  # rounds are numbered without a gap
        raise JournalError(f"the journal speaks of round {number} after round {len(rounds)}", "`turbo-opt verify`")
    return state.model_copy(update={"rounds": (*rounds[:i], rounds[i].model_copy(update=changes), *rounds[i + 1 :])})


def _created(s: State, e: Created) -> State:
    return s.model_copy(
        update={
            "manifest": e.manifest,
            "max_rounds": e.manifest.max_rounds,
            "max_duration_s": e.manifest.max_duration,
        }
    )


def _opened(s: State, e: Opened) -> State:
    again = {"stop_asked": None, "terminated": None, "compared": (), "final": None, "tips": None, "reported": False}
    raised = {"max_rounds": e.max_rounds, "max_duration_s": e.max_duration_s}
    return s.model_copy(update={k: v for k, v in raised.items() if v is not None} | (again if e.again else {}))


def _prepared(s: State, e: Prepared) -> State:
    return s.model_copy(update={"prepared": e, "incumbent": s.manifest.base_commit if s.manifest else None})


def _learned(s: State, e: Learned) -> State:
    return s.model_copy(update={"learned": e})


def _baselined(s: State, e: Baselined) -> State:
    s = _in_round(
        s,
        1,
        e.at,
        commit=e.commit,
        checks=e.checks,
        score=e.score,
        csv_sha256=e.csv_sha256,
        applied=e.commit,
        samples_sha256=e.samples_sha256,
        binary_sha256=e.binary_sha256,
        ended=e.at,
    )
    return s.model_copy(update={"baseline": e, "incumbent": e.commit})


def _analyzed(s: State, e: Analyzed) -> State:
    return _in_round(s, e.round, e.at, analysis=e)


def _proposed(s: State, e: Proposed) -> State:
    # A new attempt starts the round's evidence afresh.
    return _in_round(
        s,
        e.round,
        e.at,
        proposal=e.proposal,
        proposed_at=e.at,
        attempt=e.attempt,
        commit=None,
        gates=(),
        checks=(),
        sessions=(),
        repairable=False,
        score=None,
    )


def _patched(s: State, e: Patched) -> State:
    return _in_round(s, e.round, e.at, commit=e.commit, parent=e.parent, files=e.files, attempt=e.attempt)


def _gated(s: State, e: Gated) -> State:
    cap = {} if e.cap_pct is None else {"cap_pct": e.cap_pct}
    return _in_round(s, e.round, e.at, gates=e.gates, checks=e.checks, repairable=e.repairable, **cap)


def _measured(s: State, e: Measured) -> State:
    number = e.round
    r = s.round(number)
    kept = tuple(x for x in (r.sessions if r else ()) if (x.level, x.index) != (e.session.level, e.session.index))
    return _in_round(
        s,
        number,
        e.at,
        sessions=(*kept, e.session),
        notes=(*(r.notes if r else ()), *e.notes),
        score=e.score,
        incumbent_score=e.incumbent_score,
        csv_sha256=e.csv_sha256,
        samples_sha256=e.samples_sha256,
        binary_sha256=e.binary_sha256,
    )


def _decided(s: State, e: Decided) -> State:
    return _in_round(s, e.round, e.at, decision=e.decision, decided_at=e.at)


def _applied(s: State, e: Applied) -> State:
    return _in_round(s, e.round, e.at, applied=e.commit, ended=e.at).model_copy(update={"incumbent": e.commit})


def _undo_decided(s: State, e: UndoDecided) -> State:
    return s.model_copy(update={"undo": e})


def _undone(s: State, e: Undone) -> State:
    return _in_round(s, e.round, e.at, undone=e.commit).model_copy(update={"incumbent": e.commit, "undo": None})


def _spent(s: State, e: Spent) -> State:
    r = s.round(e.round)
    parts = dict(r.spent) if r else {}
    for k, v in e.parts.items():
        parts[k] = parts.get(k, 0.0) + v
    return _in_round(s, e.round, e.at, spent=parts)


def _set(name: str, value: Callable[[Any], Any]) -> Callable[[State, Any], State]:
    return lambda s, e: s.model_copy(update={name: value(e)})


def _compared(s: State, e: Compared) -> State:
    return s.model_copy(update={"compared": (*s.compared, e)})


STEPS: dict[type, Callable[[State, Any], State]] = {
    Created: _created,
    Opened: _opened,
    Prepared: _prepared,
    Learned: _learned,
    Baselined: _baselined,
    Analyzed: _analyzed,
    Proposed: _proposed,
    Patched: _patched,
    Gated: _gated,
    Measured: _measured,
    Decided: _decided,
    Applied: _applied,
    UndoDecided: _undo_decided,
    Undone: _undone,
    Spent: _spent,
    StopAsked: _set("stop_asked", lambda e: e.why),
    Terminated: _set("terminated", lambda e: e),
    Compared: _compared,
    FinalAccepted: _set("final", lambda e: e),
    Tipped: _set("tips", lambda e: e.tips),
    Reported: _set("reported", lambda e: True),
}


def step(state: State, event: Event) -> State:
    """One event further. The clock runs between events of the same runner: a new `opened` starts it again, and
    `reported` adds nothing (the report can't hold the time that it took to write itself)."""
    still = isinstance(event, Opened | Created | Reported) or not state.last_at
    gap = 0.0 if still else max(0.0, event.at - state.last_at)
    state = STEPS[type(event)](state, event)
    return state.model_copy(
        update={"events": state.events + 1, "elapsed_s": state.elapsed_s + gap, "last_at": event.at}
    )


def fold(events: Iterable[Event], state: State | None = None) -> State:
    """State after `events`; pass a state to go on from it."""
    state = state or State()
    for event in events:
        state = step(state, event)
    return state
