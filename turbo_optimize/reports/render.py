"""State -> the text of every rendered file. Templates hold the words, tables.py the numbers; none is parsed back."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cache, partial
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined, Template

from turbo_optimize.core.state import Round, State
from turbo_optimize.data import data_path
from turbo_optimize.reports import lessons, referee, rounds, tables, training
from turbo_optimize.reports import text as t
from turbo_optimize.reports.export import environment, junit_xml, report_data, report_json
from turbo_optimize.reports.manifest import load_manifest, manifest_yaml
from turbo_optimize.reports.summary import fault_cells, summary_facts, walk

__all__ = [
    "cost_md",
    "junit_xml",
    "load_manifest",
    "manifest_yaml",
    "optimize_md",
    "report_data",
    "report_json",
    "report_md",
    "summaries",
    "summary_md",
    "trend_md",
]


@cache
def _environment() -> Environment:
    """Compiled once a process; an unknown name in a template is an error, not an empty word."""
    env = Environment(
        loader=FileSystemLoader(data_path("templates")), undefined=StrictUndefined, autoescape=False,
        trim_blocks=True, lstrip_blocks=True, keep_trailing_newline=True,
    )  # fmt: skip
    words = (t.inline, t.lead, t.prose, t.pct, t.interval, t.num, t.duration, t.when, t.short)
    env.filters |= {f.__name__: f for f in words}
    env.globals |= {"gain": t.gain, "md_table": t.md_table, "decision_line": rounds.decision_line, "NONE": t.NONE}
    return env


@cache
def _template(name: str) -> Template:
    return _environment().get_template(f"{name}.j2")


def _rendered(name: str, facts: dict[str, Any]) -> str:
    return _template(name).render(facts).rstrip() + "\n"


def _heading(state: State) -> dict[str, Any]:
    m, note = state.manifest, rounds.times_note(state)
    return {
        "campaign": m.campaign if m else "campaign", "m": m, "note": note, "unit": rounds.unit(state),
        "table": partial(_table, note),
    }  # fmt: skip


def _table(note: str, columns: Any, rows: Any) -> str:
    """A Markdown table that carries its campaign's note."""
    return t.md_table(columns, rows) + (f"\n\nNote: {note}." if note else "")


def summaries(
    state: State, numbers: Iterable[int] | None = None, device: Callable[[Round], Mapping[str, Any]] = lambda _: {}
) -> Iterator[tuple[int, str]]:
    """(round number, summary.md) of the named rounds, or of all; `device` tells a round's clock (reports.device)."""
    seen, heading = walk(state), _heading(state)
    wanted = None if numbers is None else set(numbers)
    for r in state.rounds:
        if wanted is None or r.number in wanted:
            yield r.number, _rendered("summary.md", heading | summary_facts(state, r, seen, device(r)))


def summary_md(state: State, n: int) -> str:
    """rounds/round-n/summary.md. LookupError where the state has no round n."""
    found = dict(summaries(state, [n]))
    if n not in found:
        raise LookupError(f"no round {n}: the campaign has {len(state.rounds)}")
    return found[n]


def optimize_md(state: State) -> str:
    """logs/optimize.md: the story, a short entry a round."""
    return _rendered("optimize.md", {"rounds": state.rounds} | _heading(state))


def trend_md(state: State) -> str:
    """logs/performance_trend.md: the trend table and the accepted gain over rounds as bars."""
    curve = tables.cumulative_gain_pct(state)
    facts = {"columns": tables.trend_columns(rounds.unit(state)), "rows": tables.trend_rows(state)}
    facts |= {"bars": t.sparkline(curve), "last": curve[-1] if curve else None}
    return _rendered("performance_trend.md", facts | _heading(state))


def cost_md(state: State) -> str:
    """logs/cost.md: seconds by part and round, totals, what the runner itself took."""
    parts = tables.cost_parts(state)
    columns = {"round": "Round", "status": "Status", **{p: f"{p} (s)" for p in parts}, "total": "total (s)"}
    rows = [_seconds(row) for row in tables.cost_rows(state)]
    return _rendered("cost.md", {"columns": columns, "rows": rows, "facts": tables.cost_facts(state)} | _heading(state))


def _seconds(row: dict[str, Any]) -> dict[str, Any]:
    return {k: f"{v:.1f}" if isinstance(v, float) else v for k, v in row.items()}


def report_md(state: State) -> str:
    """report/report.md: what the campaign came to."""
    curve = tables.cumulative_gain_pct(state)
    facts = {
        "state": state,
        "facts": tables.status_facts(state),
        "final": lessons.final_comparison(state),
        "bars": t.sparkline(curve),
        "lineage": _lineage(state),
        "shapes": _final_shapes(state),
        "phantoms": lessons.leave_one_out(state),
        "effective": lessons.effective_directions(state),
        "ineffective": lessons.ineffective_directions(state),
        "audit": lessons.audit(state),
        "inflation_pct": lessons.INFLATION_PCT,
        "kept": training.kept,
        "referee": referee.words(state),
        "self_test": fault_cells(referee.self_test(state)),
        "checkpoints": _checkpoints(state),
        "rejected": _rejected(state),
        "cost": tables.cost_facts(state),
        "steps": lessons.next_steps(state),
        "tips": lessons.tips(state) if state.tips is None else state.tips,
        "environment": environment(state),
    }
    return _rendered("report.md", facts | _heading(state))


def _lineage(state: State) -> list[dict[str, str]]:
    """The commits of the branch: the baseline, then every accepted round, those taken back included."""
    rows = []
    for r in state.rounds:
        d = r.decision
        if r.number > 1 and not (d and d.accepted and r.applied):
            continue
        measured = t.gain(d.gain_pct, d.low_pct, d.high_pct) if d else t.NONE
        rows.append({
            "Round": str(r.number), "Status": r.status, "Commit": t.short(r.applied),
            "Description": rounds.description(r), "Paired gain": measured,
            "Bucket": r.proposal.bucket if r.proposal else t.NONE,
            "Note": f"reverted by {t.short(r.undone)}" if r.undone else "trade-off" if d and d.trade_off else "",
        })  # fmt: skip
    return rows


def _checkpoints(state: State) -> list[dict[str, str]]:
    return [
        {"Round": str(c.round), "Gain": t.pct(c.gain_pct), "90% interval": t.interval(c.low_pct, c.high_pct)}
        for c in referee.checkpoints(state)
    ]


def _rejected(state: State) -> list[dict[str, str]]:
    return [
        {
            "Code": row["code"], "Title": row["title"], "Count": str(len(row["rounds"])),
            "Rounds": ", ".join(map(str, row["rounds"])),
        }
        for row in referee.rejected(state)
    ]  # fmt: skip


def _final_shapes(state: State) -> list[dict[str, str]]:
    """Per target shape, baseline against head in one interleaved measurement."""
    final, base = lessons.final_comparison(state), state.baseline
    before = final.before.per_shape if final and final.before else {}
    after = final.after.per_shape if final and final.after else {}
    gains, noise = final.shapes if final else {}, base.noise_pct if base else {}
    unit = rounds.unit(state)
    return [
        {
            "Shape": s.label, f"Baseline {unit}": t.num(before.get(s.label)), f"Head {unit}": t.num(after.get(s.label)),
            "Paired gain": t.pct(gains.get(s.label)), "A/A noise": _plain_pct(noise.get(s.label)),
            "Core": "yes" if base and s.label in base.core_shapes else "no",
        }
        for s in (state.manifest.target_shapes if state.manifest else ())
    ]  # fmt: skip


def _plain_pct(value: float | None) -> str:
    return t.NONE if value is None else f"{value:.2f}%"
