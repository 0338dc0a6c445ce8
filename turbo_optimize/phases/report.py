"""REPORT: the end measured (baseline against head, leave-one-out), final acceptance, tips, and the pages."""

from __future__ import annotations

from collections.abc import Iterator

from turbo_optimize.campaign import Campaign
from turbo_optimize.core import stats
from turbo_optimize.core.events import Compared, Event, FinalAccepted, Reported, Tipped
from turbo_optimize.core.models import GateResult
from turbo_optimize.core.scope import outside
from turbo_optimize.core.state import Round
from turbo_optimize.effects.store import sha256_bytes, write_atomic
from turbo_optimize.phases.shared.commands import full_benchmark, full_test
from turbo_optimize.phases.shared.comparing import base_against_head, sessions
from turbo_optimize.phases.shared.tips import append_tips
from turbo_optimize.reports.project import write_projections
from turbo_optimize.reports.render import report_md
from turbo_optimize.reports.tables import tips


def run(c: Campaign) -> Iterator[Event]:
    """One step a call, like VALIDATE: what is journaled isn't measured again."""
    if c.state.baseline is not None:
        missing = _missing_comparison(c)
        if missing:
            yield from missing
            return
        if c.state.final is None:
            yield from _final_acceptance(c)
            return
        if c.state.tips is None:
            found = tuple(tips(c.state))
            append_tips(c, found)
            yield Tipped(tips=found)
            return
    text = report_md(c.state)
    write_projections(c.state, c.layout.root, write_atomic)
    yield Reported(report_sha256=sha256_bytes(text.encode()))


def _missing_comparison(c: Campaign) -> Iterator[Event] | None:
    kept = c.state.accepted
    done = {(x.what, x.round) for x in c.state.compared}
    if not kept:
        return None
    if ("final", None) not in done:
        return base_against_head(c, "final", "final", None, c.policy.confirm_sessions)
    if c.policy.leave_one_out and len(kept) > 1:
        for r in kept:
            if ("leave_one_out", r.number) not in done:
                return _without(c, r)
    return None


def _without(c: Campaign, r: Round) -> Iterator[Event]:
    """Head without one accepted commit (A) against head (B): what that commit is worth in company of the others."""
    b = c.state.baseline
    assert b is not None and r.applied
    tree = c.repo.reverted(r.applied, c.incumbent)
    if tree is None:
        yield Compared(what="leave_one_out", round=r.number, gain_pct=None, note="later commits build on its lines")
        return
    commit = c.repo.commit(tree, [c.incumbent], f"head without round {r.number}\n", r.decided_at, like=r.applied)
    c.repo.move_ref(c.ref(f"without-{r.number}"), commit, c.repo.resolve(c.ref(f"without-{r.number}")))
    key = f"without-{r.number}"
    measured, _, parts = sessions(c, key, c.tree(commit), c.tree(c.incumbent), 1, c.representative)
    est = stats.combine(measured, c.policy, b.sigma_aa)
    yield c.spent(1, parts)
    yield Compared(
        what="leave_one_out", round=r.number, gain_pct=stats.pct(est.mean),
        low_pct=stats.pct(est.mean - c.policy.z_full * est.se), high_pct=stats.pct(est.mean + c.policy.z_full * est.se),
        note="1 session",
    )  # fmt: skip


def _final_acceptance(c: Campaign) -> Iterator[Event]:
    """The project's full test and benchmark on the head, and a diff that touches editable files alone."""
    parts: dict[str, float] = {}
    bad = outside(c.repo.changed(c.base, c.incumbent), c.manifest.editable)
    gates = [GateResult(code="G01", ok=not bad, detail=", ".join(bad) or "only editable files differ from the base")]
    if not c.bench_override and c.incumbent != c.base:
        head = c.tree(c.incumbent)
        gates += [full_test(c, head, "final", parts), full_benchmark(c, head, "final", parts)]
    yield c.spent(1, parts)
    yield FinalAccepted(gates=tuple(gates))
