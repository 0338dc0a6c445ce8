"""What training steps keep of the gains that the benchmark shows. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

from turbo_optimize.core.rules import INFLATION_PCT
from turbo_optimize.core.state import Round, State
from turbo_optimize.reports.rounds import gain_factor, paired_gain_pct, trained_pct
from turbo_optimize.reports.text import pct


def gap_pct(claimed_pct: float, measured_pct: float) -> float:
    """What is measured beyond a claim, percent; negative where the claim is larger."""
    return 100.0 * ((1 + measured_pct / 100) / (1 + claimed_pct / 100) - 1)


def inflated(gain_pct: float, train_pct: float) -> bool:
    """Whether the benchmark promises more than training steps show, by over INFLATION_PCT."""
    return gap_pct(gain_pct, train_pct) < -INFLATION_PCT


def kept(gain_pct: float, train_pct: float) -> str:
    """`93% of it is kept`"""
    part = train_pct / gain_pct if gain_pct > 0 else 0.0
    much = "all" if part >= 1 else f"{100 * part:.0f}%" if part > 0 else "nothing"
    return f"{much} of it is kept"


def lines(state: State, r: Round) -> Iterator[str]:
    """What a round's summary says of it."""
    trained, gain_pct = trained_pct(state, r), r.decision.gain_pct if r.decision else None
    if trained is not None and gain_pct is not None:
        line = f"In training steps {pct(trained)}, in the benchmark {pct(gain_pct)}: {kept(gain_pct, trained)}"
        yield line + (f"; inflation: the gap is over {INFLATION_PCT:g}%" if inflated(gain_pct, trained) else "")
    elif trained is not None:
        yield f"In training steps {pct(trained)}"
    if r.cap_pct is not None:
        yield f"Weight cache: a step without the weight's own work would gain {pct(r.cap_pct)}; no more is claimed"


def whole(state: State) -> dict[str, Any]:
    """Over the accepted rounds that were measured in training steps too: `train_rounds`, the products `train_pct` and
    `train_claimed_pct` of both gains (None without such rounds), `inflated` [{round, gain_pct, train_pct}]."""
    measured = [r for r in state.accepted if r.decision and r.decision.gain_pct is not None]
    found = [(r, t) for r in measured if (t := trained_pct(state, r)) is not None]
    pairs = [(r.number, 100.0 * (gain_factor(r) - 1), t) for r, t in found]
    return {
        "train_rounds": [n for n, _, _ in pairs],
        "train_pct": 100.0 * (math.prod(1 + t / 100 for _, _, t in pairs) - 1) if pairs else None,
        "train_claimed_pct": paired_gain_pct(r for r, _ in found) if pairs else None,
        "inflated": [{"round": n, "gain_pct": g, "train_pct": t} for n, g, t in pairs if inflated(g, t)],
    }
