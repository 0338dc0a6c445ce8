"""What the outputs of a trial must be: one small function a check, the base's own figures as the bar. Pure; codes in checks.py."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

from turbo_optimize.core.checks import Call, Failure, How, Judged, Norm, Norms

TILE_DB = 20.0  # MEASUREMENT: worst tile beside the global gate
PRECISION_DB = 1.0  # a candidate may be this much less precise than the base
UNUSUAL_DB = 1.5  # and this much on outliers, whose dB a few elements decide
MOVED = 0.5  # ‖Δout − Δref‖/‖Δref‖ after one element changed; an output that didn't follow has 1

Trial = Sequence[tuple[Call, Judged]]


def _each(look: Callable[[Call, Judged, Norm], str | None]) -> Callable[[Trial, Norms], str | None]:
    """A check of single calls as one of a whole trial: the first that objects."""

    def over(trial: Trial, norms: Norms) -> str | None:
        return next((why for call, j in trial if (why := look(call, j, norms.of(call.fill)))), None)

    return over


def _unwritten(call: Call, j: Judged, norm: Norm) -> str | None:
    bad = [name for name, m in j.outputs.items() if not m.finite]
    return f"{bad[0]}: elements that nobody wrote, or that aren't finite ({call.fill} inputs)" if bad else None


def _changed(call: Call, j: Judged, norm: Norm) -> str | None:
    return f"the step changed its input {', '.join(j.changed)}" if j.changed else None


def _not_passed(how: How, code_of: str) -> Callable[[Call, Judged, Norm], str | None]:
    def look(call: Call, j: Judged, norm: Norm) -> str | None:
        wrong = call.how == how and call.fill == "normal" and norm.passes and not j.passed
        return f"{code_of}: {j.detail}" if wrong else None

    return look


def _tile(call: Call, j: Judged, norm: Norm) -> str | None:
    for name, m in j.outputs.items():
        bar = min(TILE_DB, norm.tile_db.get(name, -math.inf) - UNUSUAL_DB)
        if not m.tile_db >= bar:
            return f"{name}: its worst tile of 8 rows has {m.tile_db:.1f} dB, the base {norm.tile_db.get(name, math.nan):.1f}"
    return None


def _wrong(call: Call, j: Judged, norm: Norm) -> bool:
    return not all(m.finite for m in j.outputs.values()) or (norm.passes and not j.passed)


def _only_when(when: str, what: str) -> Callable[[Trial, Norms], str | None]:
    """The same inputs twice, written at different times, and wrong at one of them: what happens in between is at fault.
    Wrong at once is late only if the contents did change: replaying old tensors may be right by chance the second time."""

    def look(trial: Trial, norms: Norms) -> str | None:
        by: dict[tuple[str, int], dict[str, bool]] = {}
        for call, j in trial:
            if call.how == "fresh":
                counts = bool(j.later) or not when == call.when == "now"
                wrong = counts and _wrong(call, j, norms.of(call.fill))
                by.setdefault((call.fill, call.seed), {})[call.when] = wrong
        other = "end" if when == "now" else "now"
        return what if any(w.get(when) and w.get(other) is False for w in by.values()) else None

    return look


def _exact(call: Call, j: Judged, norm: Norm) -> str | None:
    if call.fill != "ints" or not norm.exact:
        return None
    off = {name: m for name, m in j.outputs.items() if m.bad}
    if not off:
        return None
    name, m = next(iter(off.items()))
    return f"{name}: {m.bad} of {m.of} integer results are wrong, the base has none: terms are dropped or rounded"


def _less_precise(fills: Callable[[str], bool], slack_db: float) -> Callable[[Call, Judged, Norm], str | None]:
    def look(call: Call, j: Judged, norm: Norm) -> str | None:
        if not fills(call.fill) or call.how != "fresh":
            return None
        for name, m in j.outputs.items():
            was = norm.snr_db.get(name, -math.inf)
            if not m.snr_db >= was - slack_db:
                return f"{name}: {m.snr_db:.1f} dB on {call.fill} inputs, the base has {was:.1f}"
        return None

    return look


def _element(call: Call, j: Judged, norm: Norm) -> str | None:
    if call.how != "poke" or norm.moved > MOVED * 0.7:
        return None
    off = {n: v for n, v in j.moved.items() if not v <= MOVED}
    return f"{next(iter(off))}: one input element changed, its row didn't follow" if off else None


def _shape(call: Call, j: Judged, norm: Norm) -> str | None:
    bad = [name for name, m in j.outputs.items() if not m.ok]
    return f"{bad[0]} has another shape than the reference" if bad else None


def _own_check(call: Call, j: Judged, norm: Norm) -> str | None:
    return j.detail or "the project's check fails" if norm.passes and not j.passed else None


def _ruined(trial: Trial, norms: Norms) -> str | None:
    if norms.rejects_ruined and any(j.ruined_passes for _, j in trial):
        return "the project's check passed a copy of the outputs with a row of zeros"
    return None


def _deterministic(trial: Trial, norms: Norms) -> str | None:
    return "the same inputs gave other bits" if norms.deterministic and not repeats(trial) else None


def repeats(trial: Trial) -> bool:
    """Whether calls of one seed and fill have the same bits."""
    seen: dict[tuple[str, int], dict[str, str]] = {}
    for call, j in trial:
        if call.how == "fresh":
            bits = {name: m.sha for name, m in j.outputs.items()}
            if seen.setdefault((call.fill, call.seed), bits) != bits:
                return False
    return True


# In this order: the first that objects is the one to read. The causes come before what they bring about.
TRIAL_CHECKS: tuple[tuple[str, Callable[[Trial, Norms], str | None]], ...] = (
    ("K07", _each(_changed)),
    ("K18", _only_when("now", "outputs are right later, but not when the call returned")),
    ("K08", _only_when("end", "outputs were right when the call returned, and a later call overwrote them")),
    ("K01", _each(_unwritten)),
    ("G04", _each(_shape)),
    ("K04", _each(_not_passed("rewrite", "new contents under the same tensors gave another's result"))),
    ("K12", _ruined),
    ("G04", _each(_own_check)),
    ("K02", _each(_tile)),
    ("K03", _each(_exact)),
    ("K05", _each(_element)),
    ("K15", _each(_less_precise(lambda f: f in ("normal", "ints"), PRECISION_DB))),
    ("K14", _each(_less_precise(lambda f: f not in ("normal", "ints"), UNUSUAL_DB))),
    ("K23", _deterministic),
)


def judge_trial(trial: Trial, norms: Norms) -> Failure | None:
    """The first check that a trial doesn't pass, of those that the base passes."""
    armed = ((code, check) for code, check in TRIAL_CHECKS if code not in norms.off)
    return next((Failure(code=code, detail=why) for code, check in armed if (why := check(trial, norms))), None)


def learn(trials: Sequence[Trial]) -> Norms:
    """What the base reaches over its trials: the worst of each figure."""
    fills: dict[str, Norm] = {}
    for call, j in (x for trial in trials for x in trial):
        was = fills.get(call.fill)
        fills[call.fill] = _worse(was, call, j) if was else _norm(call, j)
    judged = [j for trial in trials for _, j in trial]
    norms = Norms(
        fills=fills, deterministic=all(repeats(t) for t in trials),
        rejects_ruined=not any(j.ruined_passes for j in judged),
    )  # fmt: skip
    while failure := next((f for t in trials if (f := judge_trial(t, norms))), None):
        norms = norms.model_copy(update={"off": (*norms.off, failure.code)})
    return norms


def _norm(call: Call, j: Judged) -> Norm:
    return Norm(
        snr_db={n: m.snr_db for n, m in j.outputs.items()}, tile_db={n: m.tile_db for n, m in j.outputs.items()},
        exact=all(m.bad == 0 for m in j.outputs.values()), passes=j.passed,
        moved=max(j.moved.values(), default=1.0) if call.how == "poke" else 0.0,
    )  # fmt: skip


def _worse(was: Norm, call: Call, j: Judged) -> Norm:
    new = _norm(call, j)

    def least(a: Mapping[str, float], b: Mapping[str, float]) -> dict[str, float]:
        return {n: min(a.get(n, math.inf), b.get(n, math.inf)) for n in {*a, *b}}

    return Norm(
        snr_db=least(was.snr_db, new.snr_db), tile_db=least(was.tile_db, new.tile_db), exact=was.exact and new.exact,
        moved=max(was.moved, new.moved), passes=was.passes and new.passes,
    )  # fmt: skip
