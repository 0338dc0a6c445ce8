"""The journal's vocabulary: every event of a campaign. What they add up to is in state.py.

An event is either intent (`decided`) or fact (`applied`); what a crash leaves without its fact is settled by
`engine.settle`. Nothing else remembers anything: delete every rendered file and the journal rebuilds it.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Any, Literal

from pydantic import Field, TypeAdapter

from turbo_optimize.core.checks import Norms
from turbo_optimize.core.models import (
    CheckRow,
    Decision,
    Frozen,
    GateResult,
    Manifest,
    Proposal,
    Score,
    Session,
)


class Phase(StrEnum):
    DEFINE_TARGET = "DEFINE_TARGET"
    PREPARE_ENVIRONMENT = "PREPARE_ENVIRONMENT"
    BASELINE = "BASELINE"
    ANALYZE = "ANALYZE"
    OPTIMIZE = "OPTIMIZE"
    VALIDATE = "VALIDATE"
    WAIT = "WAIT"  # a manual campaign with an open round: the next `validate --round N` goes on
    REPORT = "REPORT"
    DONE = "DONE"


class Base(Frozen):
    at: float = 0.0  # seconds since the epoch, set by the journal


class Created(Base):
    kind: Literal["created"] = "created"
    manifest: Manifest


class Opened(Base):
    """A runner took the campaign: `start`, `resume`, `validate`. Time between two runs doesn't count."""

    kind: Literal["opened"] = "opened"
    command: str
    pid: int
    max_rounds: int | None = None
    max_duration_s: float | None = None
    again: bool = False  # goes on after an ended campaign (a raised budget): clears stop and termination


class Prepared(Base):
    kind: Literal["prepared"] = "prepared"
    branch: str | None
    head_ref: str  # the ref that accepting moves
    worktree: str  # inside the campaign's folder, which may be moved
    harness_sha256: str
    prerequisites: tuple[GateResult, ...] = ()
    tips: tuple[str, ...] = ()


class Learned(Base):
    """What the base commit reaches under every check, and which planted faults the gates found."""

    kind: Literal["learned"] = "learned"
    norms: Norms
    checks: tuple[CheckRow, ...]
    self_test: tuple[GateResult, ...] = ()
    binary_sha256: str = ""
    versions: dict[str, str] = Field(default_factory=dict)


class Baselined(Base):
    """Round 1."""

    kind: Literal["baselined"] = "baselined"
    commit: str
    score: Score
    checks: tuple[CheckRow, ...]
    representative_shapes: tuple[str, ...]
    core_shapes: tuple[str, ...]
    noise_pct: dict[str, float]
    sigma_aa: float
    schema_sha256: str
    csv_sha256: str
    samples_sha256: str
    binary_sha256: str
    environment: dict[str, str] = Field(default_factory=dict)
    aa_floor_pct: float | None = None  # the largest A/A estimate of the geometric mean
    quads: int | None = None  # where a noisy device made them more than the policy's
    min_gain_pct: float | None = None  # where the floor allows no smaller claim
    resolves_pct: float | None = None  # the smallest gain that the confirming sessions find


class Analyzed(Base):
    kind: Literal["analyzed"] = "analyzed"
    round: int
    bottleneck: str
    evidence: str
    directions: tuple[dict[str, Any], ...] = ()
    review: str = ""  # stagnation: diagnose, re-profile, ISA level, different approach


class Proposed(Base):
    kind: Literal["proposed"] = "proposed"
    round: int
    attempt: int = 1  # repairs of the same round count up
    proposal: Proposal


class Patched(Base):
    kind: Literal["patched"] = "patched"
    round: int
    attempt: int = 1
    commit: str
    parent: str
    files: tuple[str, ...]


class Gated(Base):
    """A gate's word before measuring; a failed build or check may be repaired within the round."""

    kind: Literal["gated"] = "gated"
    round: int
    attempt: int = 1
    gates: tuple[GateResult, ...]
    checks: tuple[CheckRow, ...] = ()
    repairable: bool = False
    cap_pct: float | None = None  # the most that a weight cache's gain may be


class Measured(Base):
    """One session. The hashes are those of the files as they stood after it."""

    kind: Literal["measured"] = "measured"
    round: int
    session: Session
    score: Score
    incumbent_score: Score
    csv_sha256: str
    samples_sha256: str
    binary_sha256: str
    notes: tuple[str, ...] = ()  # sessions that were void, and why


class Decided(Base):
    """Intent: what the branch shall become."""

    kind: Literal["decided"] = "decided"
    round: int
    decision: Decision
    incumbent: str


class Applied(Base):
    """Fact: where the branch is."""

    kind: Literal["applied"] = "applied"
    round: int
    commit: str  # the incumbent from here on


class UndoDecided(Base):
    kind: Literal["undo_decided"] = "undo_decided"
    round: int
    commit: str  # the accepted commit to take back
    onto: str


class Undone(Base):
    kind: Literal["undone"] = "undone"
    round: int
    commit: str  # the revert


class StopAsked(Base):
    kind: Literal["stop_asked"] = "stop_asked"
    why: str


class Terminated(Base):
    kind: Literal["terminated"] = "terminated"
    code: str  # T1 … T6
    why: str


class Compared(Base):
    """The end's paired measurements: baseline against head, and head against head-without-round."""

    kind: Literal["compared"] = "compared"
    what: Literal["final", "leave_one_out", "checkpoint"]
    round: int | None = None
    gain_pct: float | None
    low_pct: float | None = None
    high_pct: float | None = None
    shapes: dict[str, float] = Field(default_factory=dict)
    before: Score | None = None
    after: Score | None = None
    note: str = ""


class FinalAccepted(Base):
    """Final acceptance: full test, full benchmark, clean diff that touches editable files alone."""

    kind: Literal["final_accepted"] = "final_accepted"
    gates: tuple[GateResult, ...]


class Tipped(Base):
    kind: Literal["tipped"] = "tipped"
    tips: tuple[dict[str, str], ...]


class Reported(Base):
    kind: Literal["reported"] = "reported"
    report_sha256: str


class Spent(Base):
    """Where time went, for logs/cost.md and the overhead figure. Seconds."""

    kind: Literal["spent"] = "spent"
    round: int
    parts: dict[str, float]  # compile, measure, check, sweep, start


Event = (
    Created
    | Opened
    | Prepared
    | Learned
    | Baselined
    | Analyzed
    | Proposed
    | Patched
    | Gated
    | Measured
    | Decided
    | Applied
    | UndoDecided
    | Undone
    | StopAsked
    | Terminated
    | Compared
    | FinalAccepted
    | Tipped
    | Reported
    | Spent
)
EVENT: TypeAdapter[Event] = TypeAdapter(Annotated[Event, Field(discriminator="kind")])
