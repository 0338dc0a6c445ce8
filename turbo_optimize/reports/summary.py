"""What one round's summary.md says: the facts under each of its sections. Pure.

A summary reads nothing that happens after its round (a later undo apart), so the one written at the round's end and the
one that a rebuild writes are the same.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from turbo_optimize.core.machine import REVIEWS
from turbo_optimize.core.models import Proposal, Verdict
from turbo_optimize.core.scoring import gain_pct
from turbo_optimize.core.state import Round, State
from turbo_optimize.reports import referee, training
from turbo_optimize.reports.device import device_lines
from turbo_optimize.reports.lessons import bucket_meaning, ranked_line, ranked_name
from turbo_optimize.reports.rounds import (
    decision_line,
    description,
    direction_of,
    objection,
    shape_rows,
    times_note,
    titled,
    unit,
)
from turbo_optimize.reports.text import NONE, gain, interval, num, one_line, pct, short


class Walk(NamedTuple):
    """What a round needs to know of the rounds before it, computed once for a whole campaign."""

    first_tried: dict[str, int]
    rollbacks: dict[int, int]  # in a row, after each round


def walk(state: State) -> Walk:
    first: dict[str, int] = {}
    rollbacks: dict[int, int] = {}
    n = 0
    for r in state.rounds:
        if name := direction_of(r):
            first.setdefault(name, r.number)
        lost = r.number > 1 and r.applied and not (r.decision and r.decision.accepted)
        n = n + 1 if lost else 0
        rollbacks[r.number] = n
    return Walk(first, rollbacks)


def summary_facts(state: State, r: Round, seen: Walk, device: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Everything that templates/summary.md.j2 shows of round `r`; `device` as `reports.device.read_device` answers."""
    return {
        "round": r, "proposal": r.proposal, "description": description(r), "note": times_note(state),
        "hypothesis": r.proposal.hypothesis if r.proposal else _no_hypothesis(r), "change": list(_change(r)),
        "hints": _hints(r.proposal), "results": [*_results(state, r), *device_lines(device or {})],
        "shape_columns": shape_columns(unit(state)), "shapes": shape_cells(shape_rows(state, r), unit(state)),
        "self_test": fault_cells(referee.self_test(state)) if r.number == 1 else [],
        "gates": [{"Gate": titled(g.code), "Result": "ok" if g.ok else "FAILED", "Detail": g.detail} for g in r.gates],
        "decision": decision_line(r), "decided": list(_decided(r)), "attribution": list(_attribution(r)),
        "next": list(_next(r, seen)), "transfer": list(_transfer(state, r)), "rollback": list(_rollback(r)),
    }  # fmt: skip


def fault_cells(rows: Iterable[Mapping[str, Any]]) -> list[dict[str, str]]:
    """`referee.self_test` as text."""
    return [{"Planted fault": row["fault"], "Found by": row["found_by"], "How": row["how"]} for row in rows]


def shape_columns(unit: str) -> tuple[str, ...]:
    return ("Shape", "Check", f"Candidate {unit}", f"Incumbent {unit}", "Paired gain", "95% interval", "Core")


def shape_cells(rows: Iterable[dict[str, Any]], unit: str) -> list[dict[str, str]]:
    """`shape_rows` as text, keyed by `shape_columns`."""
    columns = shape_columns(unit)
    return [
        dict(zip(columns, (
            row["shape"], f"{row['check'] or NONE} {row['detail']}".strip(), num(row["score"]),
            num(row["incumbent_score"]), pct(row["gain_pct"]), interval(row["low_pct"], row["high_pct"]),
            "yes" if row["core"] else "no",
        ), strict=True))
        for row in rows
    ]  # fmt: skip


def _no_hypothesis(r: Round) -> str:
    return "None: round 1 is the baseline." if r.number == 1 else "None yet."


def _change(r: Round) -> Iterator[str]:
    p = r.proposal
    if p is None:
        yield "None: the tree as it was found." if r.number == 1 else "None yet."
        return
    yield one_line(p.change)
    if r.files:
        yield f"Files: {', '.join(f'`{f}`' for f in r.files)}"
    yield f"Direction `{direction_of(r)}`, category {p.category}, risk {p.risk}"
    if r.commit:
        yield f"Candidate `{short(r.commit)}` on `{short(r.parent)}`" if r.parent else f"Commit `{short(r.commit)}`"
    if r.attempt > 1:
        yield f"Attempt {r.attempt}: earlier ones failed a gate and were repaired within the round"


def _hints(p: Proposal | None) -> list[str]:
    return [", ".join(f"{k} {v}" for k, v in h.items()) for h in p.hints[:10]] if p else []


def _results(state: State, r: Round) -> Iterator[str]:
    metric = unit(state)
    if r.score is None:
        yield "Nothing was measured." if r.decision else "Not measured yet."
        return
    against = f", incumbent of the same sessions {num(r.incumbent_score.value)}" if r.incumbent_score else ""
    yield f"Score {num(r.score.value)} {metric}{against} (geometric mean over shapes)"
    if r.decision and r.decision.gain_pct is not None:
        d = r.decision
        yield f"Paired gain {gain(d.gain_pct, d.low_pct, d.high_pct)} over {d.sessions} sessions"
    s = r.score
    for side, avg, peak in (("Forward", s.forward_avg, s.forward_peak), ("Backward", s.backward_avg, s.backward_peak)):
        if avg is not None:
            yield f"{side} average {num(avg)}, peak {num(peak)} {metric} (diagnostics)"
    if r.number == 1:
        yield from (f"{name[:1].upper()}{name[1:]}: {line}" for name, line in referee.words(state).items())
    yield from (f"{note[:1].upper()}{note[1:]}; measured again" for note in r.notes)
    hashes = {"benchmark.csv": r.csv_sha256, "samples.csv": r.samples_sha256, "loaded binary": r.binary_sha256}
    yield "SHA-256: " + ", ".join(f"{k} `{short(v)}…`" for k, v in hashes.items() if v)


def _decided(r: Round) -> Iterator[str]:
    d = r.decision
    if d is None:
        return
    if what := objection(r):
        yield f"Objected: {what}"
    if d.trade_off:
        worse = [f"{s.shape} {pct(s.gain_pct)}" for s in d.shapes if s.high_pct < 0]
        yield f"Trade-off, recorded: {', '.join(worse) or 'some shapes are slower'}"
    if r.undone:
        yield f"Taken back later by the revert `{short(r.undone)}`; the attempt stays under its ref"
    elif d.accepted and r.applied:
        yield f"The branch moved to `{short(r.applied)}`"
    elif r.applied:
        yield f"The branch stays at `{short(r.applied)}`"


def _attribution(r: Round) -> Iterator[str]:
    d, p = r.decision, r.proposal
    if p is None or d is None:
        yield "Nothing to attribute: the reference of all later rounds." if r.number == 1 else "Not decided yet."
        return
    if d.gain_pct is None:
        yield f"Nothing was measured, so nothing is attributed: {d.code} stopped the round"
        return
    yield f"The two measured trees differ by this change alone: {gain(d.gain_pct, d.low_pct, d.high_pct)}"
    if p.expected_gain_pct is not None:
        yield f"Expected {pct(p.expected_gain_pct)}, measured {pct(d.gain_pct)}"
    if r.score and r.incumbent_score:
        s, i = r.score, r.incumbent_score
        sides = (("forward", s.forward_avg, i.forward_avg), ("backward", s.backward_avg, i.backward_avg))
        moved = [f"{name} {pct(gain_pct(new, old))}" for name, new, old in sides if new is not None and old]
        if moved:
            yield f"Against the incumbent of the same sessions: {', '.join(moved)} (diagnostics)"
    if len(d.shapes) > 1:
        ranked = sorted(d.shapes, key=lambda s: s.gain_pct)
        best, worst = ranked[-1], ranked[0]
        yield f"Most on {best.shape} ({pct(best.gain_pct)}), least on {worst.shape} ({pct(worst.gain_pct)})"
    if p.signal:
        yield f"Named signal of success: {p.signal}"


def _next(r: Round, seen: Walk) -> Iterator[str]:
    if n := seen.rollbacks[r.number]:
        yield f"{n} {'rollback' if n == 1 else 'rollbacks'} in a row: {REVIEWS[min(n, max(REVIEWS))]}"
    ranked = r.analysis.directions if r.analysis else ()
    left = [d for d in ranked if seen.first_tried.get(ranked_name(d), r.number + 1) > r.number]
    yield from (f"Untried: {ranked_line(d)}" for d in left[:3])
    if not n and not left:
        yield "Analyze again from the new head" if r.number > 1 else "Analyze the baseline's bottleneck"


def _transfer(state: State, r: Round) -> Iterator[str]:
    p = r.proposal
    if p is None:
        yield "Not applicable: nothing was changed."
        return
    stopped = next((g.code for g in r.gates if not g.ok), None)
    if stopped:
        yield f"Not judged: the round was stopped by {titled(stopped)} (claimed bucket {p.bucket})"
        return
    yield f"Bucket {p.bucket}: {bucket_meaning(p.bucket)}"
    audit = next((g for g in r.gates if g.code == "G02"), None)
    if audit:
        yield f"Static audit {'passed' if audit.ok else 'FAILED'}{': ' + audit.detail if audit.detail else ''}"
    if r.sessions:
        yield "Timed on fresh tensor objects over a ring larger than the cache, contents rewritten between blocks"
    yield from training.lines(state, r)


def _rollback(r: Round) -> Iterator[str]:
    """Empty unless the round was rolled back (an inconclusive one rolls back too)."""
    d, p = r.decision, r.proposal
    if d is None or d.accepted:
        return
    yield f"What happened: {d.code}, {d.reason}"
    yield from (f"Gate {titled(g.code)} failed{': ' + g.detail if g.detail else ''}" for g in r.gates if not g.ok)
    bad = [c for c in r.checks if c.check != "PASS"]
    yield from (f"Shape {c.shape} {c.check}, {titled(c.code)}{': ' + c.detail if c.detail else ''}" for c in bad[:5])
    slower = sorted((s for s in d.shapes if s.high_pct < 0), key=lambda s: s.gain_pct)
    if slower:
        yield f"Provably slower: {', '.join(f'{s.shape} {pct(s.gain_pct)}' for s in slower[:3])}"
    if p and p.expected_gain_pct is not None and d.gain_pct is not None:
        missed = one_line(p.signal) or "the expected effect"
        yield f"The hypothesis promised {pct(p.expected_gain_pct)} ({missed}); it brought {pct(d.gain_pct)}"
    yield _lesson(r.number, d.verdict, d.gain_pct)


def _lesson(number: int, verdict: Verdict, measured: float | None) -> str:
    if measured is None:
        return f"Lesson: the idea was never measured; repaired, it may still pay (`turbo-opt recover {number}`)"
    if verdict is Verdict.INCONCLUSIVE:
        return f"Lesson: undecided, not refuted; more sessions may decide (`turbo-opt validate --round {number}`)"
    return "Lesson: refuted on these shapes; not worth another attempt unless the bottleneck moves"
