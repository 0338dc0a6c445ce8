"""Counts as rates with their intervals, rows of a table, and JSON. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from turbo_optimize.simulation.driver import CAMPAIGN, Tally

Z95 = 1.959964


@dataclass(frozen=True)
class Row:
    """One rule at one true gain."""

    rule: str
    gain_pct: float
    tally: Tally

    @property
    def rate(self) -> float:
        return self.tally.accepted / self.tally.rounds

    @property
    def interval(self) -> tuple[float, float]:
        return wilson(self.tally.accepted, self.tally.rounds)


def wilson(hits: int, n: int, z: float = Z95) -> tuple[float, float]:
    """Wilson's score interval of a proportion; with 0 of n its upper end is z²/(n + z²)."""
    p, zz = hits / n, z * z
    middle, half = p + zz / (2 * n), z * math.sqrt(p * (1 - p) / n + zz / (4 * n * n))
    low, high = (middle - half) / (1 + zz / n), (middle + half) / (1 + zz / n)
    return (0.0 if hits == 0 else low, 1.0 if hits == n else high)


def as_json(row: Row) -> dict[str, Any]:
    """Numbers only: rates are fractions, gains percent."""
    t, (low, high) = row.tally, row.interval
    out: dict[str, Any] = {
        "rule": row.rule, "gain_pct": row.gain_pct, "rounds": t.rounds, "accepted": t.accepted,
        "rate": row.rate, "low": low, "high": high,
    }  # fmt: skip
    if t.sessions:
        out |= {"sessions_per_round": round(t.sessions / t.rounds, 3), "codes": dict(sorted(t.codes.items()))}
    if t.accepted:
        out["mean_claim_pct"] = round(t.claimed_pct / t.accepted, 4)
    if row.gain_pct == 0 and t.rounds > len(t.campaigns):
        whole = sum(n > 0 for n in t.campaigns)
        any_low, any_high = wilson(whole, len(t.campaigns))
        out |= {"per_100_rounds": CAMPAIGN * row.rate, "per_100_rounds_low": CAMPAIGN * low}
        out |= {"per_100_rounds_high": CAMPAIGN * high, "campaigns": len(t.campaigns)}
        out |= {"any_in_campaign": whole / len(t.campaigns), "any_low": any_low, "any_high": any_high}
    return out


def _percent(x: float) -> str:
    return f"{100 * x:.4g}%"


def table(rows: Sequence[Row]) -> str:
    """At most 80 columns; null rounds also as false accepts in 100 rounds and as campaigns with any."""
    out = [f"{'rule':<12}{'true gain':>10}{'rounds':>8}{'accepted':>10}  {'95% interval':<20}{'sessions':>9}"]
    for r in rows:
        interval = f"{_percent(r.interval[0])} … {_percent(r.interval[1])}"
        sessions = f"{r.tally.sessions / r.tally.rounds:.2f}" if r.tally.sessions else "—"
        gain = f"{r.gain_pct:+g}%" if r.gain_pct else "0"
        out.append(f"{r.rule:<12}{gain:>10}{r.tally.rounds:>8}{_percent(r.rate):>10}  {interval:<20}{sessions:>9}")
    for r in rows:
        j = as_json(r)
        if "per_100_rounds" in j:
            out.append(
                f"{r.rule}: {j['per_100_rounds']:.3g} false accepts in 100 rounds"
                f" [{j['per_100_rounds_low']:.3g}, {j['per_100_rounds_high']:.3g}]"
                f"; any: {_percent(j['any_in_campaign'])} of campaigns"
            )
    return "\n".join(out)
