"""Frozen values that the runner speaks in; those of policies and project files have files of their own, and are named
here too. Pure: standard library and pydantic only."""

from __future__ import annotations

import math
from enum import StrEnum
from typing import Any, Literal

from pydantic import AliasChoices, Field, model_validator

from turbo_optimize.core.frozen import Frozen
from turbo_optimize.core.policy import POLICIES, Policy
from turbo_optimize.core.project import Backend, Direction, Op, ParamSpace, Project, Space

__all__ = [
    "POLICIES",
    "Backend",
    "CheckRow",
    "Decision",
    "Direction",
    "Evidence",
    "Frozen",
    "GateResult",
    "Level",
    "Manifest",
    "NeedMore",
    "Op",
    "ParamSpace",
    "Policy",
    "Project",
    "Proposal",
    "Role",
    "Sample",
    "Score",
    "Session",
    "Shape",
    "ShapeDelta",
    "Space",
    "Verdict",
]


class Verdict(StrEnum):
    ACCEPTED = "ACCEPTED"
    ROLLBACK = "ROLLBACK"
    INCONCLUSIVE = "INCONCLUSIVE"  # rolls back too; the evidence decided nothing


Level = Literal["aa", "screen", "confirm", "full", "train"]  # what a session is for
Role = Literal["A", "B"]  # A incumbent, B candidate


class Shape(Frozen):
    """One problem size. `dims` holds the integers that the op class names (GEMM: B, M, N, K)."""

    label: str = Field(min_length=1)
    dims: dict[str, int]

    @model_validator(mode="after")
    def _in_range(self) -> Shape:
        bad = {k: v for k, v in self.dims.items() if not 1 <= v < 2**31}  # kernels index with 32 bits
        if bad:
            raise ValueError(f"shape {self.label}: dimensions must be ≥ 1 and below 2³¹, got {bad}")
        return self


class Manifest(Frozen):
    """The target of a campaign. Frozen after DEFINE_TARGET, apart from what BASELINE fills."""

    campaign: str
    target_op: str
    target_variant: str
    target_backend: str
    target_lang: str
    target_gpu: str
    dtype: str
    schema_class: Literal["gemm", "memory", "attention"]
    target_shapes: tuple[Shape, ...] = Field(min_length=1)
    representative_shapes: tuple[str, ...] = ()
    primary_metric: str
    performance_target: str | None = None
    execution_mode: Literal["training", "forward"]
    mode: Literal["repo"] = "repo"
    project: str
    project_file: str
    kernel_source: tuple[str, ...]
    editable: tuple[str, ...]
    test_command: str
    benchmark_command: str
    quick_command: str
    rebuild_command: str | None = None
    git_commit: bool = True
    git_branch: str | None = None
    base_commit: str
    max_rounds: int = Field(ge=1, lt=120)
    max_duration: float | None = Field(
        default=None, gt=0, validation_alias=AliasChoices("max_duration", "max_duration_s")
    )  # seconds
    proposer: str
    proposer_args: dict[str, str] = Field(default_factory=dict)
    policy: Policy = Policy()
    seed: int
    created: str  # YYYY-MM-DD HH:MM
    schema_sha256: str | None = None
    harness_sha256: str | None = None
    noise: dict[str, float] = Field(default_factory=dict)  # A/A deviation per shape, percent
    environment: dict[str, str] = Field(default_factory=dict)
    sources: dict[str, str] = Field(default_factory=dict)  # field -> flag | project | detected | default

    def shape(self, label: str) -> Shape:
        """The target shape of that label; LookupError where there is none (an edited manifest)."""
        found = next((s for s in self.target_shapes if s.label == label), None)
        if found is None:
            raise LookupError(f"{label} is no target shape")
        return found


class Proposal(Frozen):
    """One hypothesis and its single change. Carries no measured number that a decision reads."""

    hypothesis: str = Field(min_length=1)
    change: str  # one line: what changes
    summary: str  # for the commit subject
    category: str = "tile_launch"
    direction: str = ""  # identity for "was tried": search uses section/direction
    bottleneck: str = ""
    expected_gain_pct: float | None = None
    risk: Literal["low", "high"] = "low"
    signal: str = ""
    bucket: str = "K1"
    edits: dict[str, str] = Field(default_factory=dict)  # path -> whole new text
    patch: str | None = None  # or a unified diff
    worktree: bool = False  # or: what already stands in the worktree (manual)
    hints: tuple[dict[str, Any], ...] = ()  # a sweep's unpaired timings: for people, never for the decision


class Sample(Frozen):
    """One timed block. `step_ms` is by the runner's clock: from the start signal to the receipt of outputs, less the
    messages' own time. Records of before that have the worker's clock there, and nothing after `wall_ms`."""

    level: Level
    session: int
    shape: str
    quad: int
    slot: int
    role: Role
    calls: int = Field(ge=1)
    step_ms: float = Field(gt=0, allow_inf_nan=False)
    forward_ms: float | None = Field(default=None, gt=0, allow_inf_nan=False)
    wall_ms: float = Field(gt=0, allow_inf_nan=False)
    claimed_ms: float | None = Field(default=None, allow_inf_nan=False)  # by the worker's own clock
    event_ms: float | None = Field(default=None, allow_inf_nan=False)  # by the stream's events
    clock_mhz: float | None = None
    temp_c: float | None = None
    power_w: float | None = None
    throttle: str | None = None  # what slowed the device down


class CheckRow(Frozen):
    """The checker's word on one shape. PASS can't be built without finite numbers (an exact match is SNR inf)."""

    shape: str
    check: Literal["PASS", "FAIL", "ERROR"]
    metrics: dict[str, float] = Field(default_factory=dict)
    detail: str = ""
    code: str = "G04"  # the check that objects, where one does

    @model_validator(mode="after")
    def _pass_has_numbers(self) -> CheckRow:
        if self.check == "PASS" and (not self.metrics or any(math.isnan(v) for v in self.metrics.values())):
            raise ValueError(f"shape {self.shape}: PASS without numbers")
        return self


class GateResult(Frozen):
    """A gate before measuring: scope, audit, build, correctness, schema, identity. `code` is a rule code."""

    code: str
    ok: bool
    detail: str = ""


class Session(Frozen):
    """One session's paired result: per shape the log-ratio of every quad, ln(t_A / t_B); positive is faster."""

    level: Level
    index: int
    quads: dict[str, tuple[float, ...]]
    step_us: dict[str, float] = Field(default_factory=dict)  # the incumbent's time a step, by shape


class Evidence(Frozen):
    """All that `decide` reads, measured by the runner. Shapes of `core_shapes` can veto."""

    gates: tuple[GateResult, ...] = ()
    checks: tuple[CheckRow, ...] = ()
    sessions: tuple[Session, ...] = ()
    core_shapes: tuple[str, ...] = ()
    sigma_aa: float = Field(default=0.0, ge=0, allow_inf_nan=False)  # deviation of a session's estimate in A/A, log
    high_risk: bool = False
    cap_pct: float | None = None  # W1: no more than this may be claimed
    training: bool = False  # a training step is measured: its gain must hold in training steps too
    full_is_quick: bool = False  # the target shapes are the representative ones


class ShapeDelta(Frozen):
    shape: str
    gain_pct: float
    low_pct: float  # 95% interval over quads
    high_pct: float


class Decision(Frozen):
    """The verdict, the rule that decided, and the numbers it read."""

    verdict: Verdict
    code: str
    reason: str
    gain_pct: float | None = None
    low_pct: float | None = None  # estimate − z_accept·SE
    high_pct: float | None = None
    sessions: int = 0
    shapes: tuple[ShapeDelta, ...] = ()
    trade_off: bool = False
    train_pct: float | None = None  # the gain measured again in training steps

    @property
    def accepted(self) -> bool:
        return self.verdict is Verdict.ACCEPTED


class NeedMore(Frozen):
    """Not decidable yet: measure this."""

    level: Level
    sessions: int = Field(ge=1)
    why: str


class Score(Frozen):
    """The geometric mean over shapes of the primary metric, and the diagnostics beside it. Unit: the metric's."""

    value: float
    unit: str
    forward_avg: float | None = None
    forward_peak: float | None = None
    backward_avg: float | None = None
    backward_peak: float | None = None
    per_shape: dict[str, float] = Field(default_factory=dict)
