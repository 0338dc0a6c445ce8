"""What the tables show: State -> rows. Pure; every number comes from the state, none is parsed from a rendered file.

Rows of the trend hold text; `round_row`, `status_facts` and `cost_facts` hold numbers (None: not measured).
"""

from __future__ import annotations

from typing import Any

from turbo_optimize.core.events import Phase
from turbo_optimize.core.machine import incumbent_score, next_phase
from turbo_optimize.core.models import Verdict
from turbo_optimize.core.state import Round, State
from turbo_optimize.reports.lessons import (
    audit,
    effective_directions,
    final_comparison,
    ineffective_directions,
    leave_one_out,
    next_steps,
    tips,
)
from turbo_optimize.reports.rounds import (
    decision_line,
    description,
    gain_factor,
    key_finding,
    paired_gain_pct,
    round_row,
    shape_rows,
    times_note,
    unit,
    vs_baseline,
)
from turbo_optimize.reports.text import NONE, TIMES_NOTE, num

__all__ = [
    "PARTS",
    "TIMES_NOTE",
    "audit",
    "cost_facts",
    "cost_parts",
    "cost_rows",
    "cumulative_gain_pct",
    "decision_line",
    "effective_directions",
    "final_comparison",
    "ineffective_directions",
    "key_finding",
    "leave_one_out",
    "next_steps",
    "paired_gain_pct",
    "round_row",
    "shape_rows",
    "status_facts",
    "times_note",
    "tips",
    "trend_columns",
    "trend_row",
    "trend_rows",
    "unit",
]

PARTS = ("start", "compile", "sweep", "check", "measure")  # of Spent; others that turn up follow, sorted


def trend_columns(unit: str) -> tuple[str, ...]:
    """The columns of performance_trend.md for a metric in `unit`."""
    sides = tuple(f"{side} {what} {unit}" for side in ("Fwd", "Bwd") for what in ("Avg", "Peak"))
    return ("Round", "Status", "Description", *sides, f"Combined Step {unit}", "vs Baseline", "Key Finding")


def trend_row(state: State, r: Round, columns: tuple[str, ...]) -> dict[str, str]:
    s = r.score
    sides = [s.forward_avg, s.forward_peak, s.backward_avg, s.backward_peak, s.value] if s else [None] * 5
    against = NONE if r.number == 1 else vs_baseline(state, s)
    cells = [str(r.number), r.status, description(r), *map(num, sides), against, key_finding(r)]
    return dict(zip(columns, cells, strict=True))


def trend_rows(state: State) -> list[dict[str, str]]:
    """One row a round, keyed by `trend_columns(unit(state))`."""
    columns = trend_columns(unit(state))
    return [trend_row(state, r, columns) for r in state.rounds]


def cumulative_gain_pct(state: State) -> list[float]:
    """After each round, the product of the paired gains accepted so far (and not undone): percent over the baseline."""
    factor, out = 1.0, []
    for r in state.rounds:
        if r.status == Verdict.ACCEPTED.value:
            factor *= gain_factor(r)
        out.append(100.0 * (factor - 1.0))
    return out


def _ended(state: State) -> str | None:
    """How the campaign ended; a stop is no end for good."""
    if not state.terminated:
        return None
    more = "; `turbo-opt resume` goes on" if state.terminated.code == "T4" else ""
    return f"{state.terminated.code}: {state.terminated.why}{more}"


def status_facts(state: State) -> dict[str, Any]:
    """Where a campaign stands. `gain_pct` is the product of accepted paired gains; scores are in `unit`."""
    m, last, final = state.manifest, incumbent_score(state), final_comparison(state)
    # Whose score that is; after an undo the head is a tree that was never measured.
    kept = state.accepted[-1] if state.accepted else state.round(1)
    statuses = [r.status for r in state.rounds]
    current = state.current
    return {
        "campaign": m.campaign if m else None,
        "phase": (next_phase(state, m.policy) if m else Phase.DEFINE_TARGET).value,
        "target": f"{m.target_op} {m.target_variant} {m.target_backend} {m.target_gpu} {m.dtype}" if m else None,
        "rounds": len(state.rounds), "max_rounds": state.max_rounds,
        "accepted": statuses.count("ACCEPTED"), "rolled_back": statuses.count("ROLLBACK"),
        "inconclusive": statuses.count("INCONCLUSIVE"), "undone": statuses.count("UNDONE"),
        "open_round": current.number if current else None,
        "unit": unit(state), "baseline_score": state.baseline.score.value if state.baseline else None,
        "incumbent_score": last.value if last else None,
        "incumbent_measured": kept is not None and state.incumbent == kept.applied,
        "vs_baseline": vs_baseline(state, last) if state.accepted else None,
        "gain_pct": paired_gain_pct(state.accepted) if state.closed else None,
        "final_pct": final.gain_pct if final else None,
        "incumbent": state.incumbent, "branch": m.git_branch if m else None,
        "elapsed_s": state.elapsed_s, "max_duration_s": state.max_duration_s, "stop_asked": state.stop_asked,
        "termination": _ended(state),
        "last": f"round {state.rounds[-1].number}: {decision_line(state.rounds[-1])}" if state.rounds else None,
        "note": times_note(state),
    }  # fmt: skip


def cost_parts(state: State) -> tuple[str, ...]:
    seen = {part for r in state.rounds for part in r.spent}
    return (*(p for p in PARTS if p in seen), *sorted(seen.difference(PARTS)))


def cost_rows(state: State) -> list[dict[str, Any]]:
    """Seconds by part, a row a round: round, status, each of `cost_parts`, total."""
    parts = cost_parts(state)
    return [
        {"round": r.number, "status": r.status, "total": sum(r.spent.values())}
        | {p: r.spent.get(p, 0.0) for p in parts}
        for r in state.rounds
    ]


def cost_facts(state: State) -> dict[str, Any]:
    """Totals in seconds. `overhead_pct`: the share of elapsed time that none of the parts accounts for."""
    rows, parts = cost_rows(state), cost_parts(state)
    total, elapsed = sum(row["total"] for row in rows), state.elapsed_s
    overhead = 100.0 * (elapsed - total) / elapsed if elapsed > 0 and rows else None
    by_part = {p: sum(row[p] for row in rows) for p in parts}
    return {"parts_s": by_part, "total_s": total, "elapsed_s": elapsed, "overhead_pct": overhead}
