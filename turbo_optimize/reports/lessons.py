"""What a campaign teaches: directions that paid and that didn't, phantoms, next steps, tips, the audit. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any

from turbo_optimize.core.events import Compared
from turbo_optimize.core.models import Verdict
from turbo_optimize.core.rules import INFLATION_PCT
from turbo_optimize.core.state import Round, State
from turbo_optimize.reports import training
from turbo_optimize.reports.rounds import description, direction_of, paired_gain_pct, times_note, trained_pct
from turbo_optimize.reports.text import gain, one_line, pct

# Transfer bucket -> (what it is, how its gain counts). SPEC §5.
BUCKETS: dict[str, tuple[str, str]] = {
    "K1": ("kernel-internal", "allowed: the kernel does the same work faster in training"),
    "K2": ("layout-specialised variant", "allowed: it pays where training uses these layouts"),
    "K3": ("single-launch fusion", "allowed: the saved launch is saved in training"),
    "K4": ("forward data carried to its own backward", "allowed: it lives within one step"),
    "W1": ("cache on a weight's identity and version", "capped: at most quant_time(weight) / step_time counts"),
    "W2": ("cache on activations or gradients", "forbidden: training never sees the same activation twice"),
    "W3": ("generic memoisation", "forbidden: training never repeats a call"),
}
REPAIRABLE = ("G03", "G04")  # build, correctness: the idea itself was never measured


def bucket_meaning(bucket: str) -> str:
    what, how = BUCKETS.get(bucket, ("unknown bucket", "not classified"))
    return f"{what} — {how}"


def _by_direction(state: State) -> dict[str, list[Round]]:
    out: dict[str, list[Round]] = {}
    for r in state.closed:
        if r.proposal:
            out.setdefault(direction_of(r), []).append(r)
    return out


def _counts(rounds: Iterable[Round]) -> str:
    """`ROLLBACK D03 ×2, INCONCLUSIVE D06`"""
    seen: dict[str, int] = {}
    for r in rounds:
        key = f"{r.status} {r.decision.code}" if r.decision else r.status
        seen[key] = seen.get(key, 0) + 1
    return ", ".join(f"{k} ×{n}" if n > 1 else k for k, n in seen.items())


def _direction_row(name: str, rounds: list[Round]) -> dict[str, Any]:
    last = rounds[-1]
    assert last.proposal is not None  # _by_direction keeps no round without one
    return {
        "direction": name, "category": last.proposal.category, "bucket": last.proposal.bucket,
        "rounds": [r.number for r in rounds], "outcomes": _counts(rounds),
    }  # fmt: skip


def effective_directions(state: State) -> list[dict[str, Any]]:
    """Directions with an accepted round that stands, best first; `gain_pct` is the product of its paired gains."""
    rows = []
    for name, rounds in _by_direction(state).items():
        kept = [r for r in rounds if r.status == Verdict.ACCEPTED.value]
        if kept:
            rows.append(
                {**_direction_row(name, rounds), "gain_pct": paired_gain_pct(kept), "change": description(kept[-1])}
            )
    return sorted(rows, key=lambda row: -row["gain_pct"])


def ineffective_directions(state: State) -> list[dict[str, Any]]:
    """Directions of which nothing stands.

    `measured` False: no attempt was ever measured, the idea is open. `refuted`: measured, and every attempt rolled back
    (neither inconclusive nor accepted and taken back).
    """
    rows = []
    for name, rounds in _by_direction(state).items():
        if any(r.status == Verdict.ACCEPTED.value for r in rounds):
            continue
        gains = [r.decision.gain_pct for r in rounds if r.decision and r.decision.gain_pct is not None]
        last = rounds[-1].decision
        rows.append({
            **_direction_row(name, rounds), "measured": bool(gains), "best_gain_pct": max(gains, default=None),
            "refuted": bool(gains) and all(r.status == Verdict.ROLLBACK.value for r in rounds),
            "why": f"{last.code}: {one_line(last.reason)}" if last else "",
        })  # fmt: skip
    return rows


def final_comparison(state: State) -> Compared | None:
    """The last paired baseline-to-head measurement."""
    return next((c for c in reversed(state.compared) if c.what == "final"), None)


def leave_one_out(state: State) -> list[dict[str, Any]]:
    """Per accepted round, what the head loses without it. `phantom`: nothing (interval with 0); None: unknown."""
    last = {c.round: c for c in state.compared if c.what == "leave_one_out" and c.round is not None}
    by_number = {r.number: r for r in state.rounds}
    return [
        {
            "round": n, "description": description(by_number[n]) if n in by_number else "", "gain_pct": c.gain_pct,
            "low_pct": c.low_pct, "high_pct": c.high_pct, "note": c.note,
            "phantom": None if c.gain_pct is None else c.gain_pct <= 0 or (c.low_pct is not None and c.low_pct <= 0),
        }
        for n, c in sorted(last.items())
    ]  # fmt: skip


def _may_be(claimed_pct: float, final: Compared | None) -> bool:
    """Whether the measured whole's interval holds the claim."""
    return final is not None and final.high_pct is not None and claimed_pct <= final.high_pct


def audit(state: State) -> dict[str, Any]:
    """The real-training audit: accepted paired gains by bucket against the measured whole.

    `s_real_pct` K1 to K4, `w_real_pct` W1, `residual_pct` what is left of the measured gain beyond both;
    `inflation` True where the claims exceed the measured whole by over INFLATION_PCT and lie outside of its interval,
    None where it is not measured. What training steps keep is beside it: training.whole.
    """
    rows = [
        {
            "round": r.number, "description": description(r), "bucket": r.proposal.bucket,
            "meaning": bucket_meaning(r.proposal.bucket), "gain_pct": r.decision.gain_pct if r.decision else None,
            "train_pct": trained_pct(state, r), "cap_pct": r.cap_pct,
        }
        for r in state.accepted if r.proposal
    ]  # fmt: skip
    of_bucket = {w: [r for r in state.accepted if r.proposal and r.proposal.bucket[:1] == w] for w in "KW"}
    claimed, final = paired_gain_pct(state.accepted), final_comparison(state)
    measured = final.gain_pct if final else None
    residual = None if measured is None else training.gap_pct(claimed, measured)
    return {
        "rounds": rows, "s_real_pct": paired_gain_pct(of_bucket["K"]), "w_real_pct": paired_gain_pct(of_bucket["W"]),
        "claimed_pct": claimed, "measured_pct": measured, "residual_pct": residual,
        "inflation": None if residual is None else residual < -INFLATION_PCT and not _may_be(claimed, final),
        **training.whole(state),
    }  # fmt: skip


def ranked_name(d: dict[str, Any]) -> str:
    """The identity of a ranked direction of ANALYZE: its `direction`, else its `name`."""
    return one_line(str(d.get("direction") or d.get("name") or d.get("change") or ""))


def ranked_line(d: dict[str, Any]) -> str:
    """One ranked direction in words, from the keys that it has."""
    change, expected, signal = (d.get(k) for k in ("change", "expected_gain_pct", "signal"))
    line = f"{ranked_name(d)}: {one_line(str(change))}" if change else ranked_name(d)
    facts = [f"expected {pct(float(expected), 1)}"] if isinstance(expected, int | float) else []
    facts += [f"{k} {one_line(str(d[k]))}" for k in ("bottleneck", "risk", "bucket") if d.get(k)]
    line += f" ({', '.join(facts)})" if facts else ""
    return line + (f"; success: {one_line(str(signal))}" if signal else "")


def _paid(state: State) -> set[str]:
    return {direction_of(r) for r in state.accepted}


def _phantom_steps(state: State) -> Iterator[str]:
    for row in leave_one_out(state):
        if row["phantom"]:
            numbers = gain(row["gain_pct"], row["low_pct"], row["high_pct"])
            yield f"Take round {row['round']} back (`turbo-opt undo {row['round']}`): its removal costs {numbers}."


def _untried_steps(state: State) -> Iterator[str]:
    tried = {direction_of(r) for r in state.rounds}
    analysis = next((r.analysis for r in reversed(state.rounds) if r.analysis and r.analysis.directions), None)
    for d in analysis.directions if analysis else ():
        if ranked_name(d) not in tried:
            yield f"Try {ranked_line(d)}."


def _undecided_steps(state: State) -> Iterator[str]:
    paid = _paid(state)
    open_ends = [r for r in state.closed if r.status == Verdict.INCONCLUSIVE.value and direction_of(r) not in paid]
    for r in sorted(open_ends, key=lambda r: -((r.decision and r.decision.gain_pct) or 0.0)):
        d = r.decision
        if d and d.gain_pct is not None and d.gain_pct > 0:
            numbers = gain(d.gain_pct, d.low_pct, d.high_pct)
            yield (
                f"Measure round {r.number} ({description(r)}) again, `turbo-opt validate --round {r.number}`:"
                f" {numbers} decided nothing."
            )


def _repair_steps(state: State) -> Iterator[str]:
    paid = _paid(state)
    for r in reversed(state.closed):
        d = r.decision
        if d and d.code in REPAIRABLE and direction_of(r) not in paid:
            yield (
                f"Repair round {r.number} ({description(r)}), `turbo-opt recover {r.number}`: it was never measured,"
                f" {d.code}: {one_line(d.reason).rstrip('.')}."
            )


def _shape_steps(state: State) -> Iterator[str]:
    final = final_comparison(state)
    if final and final.shapes:
        label, value = min(final.shapes.items(), key=lambda kv: kv[1])
        yield f"Work on shape {label}: it gained least, {pct(value)} against the baseline."
    elif state.baseline and state.baseline.score.per_shape:
        label, value = min(state.baseline.score.per_shape.items(), key=lambda kv: kv[1])
        yield f"Work on shape {label}: it is the slowest at the baseline, {value:.4g} {state.baseline.score.unit}."


def _general_steps(state: State) -> Iterator[str]:
    m = state.manifest
    name = m.campaign if m else "ID"
    last = next((r.analysis for r in reversed(state.rounds) if r.analysis), None)
    was = f"; it was last called {one_line(last.bottleneck)} bound" if last and last.bottleneck else ""
    yield f"Profile the head of {name} with the vendor's profiler and rank directions by its bottleneck{was}."
    yield f"Raise the budget (`turbo-opt resume {name} --max-rounds {state.max_rounds + 10}`)."
    yield f"Let another proposer look (`turbo-opt start --op {m.target_op if m else 'OP'} --proposer agent`)."


STEPS = (_phantom_steps, _untried_steps, _undecided_steps, _repair_steps, _shape_steps, _general_steps)


def next_steps(state: State) -> list[str]:
    """Three concrete next steps: the first of each kind in the order of STEPS, then the rest of the earlier kinds."""
    kinds = [list(islice(kind(state), 3)) for kind in STEPS]
    firsts = [kind[0] for kind in kinds if kind]
    rest = [step for kind in kinds for step in kind[1:]]
    return [*firsts, *rest][:3]


def tips(state: State) -> list[dict[str, str]]:
    """At most five lessons for later campaigns of the same op, backend and GPU: what paid, then what did not."""
    m = state.manifest
    if m is None:
        return []
    note = times_note(state)
    context = f"{m.target_op} {m.target_variant} {m.target_backend} {m.dtype} on {m.target_gpu}"
    shapes = f"measured on {len(m.target_shapes)} shapes of {m.campaign}" + (f"; {note}" if note else "")
    signal_of = {direction_of(r): one_line(r.proposal.signal) for r in state.closed if r.proposal}
    good = [
        {
            "context": context, "signal": signal_of[row["direction"]] or row["category"],
            "takeaway": f"{row['direction']} pays {pct(row['gain_pct'])}: {row['change']}",
            "applicability": f"{bucket_meaning(row['bucket'])}; {shapes}",
        }
        for row in effective_directions(state)[:3]
    ]  # fmt: skip
    lost = [row for row in ineffective_directions(state) if row["refuted"]]
    bad = [
        {
            "context": context, "signal": signal_of[row["direction"]] or row["category"],
            "takeaway": f"{row['direction']} does not pay: best {pct(row['best_gain_pct'])}, {row['why']}",
            "applicability": shapes,
        }
        for row in sorted(lost, key=lambda row: row["best_gain_pct"])
    ]  # fmt: skip
    return [*good, *bad][:5]
