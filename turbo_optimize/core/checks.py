"""The checks of a candidate's behaviour: their codes, what is asked of a worker, what the checker measures. Pure.

The checker process measures (dB, tiles, exact matches); what the figures must be is decided, beside those of the base
commit on the same kinds of inputs (trial_checks.py, session_checks.py): a check that the base itself can't pass isn't
armed.
"""

from __future__ import annotations

import math
import random
from collections.abc import Mapping, Sequence
from typing import Literal

from pydantic import Field

from turbo_optimize.core.frozen import Frozen

# code -> title; rules/<code>-<title, lower case, hyphens>.md says what, why, example, mend
CHECKS: dict[str, str] = {
    "K01": "unwritten output",
    "K02": "worst tile",
    "K03": "exact on integers",
    "K04": "stale output",
    "K05": "one element changed",
    "K06": "timed outputs",
    "K07": "input changed",
    "K08": "output overwritten",
    "K09": "plain tensors",
    "K10": "threads and processes",
    "K11": "clock",
    "K12": "known bad output",
    "K13": "held-out shapes",
    "K14": "unusual inputs",
    "K15": "precision lost",
    "K16": "global state",
    "K17": "compiled while timing",
    "K18": "late output",
    "K19": "training steps",
    "K20": "library call",
    "K21": "files left behind",
    "K22": "work beside the stream",
    "K23": "not deterministic",
    "K24": "transfer to training",
}
# What ends a candidate's process, by the kind of the failure; its page says the limit.
LIMITS: dict[str, tuple[str, str]] = {
    "timeout": ("L01", "no answer in time"),
    "crash": ("L02", "process died"),
    "fault": ("L03", "device fault"),
    "memory": ("L04", "host memory"),
    "device_memory": ("L05", "device memory"),
    "processes": ("L06", "processes"),
    "disk": ("L07", "disk"),
    "denied": ("L08", "refused by the sandbox"),
    "rival": ("L09", "incumbent failed beside it"),
}
# Honest mistakes look like these: a round may repair them.
REPAIRABLE = frozenset({"G03", "G04", "K01", "K02", "K03", "K05", "K13", "K14", "K15", "K18", "L03", "L05"})

How = Literal["fresh", "rewrite", "poke"]


class Call(Frozen):
    """One call of a trial: which contents, in which objects, and when its outputs are written."""

    fill: str = "normal"
    seed: int
    how: How = "fresh"
    when: Literal["now", "end"] = "now"
    what: Literal["step", "forward"] = "step"  # the forward alone: its graph is held while the output is looked at
    inputs: bool = False  # the inputs as they are afterwards are written too


class Measure(Frozen):
    """How far one output is from the truth. dB against the higher-precision reference."""

    ok: bool = True  # its shape
    finite: bool = True
    snr_db: float = math.inf
    tile_db: float = math.inf
    bad: int = 0  # elements that differ from the rounded reference
    of: int = 0
    sha: str = ""


class Judged(Frozen):
    """What the checker measured of one call."""

    passed: bool  # the project's own check
    metrics: dict[str, float] = Field(default_factory=dict)
    detail: str = ""
    outputs: dict[str, Measure] = Field(default_factory=dict)
    changed: tuple[str, ...] = ()
    later: tuple[str, ...] = ()  # outputs whose contents changed after they had been written
    moved: dict[str, float] = Field(default_factory=dict)
    ruined_passes: bool = False  # the check also passed a copy with a row of zeros


class Norm(Frozen):
    """What the base commit reaches on one kind of inputs, the worst over its trials, by output."""

    snr_db: dict[str, float] = Field(default_factory=dict)
    tile_db: dict[str, float] = Field(default_factory=dict)
    exact: bool = False
    moved: float = 1.0
    passes: bool = False


class Norms(Frozen):
    """The base commit under every check: what a candidate is held to, and which checks are armed."""

    fills: dict[str, Norm] = Field(default_factory=dict)
    deterministic: bool = False
    rejects_ruined: bool = False  # the project's check fails a row of zeros
    heldout: bool = False  # shapes of other sizes run at all
    training: bool = False  # training steps with an updated weight pass
    accumulates: bool = False  # so do steps that add to the weight's gradient
    off: tuple[str, ...] = ()  # checks that the base itself doesn't pass
    kernels: tuple[str, ...] = ()
    ops: tuple[str, ...] = ()
    first_call_s: float = 0.0  # compile and run, on a cold cache

    def of(self, fill: str) -> Norm:
        return self.fills.get(fill, Norm())


class Failure(Frozen):
    """A check that objects."""

    code: str
    detail: str


# -- which calls -------------------------------------------------------------------------------------------------------
def whole_trial(rng: random.Random, fills: Sequence[str]) -> tuple[Call, ...]:
    """Every kind of call on one shape: fresh, rewritten in place, one element moved, each fill, and the first again."""

    def call(fill: str, how: How, seed: int | None = None, inputs: bool = False) -> Call:
        when: Literal["now", "end"] = "now" if rng.random() < 0.5 else "end"
        return Call(fill=fill, seed=rng.randrange(2**31) if seed is None else seed, how=how, when=when, inputs=inputs)

    first = call("normal", "fresh", inputs=True)
    other: Literal["now", "end"] = "end" if first.when == "now" else "now"
    alone = call("normal", "fresh").model_copy(update={"what": "forward", "when": "now"})
    others = [call(f, "fresh") for f in fills if f != "normal"]
    rng.shuffle(others)
    again = call("normal", "fresh", seed=first.seed).model_copy(update={"when": other})
    return (first, call("normal", "rewrite"), call("normal", "poke"), alone, *others, again)


def short_trial(rng: random.Random) -> tuple[Call, ...]:
    """Two calls on one set of tensors: normal contents, kept to the end; integers in their place, judged exactly."""
    seeds = rng.sample(range(2**31), 2)
    return (Call(seed=seeds[0], when="end"), Call(seed=seeds[1], fill="ints", how="rewrite", when="now"))


def heldout_dims(dims: Mapping[str, int], rng: random.Random, largest: int) -> dict[str, int]:
    """Sizes that no tile divides: odd, prime or one beside a multiple; the batch and heads stay. `largest` bounds each."""
    primes = [p for p in range(5, largest) if all(p % q for q in range(2, int(p**0.5) + 1))]
    beside = [n + d for n in range(16, largest - 1, 16) for d in (-1, 1)]
    kept = {"B", "H", "D"}
    return {k: v if k in kept else rng.choice(rng.choice((primes, beside or primes))) for k, v in dims.items()}
