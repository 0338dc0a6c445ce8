"""Frozen values that the runner speaks in. Pure: standard library and pydantic only."""

from __future__ import annotations

import math
from enum import StrEnum
from typing import Annotated, Any, Literal

from pydantic import AliasChoices, BaseModel, ConfigDict, Field, StringConstraints, model_validator


class Frozen(BaseModel):
    # An exact match has an SNR of inf: as a word in JSON it survives the journal (the default writes null).
    model_config = ConfigDict(frozen=True, extra="forbid", ser_json_inf_nan="strings")


class Verdict(StrEnum):
    ACCEPTED = "ACCEPTED"
    ROLLBACK = "ROLLBACK"
    INCONCLUSIVE = "INCONCLUSIVE"  # rolls back too; the evidence decided nothing


Level = Literal["aa", "screen", "confirm", "full"]  # what a session is for
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


class Policy(Frozen):
    """Every threshold of measurement and decision. Percentages are of the primary metric."""

    model_config = ConfigDict(allow_inf_nan=False)

    name: str = "standard"
    # -- decision (SPEC §4) --
    veto_pct: float = Field(default=5.0, gt=0)  # a core shape this much slower rejects
    small_gain_pct: float = 2.0  # below: at least `confirm_sessions` re-measurements, mean > min_gain_pct, sd < mean/2
    full_gain_pct: float = 5.0  # below, or high risk: full validation on all target shapes decides
    min_gain_pct: float = 1.0
    z_accept: float = Field(default=3.09, gt=0)  # one-sided: the paired estimate must exceed this many standard errors
    z_screen: float = 1.28  # upper 90% bound of the screen
    z_full: float = 1.645  # lower 95% bound of the full validation
    confirm_sessions: int = Field(default=3, ge=1)
    extra_sessions: int = Field(default=3, ge=0)  # once, when the first ones leave it undecided
    # -- a session (MEASUREMENT.md) --
    quads: int = Field(default=8, ge=2)
    trim: int = Field(default=1, ge=0)  # quads dropped at each end, per shape
    soak_s: float = Field(default=1.0, ge=0)  # both workers in turn, per shape, before the first quad
    block_ms: float = Field(default=10.0, gt=0)
    block_calls: int = Field(default=20, ge=1)
    block_max_ms: float = Field(default=120.0, gt=0)  # block_calls yields to this on slow shapes
    forward_every: int = Field(default=4, ge=1)  # the forward alone is timed in every n-th quad (a diagnostic)
    aa_sessions: int = Field(default=3, ge=1)  # A/A at BASELINE: incumbent against itself
    launch_bound_pct: float = 5.0  # a shape that moves more than this in A/A can't veto
    # -- shapes --
    representative_max: int = Field(default=4, ge=1)
    # -- a round --
    debug_retry: int = Field(default=3, ge=0)
    sweep_size: int = Field(default=10, ge=1)  # configurations that `search` times in one round
    sweep_ms: float = Field(default=30.0, gt=0)  # time per configuration and shape in that sweep
    # -- termination --
    efficiency_pct: float = 90.0  # T2: of the roofline
    leave_one_out: bool = True
    # -- limits of a worker or checker, seconds --
    start_timeout_s: float = Field(default=120.0, gt=0)
    compile_timeout_s: float = Field(default=600.0, gt=0)
    check_timeout_s: float = Field(default=120.0, gt=0)
    block_timeout_s: float = Field(default=60.0, gt=0)

    @model_validator(mode="after")
    def _trim_leaves_some(self) -> Policy:
        if self.quads - 2 * self.trim < 1:
            raise ValueError(f"trim {self.trim} leaves nothing of {self.quads} quads")
        return self


POLICIES: dict[str, Policy] = {
    "standard": Policy(),
    "precise": Policy(name="precise", min_gain_pct=0.0, small_gain_pct=0.0),
    # The interpreter is 10,000 times slower than a GPU and its noise is the scheduler's: few, short blocks, large bars.
    "cpu": Policy(
        name="cpu",
        min_gain_pct=3.0,
        small_gain_pct=5.0,
        full_gain_pct=10.0,
        veto_pct=10.0,
        quads=4,
        trim=0,
        soak_s=0.0,
        block_ms=1.0,
        block_calls=1,
        block_max_ms=400.0,
        aa_sessions=2,
        confirm_sessions=3,
        extra_sessions=0,
        launch_bound_pct=25.0,
        representative_max=3,
        sweep_size=6,
        sweep_ms=1.0,
    ),
}


Name = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9_-]*$")]  # becomes part of a branch's name


class ParamSpace(Frozen):
    """One launch parameter or structural switch of a kernel and its legal values."""

    values: tuple[int | bool | str, ...] = Field(min_length=1)


class Direction(Frozen):
    """What `search` may move together in one round, with why it should pay (knowledge behind the ranking)."""

    name: str
    params: tuple[str, ...] = Field(min_length=1)
    sections: tuple[str, ...] = ()  # empty: every section of the space, one round each
    category: str = "tile_launch"
    bottleneck: tuple[str, ...] = ()
    expected_gain_pct: float = 5.0
    risk: Literal["low", "high"] = "low"
    signal: str = ""
    bucket: str = "K1"


class Space(Frozen):
    """A kernel's declared search space: a JSON file {section: {param: value}} that the kernel reads at import."""

    file: str
    sections: tuple[str, ...]
    params: dict[str, ParamSpace]
    directions: tuple[Direction, ...]
    fits: str = "none"  # the static resource model in core/space.py
    operand_bytes: int = 2
    accumulators: int = Field(default=1, ge=1)  # fp32 tiles that a program holds at once

    @model_validator(mode="after")
    def _directions_are_declared(self) -> Space:
        for d in self.directions:
            for what, used, known in (("param", d.params, self.params), ("section", d.sections, self.sections)):
                if unknown := [x for x in used if x not in known]:
                    raise ValueError(f"direction {d.name}: no {what} {unknown[0]!r}, there is {', '.join(known)}")
        return self


class Backend(Frozen):
    """One backend of an op: what may be edited, and how to search it."""

    lang: str
    gpus: tuple[str, ...]
    kernel_source: tuple[str, ...] = Field(min_length=1)
    editable: tuple[str, ...] = Field(min_length=1)  # glob patterns relative to the repository root
    rebuild_command: str | None = None
    space: Space | None = None
    unavailable: str | None = None  # the reason, where the project itself knows it


class Op(Frozen):
    """One operator of a project. Commands may use {python}, {tree}, {out}, {shapes}, {device}."""

    schema_class: Literal["gemm", "memory", "attention"]
    metric: str
    execution_mode: Literal["training", "forward"] = "training"
    variants: tuple[str, ...] = Field(default=("default",), min_length=1)
    dtypes: tuple[str, ...] = Field(default=("bf16",), min_length=1)
    peak: str = "bf16"  # which roofline row bounds it
    test_command: str
    benchmark_command: str
    quick_template: str = "quick_test_bench.py.j2"  # in templates/ or relative to the project file
    adapter: str  # python file: make_inputs, forward, step, reference, check (docs/projects.md)
    frozen: tuple[str, ...] = ()  # harness files hashed before and after each run, beside the adapter
    import_roots: tuple[str, ...] = (".",)
    import_name: str  # the module whose path and hash every worker reports
    gpu_shapes: tuple[tuple[int, ...], ...] = ()
    cpu_shapes: tuple[tuple[int, ...], ...] = ()
    backends: dict[Name, Backend] = Field(min_length=1)


class Project(Frozen):
    """A project file: the in-tree library and a foreign repository are described by the same model."""

    name: str
    ops: dict[Name, Op] = Field(min_length=1)
    policy: dict[str, Any] = Field(default_factory=dict)  # overrides on the chosen policy


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
    max_duration: float | None = Field(default=None, gt=0, validation_alias=AliasChoices("max_duration", "max_duration_s"))  # seconds
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
    """One timed block."""

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


class CheckRow(Frozen):
    """The checker's word on one shape. PASS can't be built without finite numbers (an exact match is SNR inf)."""

    shape: str
    check: Literal["PASS", "FAIL", "ERROR"]
    metrics: dict[str, float] = Field(default_factory=dict)
    detail: str = ""

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


class Evidence(Frozen):
    """All that `decide` reads, measured by the runner. Shapes of `core_shapes` can veto."""

    gates: tuple[GateResult, ...] = ()
    checks: tuple[CheckRow, ...] = ()
    sessions: tuple[Session, ...] = ()
    core_shapes: tuple[str, ...] = ()
    sigma_aa: float = Field(default=0.0, ge=0, allow_inf_nan=False)  # deviation of a session's estimate in A/A, log
    high_risk: bool = False
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
