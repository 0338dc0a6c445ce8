"""What the referee says of itself: how fine it measures here, what is armed, what found the planted faults, what it
rejected. Pure; what a record doesn't hold is left out."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from turbo_optimize.core.checks import Norms
from turbo_optimize.core.events import Baselined, Compared
from turbo_optimize.core.models import Policy
from turbo_optimize.core.state import State
from turbo_optimize.reports.rounds import title, titled
from turbo_optimize.reports.text import one_line, share

UNCONFINED = {"none": "none: nothing confines a candidate's processes but limits"}


def forecast(b: Baselined, policy: Policy) -> str:
    """How small a gain the campaign can find: BASELINE's last word. Empty for a record that doesn't hold it.

    `policy` is the campaign's; what the baseline's noise made of it (`b.quads`, `b.min_gain_pct`) is told here.
    """
    named = [f"{name} {line}" for name, line in (_floor(b, policy), _least(b, policy)) if line]
    return "; ".join(filter(None, [_resolves(b, policy), *named]))


def _resolves(b: Baselined, p: Policy) -> str:
    if b.resolves_pct is None:
        return ""
    fewest, most = p.confirm_sessions, p.confirm_sessions + p.extra_sessions
    count = f"{fewest} to {most} sessions resolve" if most > fewest else f"{most} sessions resolve"
    one = "1 session resolves" if most == 1 else count
    return f"{one} {share(b.resolves_pct)} on these shapes (4 times in 5)"


def _floor(b: Baselined, p: Policy) -> tuple[str, str]:
    if b.aa_floor_pct is None:
        return "A/A floor", ""
    more = f", with twice the quads ({b.quads})" if b.quads is not None else ""
    return "A/A floor", f"{share(b.aa_floor_pct)}{more}"


def _least(b: Baselined, p: Policy) -> tuple[str, str]:
    if b.min_gain_pct is None:
        return "least gain", ""
    return "least gain", f"{b.min_gain_pct:g}%: A/A moves by over {p.aa_floor_pct:g}% even with twice the quads"


def launch_bound(b: Baselined) -> dict[str, float]:
    """Shapes that are not core, with their A/A noise in percent: they can't veto."""
    return {shape: noise for shape, noise in b.noise_pct.items() if shape not in b.core_shapes}


def _no_veto(b: Baselined, p: Policy) -> tuple[str, str]:
    shapes = ", ".join(f"{s} ({share(noise)})" for s, noise in launch_bound(b).items())
    why = f"launch-bound, A/A moves by over {p.launch_bound_pct:g}%"
    return "can't veto", f"{shapes}: {why}" if shapes else ""


def _isolation(b: Baselined, p: Policy) -> tuple[str, str]:
    level = b.environment.get("isolation", "")
    return "isolation", UNCONFINED.get(level, level)


OF_BASELINE: tuple[Callable[[Baselined, Policy], tuple[str, str]], ...] = (
    lambda b, p: ("forecast", _resolves(b, p)), _floor, _least, _no_veto, _isolation,
)  # fmt: skip


def self_test(state: State) -> list[dict[str, Any]]:
    """A planted fault a row: {fault, code, found_by, found, how}; empty where none was journaled."""
    rows = []
    for g in state.learned.self_test if state.learned else ():
        fault, _, how = one_line(g.detail).partition(": ")
        rows.append({
            "fault": fault.replace("_", " "), "code": g.code, "found_by": titled(g.code) if g.ok else "nothing",
            "found": g.ok, "how": how,
        })  # fmt: skip
    return rows


def _found(state: State) -> str:
    rows = self_test(state)
    codes = ", ".join(sorted({row["code"] for row in rows if row["found"]}))
    return f"{sum(row['found'] for row in rows)} of {len(rows)} planted faults found ({codes})" if rows else ""


# A check that only a base which passes it arms.
NEEDS: dict[str, Callable[[Norms], bool]] = {
    "K03": lambda n: n.of("ints").exact,
    "K12": lambda n: n.rejects_ruined,
    "K13": lambda n: n.heldout,
    "K19": lambda n: n.training,
    "K23": lambda n: n.deterministic,
}


def not_armed(state: State) -> list[str]:
    """Codes of checks that the base itself doesn't pass, so that nobody is held to them; empty where nothing is known."""
    norms, m = state.learned.norms if state.learned else Norms(), state.manifest
    if not norms.fills:
        return []
    lacks = {code for code, passes in NEEDS.items() if not passes(norms)}
    if m and m.execution_mode != "training":
        lacks.discard("K19")
    return sorted(lacks | set(norms.off))


def _not_armed(state: State) -> str:
    codes = not_armed(state)
    return f"{', '.join(map(titled, codes))}: the base itself doesn't pass" if codes else ""


def words(state: State) -> dict[str, str]:
    """What BASELINE and the gate self-test found, a line a fact, in order; only what is known."""
    b, m = state.baseline, state.manifest
    told = dict(fact(b, m.policy) for fact in OF_BASELINE) if b and m else {}
    told |= {"self-test": _found(state), "not armed": _not_armed(state)}
    return {name: line for name, line in told.items() if line}


def facts(state: State) -> dict[str, Any]:
    """The same as numbers, null where unknown: `referee` of report/data.json and of `status --json`."""
    b, p = state.baseline, state.manifest.policy if state.manifest else None
    return {
        "forecast": (forecast(b, p) or None) if b and p else None,
        "confirm_sessions": p.confirm_sessions if p else None, "extra_sessions": p.extra_sessions if p else None,
        "resolves_pct": b.resolves_pct if b else None, "aa_floor_pct": b.aa_floor_pct if b else None,
        "quads_doubled_to": b.quads if b else None, "min_gain_raised_to_pct": b.min_gain_pct if b else None,
        "launch_bound": launch_bound(b) if b else {}, "isolation": b.environment.get("isolation") if b else None,
        "self_test": self_test(state), "not_armed": not_armed(state),
    }  # fmt: skip


# -- over the rounds -----------------------------------------------------------------------------------------------------
def checkpoints(state: State) -> list[Compared]:
    """Base against head on the way, in the order of measuring."""
    return [c for c in state.compared if c.what == "checkpoint"]


def rejected(state: State) -> list[dict[str, Any]]:
    """What objected to the rounds that rolled back, inconclusive ones included: {code, title, rounds}, most first."""
    by: dict[str, list[int]] = {}
    for r in state.closed:
        if r.decision and not r.decision.accepted:
            by.setdefault(r.decision.code, []).append(r.number)
    rows = [{"code": c, "title": title(c), "rounds": n} for c, n in by.items()]
    return sorted(rows, key=lambda row: (-len(row["rounds"]), row["code"]))
