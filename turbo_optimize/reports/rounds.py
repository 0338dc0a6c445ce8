"""One round in words and numbers: what every table, page and report says of it. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable
from functools import cache
from typing import Any

from turbo_optimize.core import stats
from turbo_optimize.core.models import Score
from turbo_optimize.core.rules import catalog
from turbo_optimize.core.scoring import trend_delta
from turbo_optimize.core.state import Round, State
from turbo_optimize.reports.text import NONE, TIMES_NOTE, gain, num, one_line, pct, short


def times_note(state: State) -> str:
    """The note that every table of a CPU campaign carries, else empty."""
    m = state.manifest
    if m is None or m.target_gpu != "cpu":
        return ""
    return TIMES_NOTE if m.target_lang == "Triton" else "times are CPU times, not a GPU's"


def unit(state: State) -> str:
    return state.baseline.score.unit if state.baseline else "TFLOPS"


def description(r: Round) -> str:
    if r.number == 1:
        return "baseline"
    return one_line(r.proposal.summary or r.proposal.change) if r.proposal else "no proposal yet"


def vs_baseline(state: State, score: Score | None) -> str:
    return trend_delta(score, state.baseline.score) if score and state.baseline else NONE


def decision_line(r: Round) -> str:
    """What became of a round, in one line: verdict, rule code, reason."""
    if r.number == 1:
        return f"BASELINE: {num(r.score.value)} {r.score.unit}" if r.score else "BASELINE: not measured yet"
    d = r.decision
    if d is None:
        return "OPEN: not decided yet"
    said = f"{d.verdict.value} ({d.code}): {one_line(d.reason)}"
    if r.undone:
        return f"UNDONE by {short(r.undone)}: was {said}"
    return said if r.applied else f"OPEN: decided {said}; the branch has not followed yet"


_titles = cache(catalog)


def title(code: str) -> str:
    """`stale output`; empty for a code that this version doesn't have."""
    return _titles().get(code, "")


def titled(code: str) -> str:
    """`K04 stale output`"""
    return f"{code} {title(code)}".rstrip()


def objection(r: Round) -> str:
    """What rolled a round back and where to read of it: "K04 stale output (`turbo-opt rules K04`)"; else empty."""
    d = r.decision
    if d is None or d.accepted:
        return ""
    return f"{titled(d.code)} (`turbo-opt rules {d.code}`)" if title(d.code) else d.code


def key_finding(r: Round) -> str:
    """The measured gain and the shapes that stand out, else the rule that decided."""
    d = r.decision
    if r.number == 1 or d is None or d.gain_pct is None:
        return decision_line(r)
    parts = [f"{d.code} {gain(d.gain_pct, d.low_pct, d.high_pct)} paired"]
    if d.shapes:
        best, worst = max(d.shapes, key=lambda s: s.gain_pct), min(d.shapes, key=lambda s: s.gain_pct)
        parts.append(f"best {best.shape} {pct(best.gain_pct)}, worst {worst.shape} {pct(worst.gain_pct)}")
    if d.trade_off:
        parts.append("trade-off")
    if r.undone:
        parts.append(f"undone by {short(r.undone)}")
    return "; ".join(parts)


def gain_factor(r: Round) -> float:
    """1 + the paired gain; 1 where none was measured."""
    return 1.0 + (r.decision.gain_pct or 0.0) / 100.0 if r.decision else 1.0


def paired_gain_pct(rounds: Iterable[Round]) -> float:
    """Product of the paired gains of `rounds`, in percent. An estimate: each factor is measured against its parent."""
    return 100.0 * (math.prod(gain_factor(r) for r in rounds) - 1.0)


def trained_pct(state: State, r: Round) -> float | None:
    """The gain measured again in training steps, percent; None where it wasn't."""
    if r.decision and r.decision.train_pct is not None:
        return r.decision.train_pct
    measured = [s for s in r.sessions if s.level == "train"]
    if not measured or state.manifest is None:
        return None
    return stats.pct(math.fsum(stats.session_estimate(s, state.manifest.policy.trim) for s in measured) / len(measured))


def shape_rows(state: State, r: Round) -> list[dict[str, Any]]:
    """Per shape: the check, both trees' absolute score of the same sessions, the paired gain with its 95% interval."""
    deltas = {d.shape: d for d in r.decision.shapes} if r.decision else {}
    checks = {c.shape: c for c in r.checks}
    ours = r.score.per_shape if r.score else {}
    theirs = r.incumbent_score.per_shape if r.incumbent_score and r.score else {}
    known = [s.label for s in state.manifest.target_shapes] if state.manifest else []
    seen = {**deltas, **checks, **ours}
    core = state.baseline.core_shapes if state.baseline else ()
    rows = []
    for label in [*(k for k in known if k in seen), *(k for k in seen if k not in known)]:
        d, c = deltas.get(label), checks.get(label)
        rows.append({
            "shape": label, "check": c.check if c else None, "detail": c.detail if c else "",
            "score": ours.get(label), "incumbent_score": theirs.get(label), "core": label in core,
            "gain_pct": d.gain_pct if d else None, "low_pct": d.low_pct if d else None,
            "high_pct": d.high_pct if d else None,
        })  # fmt: skip
    return rows


def round_row(state: State, r: Round) -> dict[str, Any]:
    """One round as plain numbers and words; the keys are those of `rounds` in report/data.json."""
    p, d, s = r.proposal, r.decision, r.score
    return {
        "round": r.number, "status": r.status, "description": description(r), "decision": decision_line(r),
        "verdict": d.verdict.value if d else None, "code": d.code if d else None, "reason": d.reason if d else None,
        "title": (title(d.code) or None) if d else None, "train_pct": trained_pct(state, r), "cap_pct": r.cap_pct,
        "void_sessions": list(r.notes),
        "hypothesis": p.hypothesis if p else None, "change": p.change if p else None,
        "category": p.category if p else None, "direction": direction_of(r) if p else None,
        "bucket": p.bucket if p else None, "expected_gain_pct": p.expected_gain_pct if p else None,
        "gain_pct": d.gain_pct if d else None, "low_pct": d.low_pct if d else None,
        "high_pct": d.high_pct if d else None, "sessions": d.sessions if d else 0,
        "trade_off": d.trade_off if d else False, "attempts": r.attempt, "score": s.model_dump() if s else None,
        "incumbent_score": r.incumbent_score.value if r.incumbent_score and s else None,
        "vs_baseline": None if r.number == 1 or not s else vs_baseline(state, s), "shapes": shape_rows(state, r),
        "commit": r.commit, "parent": r.parent, "applied": r.applied, "undone": r.undone, "files": list(r.files),
        "started": r.started, "ended": r.ended, "spent_s": dict(r.spent),
    }  # fmt: skip


def direction_of(r: Round) -> str:
    """The identity of what a round tried."""
    return one_line(r.proposal.direction or r.proposal.summary or r.proposal.change) if r.proposal else ""
