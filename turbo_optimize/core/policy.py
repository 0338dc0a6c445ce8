"""Every threshold in one value, and the policies that ship. Pure."""

from __future__ import annotations

from typing import Any

from pydantic import ConfigDict, Field, model_validator

from turbo_optimize.core.frozen import Frozen


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
    between_sessions: bool = (
        False  # the scatter between sessions counts in the SE; off only in records of before it did
    )
    steady_below_pct: float = 1000.0  # a smaller gain needs a deviation between sessions under half of it
    full_sessions: int = Field(default=1, ge=1)
    full_skips_same: bool = True  # no full validation where the target shapes are the representative ones
    confirm_sessions: int = Field(default=3, ge=1)
    extra_sessions: int = Field(default=3, ge=0)  # once, when the first ones leave it undecided
    # -- a session (MEASUREMENT.md) --
    quads: int = Field(default=8, ge=2)
    trim: int = Field(default=1, ge=0)  # quads dropped at each end, per shape
    pin: bool = (
        True  # on a GPU both workers are timed on one and the same CPU: the host's part of a step is then stable
    )
    soak_s: float = Field(default=1.0, ge=0)  # both workers in turn, per shape, before the first quad
    block_ms: float = Field(default=10.0, gt=0)
    block_calls: int = Field(default=20, ge=1)
    block_max_ms: float = Field(default=120.0, gt=0)  # block_calls yields to this on slow shapes
    forward_every: int = Field(default=4, ge=1)  # the forward alone is timed in every n-th quad (a diagnostic)
    aa_sessions: int = Field(default=3, ge=1)  # A/A at BASELINE: incumbent against itself
    aa_floor_pct: float = Field(default=1000.0, gt=0)  # A/A moves more: twice the quads; still more: claim ≥ 2%
    launch_bound_pct: float = 5.0  # a shape that moves more than this in A/A can't veto
    floor_us: float = Field(default=0.0, ge=0)  # per step: a smaller loss can't veto, a smaller gain isn't one
    void_retries: int = Field(default=2, ge=0)  # a session on a throttled or shared device is measured again
    clock_apart_pct: float = Field(default=2.0, gt=0)  # the GPU's clocks under A and B, else the session is void
    # -- checks --
    audit_rejects: bool = True  # the static audit's findings roll back; else they explain, and behaviour decides
    heldout: int = Field(default=2, ge=0)  # shapes of sizes that only this run knows
    heldout_max: int = Field(default=400, ge=24)  # their largest dimension
    train_steps: int = Field(default=8, ge=1)
    transfer_quads: int = Field(default=0, ge=0)  # quads a shape of timed training steps before an accept; 0: none
    checkpoint_every: int = Field(default=10, ge=1)  # accepts between two measurements of baseline against head
    # -- shapes --
    representative_max: int = Field(default=5, ge=1)
    # -- a round --
    debug_retry: int = Field(default=3, ge=0)
    sweep_size: int = Field(default=10, ge=1)  # configurations that `search` times in one round
    sweep_ms: float = Field(default=30.0, gt=0)  # time per configuration and shape in that sweep
    # -- termination --
    efficiency_pct: float = 90.0  # T2: of the roofline
    leave_one_out: bool = True
    # -- limits of a worker or checker, seconds --
    worker_memory_gib: float = Field(
        default=32.0, gt=0
    )  # of one process and its children; never over 80% of the machine
    worker_disk_gib: float = Field(default=8.0, gt=0)
    start_timeout_s: float = Field(default=120.0, gt=0)
    compile_timeout_s: float = Field(default=600.0, gt=0)
    check_timeout_s: float = Field(default=120.0, gt=0)
    block_timeout_s: float = Field(default=10.0, gt=0)  # at least; 20 times the incumbent's block, if that is more

    @model_validator(mode="after")
    def _trim_leaves_some(self) -> Policy:
        if self.quads - 2 * self.trim < 1:
            raise ValueError(f"trim {self.trim} leaves nothing of {self.quads} quads")
        return self


# What a policy of today has and a record of before it hadn't: the defaults above decide old journals as they were.
_REFEREE: dict[str, Any] = {"aa_sessions": 8, "aa_floor_pct": 1.0, "floor_us": 2.0, "transfer_quads": 4}

# A gain without a bar rests on its interval alone: two sessions more, and no demand on their scatter beyond it.
_PRECISE: dict[str, Any] = {"steady_below_pct": 0.0, "full_sessions": 2, "full_skips_same": False}

POLICIES: dict[str, Policy] = {
    "standard": Policy(between_sessions=True, **_REFEREE),
    "precise": Policy(
        name="precise", between_sessions=True, min_gain_pct=0.0, small_gain_pct=0.0, **_PRECISE, **_REFEREE
    ),
    # The interpreter is 10,000 times slower than a GPU and its noise is the scheduler's: few, short blocks, large bars.
    "cpu": Policy(
        name="cpu",
        between_sessions=True,
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
        heldout=1,
        heldout_max=32,
        train_steps=4,
        transfer_quads=1,
    ),
}
