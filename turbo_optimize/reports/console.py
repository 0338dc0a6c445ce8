"""Rich renderables for the command line: they fit 80 columns, and numbers never wrap. Rich is imported when needed.

Other people's words go in as `Text`, never as markup. Colour is rich's own affair (it respects NO_COLOR).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from turbo_optimize.core import events as ev
from turbo_optimize.core.scoring import gain_pct
from turbo_optimize.core.state import Round, State
from turbo_optimize.reports import referee, rounds, tables
from turbo_optimize.reports.summary import summary_facts, walk
from turbo_optimize.reports.text import NONE, duration, gain, num, one_line, pct, short, when

if TYPE_CHECKING:
    from rich.panel import Panel
    from rich.table import Table
    from rich.text import Text

STYLES = {
    "ACCEPTED": "green",
    "ROLLBACK": "red",
    "INCONCLUSIVE": "yellow",
    "UNDONE": "magenta",
    "BASELINE": "cyan",
    "OPEN": "bold",
}


def _text(value: object, style: str = "") -> Text:
    from rich.text import Text

    return Text(one_line(str(value)), style=style)


def _status(status: str) -> Text:
    return _text(status, STYLES.get(status, ""))


def _table(title: str = "", note: str = "", header: bool = True) -> Table:
    from rich import box
    from rich.table import Table

    return Table(
        title=_text(title) if title else None, caption=_text(f"Note: {note}") if note else None, box=box.SIMPLE_HEAD,
        show_header=header, padding=(0, 1, 0, 0), show_edge=False, title_justify="left", caption_justify="left",
    )  # fmt: skip


def _numbers(table: Table, *names: str) -> None:
    for name in names:
        table.add_column(name, justify="right", no_wrap=True)


def status_table(state: State) -> Table:
    """Where one campaign stands, a fact a row."""
    f = tables.status_facts(state)
    table = _table(f["campaign"] or "no campaign yet", f["note"], header=False)
    table.add_column(no_wrap=True, style="bold")
    table.add_column(overflow="fold")
    limit = f" of {duration(f['max_duration_s'])}" if f["max_duration_s"] else ""
    counts = ("accepted", "rolled_back", "inconclusive", "undone")
    told = ", ".join(f"{f[k]} {k.replace('_', ' ')}" for k in counts if f[k] or k == "accepted")
    at = f" at {short(f['incumbent'])}" if f["incumbent_measured"] else ", before an undo; the head is not measured"
    facts: dict[str, Any] = {
        "target": f["target"],
        "phase": f["phase"],
        "rounds": f"{f['rounds']} of {f['max_rounds']}: {told}",
        "baseline": f"{num(f['baseline_score'])} {f['unit']}" if f["baseline_score"] else None,
        "incumbent": f"{num(f['incumbent_score'])} {f['unit']}{at}" if f["incumbent_score"] else None,
        "vs baseline": f"{f['vs_baseline']} (other processes: a hint)" if f["vs_baseline"] else None,
        "paired gain": _gain(f),
        "checkpoint": _checkpoint(state),
        **referee.words(state),
        "elapsed": duration(f["elapsed_s"]) + limit,
        "last": f["last"],
        "stop asked": f["stop_asked"],
        "ended": f["termination"],
    }
    for name, value in facts.items():
        if value:
            table.add_row(name, _text(value))
    return table


def _checkpoint(state: State) -> str | None:
    """The last measurement of base against head on the way; the end's own stands under `paired gain`."""
    found = referee.checkpoints(state)
    if not found:
        return None
    return f"round {found[-1].round}: {gain(found[-1].gain_pct, found[-1].low_pct, found[-1].high_pct)}"


def _gain(f: Mapping[str, Any]) -> str | None:
    """The end's own measurement where there is one, else the product of the rounds' paired gains."""
    if f["final_pct"] is not None:
        return f"{pct(f['final_pct'])}, baseline to head"
    return f"{pct(f['gain_pct'])} so far" if f["gain_pct"] is not None else None


def list_table(states: Mapping[str, State]) -> Table:
    """One campaign a row; the key is the campaign's id (its directory)."""
    cpu = any(rounds.times_note(s) for s in states.values())
    table = _table(note="of cpu campaigns: " + tables.TIMES_NOTE if cpu else "")
    table.add_column("Campaign", overflow="fold")
    table.add_column("Phase", no_wrap=True)
    _numbers(table, "Rounds", "Acc.", "Score", "Gain")
    for name, state in states.items():
        f = tables.status_facts(state)
        score = f"{num(f['incumbent_score'])} {f['unit']}" if f["incumbent_score"] else NONE
        phase = {"DEFINE_TARGET": "DEFINE", "PREPARE_ENVIRONMENT": "PREPARE"}.get(f["phase"], f["phase"])
        row = (
            f"{f['rounds']}/{f['max_rounds']}",
            str(f["accepted"]),
            score,
            pct(f["gain_pct"] if f["final_pct"] is None else f["final_pct"]),
        )
        table.add_row(_text(name), phase, *row)
    return table


def trend_table(state: State) -> Table:
    """The trend in 80 columns: scores in the metric's unit, the step against the baseline, the paired gain."""
    table = _table(note="; ".join(filter(None, (f"scores in {rounds.unit(state)}", rounds.times_note(state)))))
    _numbers(table, "#")
    table.add_column("Status", no_wrap=True)
    _numbers(table, "Fwd", "Bwd", "Step", "vs base", "Paired")
    table.add_column("What", overflow="fold")
    for r in state.rounds:
        table.add_row(str(r.number), _status(r.status), *_trend_numbers(state, r), _text(rounds.description(r)))
    return table


def _trend_numbers(state: State, r: Round) -> tuple[str, ...]:
    s, base = r.score, state.baseline
    measured = (num(s.forward_avg), num(s.backward_avg), num(s.value)) if s else (NONE,) * 3
    against = pct(gain_pct(s.value, base.score.value)) if s and base and r.number > 1 else NONE
    return (*measured, against, pct(r.decision.gain_pct if r.decision else None))


def round_panel(state: State, n: int, device: Mapping[str, Any] | None = None) -> Panel:
    """One round in full; `device` as `reports.device.read_device` answers. LookupError where the state has no round n."""
    from rich.console import Group
    from rich.panel import Panel

    r = state.round(n)
    if r is None:
        raise LookupError(f"no round {n}: the campaign has {len(state.rounds)}")
    f = summary_facts(state, r, walk(state), device)
    parts: list[Any] = [_text(rounds.decision_line(r), STYLES.get(r.status, "")), *map(_text, f["decided"])]
    sections = {
        "Hypothesis": [f["hypothesis"]], "Single change": f["change"], "Results": f["results"],
        "Attribution": f["attribution"], "Next direction": f["next"], "Real-training transfer check": f["transfer"],
        "Rollback Analysis": f["rollback"],
    }  # fmt: skip
    for title, lines in sections.items():
        if lines:
            parts += ["", _text(title, "bold"), *(_text(line) for line in lines)]
    if f["self_test"]:
        parts += ["", _fault_table(f["self_test"])]
    if f["shapes"]:
        parts += ["", _shape_table(state, r)]
    title = _text(f"round {n}, {r.status}: {rounds.description(r)}")
    return Panel(Group(*parts), title=title, title_align="left")


def _fault_table(rows: Sequence[Mapping[str, str]]) -> Table:
    table = _table("Gate self-test")
    for name in rows[0]:
        table.add_column(name, overflow="fold")
    for row in rows:
        table.add_row(*map(_text, row.values()))
    return table


def _shape_table(state: State, r: Round) -> Table:
    unit = rounds.unit(state)
    table = _table(note="; ".join(filter(None, (f"scores in {unit}", rounds.times_note(state)))))
    table.add_column("Shape", overflow="fold")
    table.add_column("Check", no_wrap=True)
    _numbers(table, "Candidate", "Incumbent", "Gain")
    for row in rounds.shape_rows(state, r):
        scores = (num(row["score"]), num(row["incumbent_score"]))
        table.add_row(
            _text(row["shape"]), row["check"] or NONE, *scores, gain(row["gain_pct"], row["low_pct"], row["high_pct"])
        )
    return table


def _failed(gates: Iterable[Any]) -> str:
    return ", ".join(f"{g.code} FAILED {g.detail}".strip() for g in gates if not g.ok) or "all ok"


def _noted(notes: Iterable[str]) -> str:
    return "".join(f"; {note}" for note in notes)


# What the log says of an event, beside its time, kind and round.
DETAILS: dict[type, Callable[[Any], str]] = {
    ev.Created: lambda e: e.manifest.campaign,
    ev.Opened: lambda e: f"{e.command}, pid {e.pid}",
    ev.Prepared: lambda e: f"branch {e.branch or 'none'}, gates {_failed(e.prerequisites)}",
    ev.Learned: lambda e: f"{sum(g.ok for g in e.self_test)} of {len(e.self_test)} planted faults found",
    ev.Baselined: lambda e: f"{num(e.score.value)} {e.score.unit} at {short(e.commit)}",
    ev.Analyzed: lambda e: f"{e.bottleneck}; {len(e.directions)} directions",
    ev.Proposed: lambda e: e.proposal.summary,
    ev.Patched: lambda e: f"{short(e.commit)} on {short(e.parent)}, {len(e.files)} files",
    ev.Gated: lambda e: _failed(e.gates),
    ev.Measured: lambda e: f"{e.session.level} {e.session.index}: {num(e.score.value)} {e.score.unit}{_noted(e.notes)}",
    ev.Decided: lambda e: f"{e.decision.verdict.value} ({e.decision.code}): {e.decision.reason}",
    ev.Applied: lambda e: f"incumbent {short(e.commit)}",
    ev.UndoDecided: lambda e: f"take {short(e.commit)} back",
    ev.Undone: lambda e: f"incumbent {short(e.commit)}",
    ev.StopAsked: lambda e: e.why,
    ev.Terminated: lambda e: f"{e.code}: {e.why}",
    ev.Compared: lambda e: f"{e.what} {gain(e.gain_pct, e.low_pct, e.high_pct)}",
    ev.FinalAccepted: lambda e: _failed(e.gates),
    ev.Tipped: lambda e: f"{len(e.tips)} tips",
    ev.Reported: lambda e: short(e.report_sha256),
    ev.Spent: lambda e: ", ".join(f"{k} {duration(v)}" for k, v in e.parts.items()),
}


def log_table(events: Iterable[ev.Event]) -> Table:
    """The journal as a table, an event a row; times are UTC."""
    table = _table()
    table.add_column("Time (UTC)", no_wrap=True)
    table.add_column("Event", no_wrap=True)
    _numbers(table, "#")
    table.add_column("What", overflow="fold")
    for e in events:
        number = getattr(e, "round", None)
        at = when(e.at).removesuffix(" UTC")
        table.add_row(at, e.kind, NONE if number is None else str(number), _text(DETAILS[type(e)](e)))
    return table
