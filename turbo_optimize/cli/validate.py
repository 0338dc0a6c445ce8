"""turbo-opt validate."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from typing import Any, NamedTuple

import typer

from turbo_optimize import engine
from turbo_optimize.campaign import Campaign
from turbo_optimize.cli.console import here, print_json, progress, stop_on_sigint
from turbo_optimize.cli.reading import round_of, show
from turbo_optimize.core import stats
from turbo_optimize.core.errors import Interrupted, TurboOptError, UsageError
from turbo_optimize.core.events import Decided, Event, Patched
from turbo_optimize.core.models import Decision
from turbo_optimize.core.state import Round
from turbo_optimize.effects.devices import held_gpu
from turbo_optimize.effects.layout import Layout
from turbo_optimize.effects.store import MemoryJournal
from turbo_optimize.phases import validate
from turbo_optimize.reports.console import round_panel
from turbo_optimize.reports.text import gain, pct


def command(
    number: int = typer.Option(..., "--round", help="The open round, or a closed one to measure again."),
    level: str = typer.Option("quick", "--level", help="quick, or full: all target shapes too."),
    hypothesis: str | None = typer.Option(
        None, "--hypothesis", help="Why the change should be faster (an open round's)."
    ),
    campaign_id: str | None = typer.Option(None, "-c", "--campaign", help="The campaign; the latest if left out."),
    as_json: bool = typer.Option(False, "--json", help="Verdict and numbers as one JSON object."),
) -> None:
    if level not in ("quick", "full"):
        raise UsageError(f"--level {level!r}", "expected quick or full")
    repo = here()
    with progress() as say, stop_on_sigint(say) as stop:
        c, lock = engine.open_campaign(engine.find(repo, campaign_id), repo, say, stop=stop)
        with lock, held_gpu(c.manifest.target_gpu):
            r = round_of(c, number)
            if r.number > 1 and r.applied:
                again = measure_again(c, r, level == "full")
            else:
                again = None
                _validate(c, number, level, hypothesis)
    _tell_again(c, r, again, as_json) if again else _tell(c, number, level, as_json)


# -- an open round -----------------------------------------------------------------------------------------------------
def _validate(c: Campaign, number: int, level: str, hypothesis: str | None) -> None:
    """Proposes what stands in the worktree, then lets the engine gate, measure, decide and apply it."""
    r = engine.open_round(c, number)
    if c.manifest.proposer != "manual":
        raise UsageError(
            f"round {number} is open in a campaign that `{c.manifest.proposer}` proposes for",
            "`turbo-opt resume` goes on with it",
        )
    risk = "high" if level == "full" else "low"
    engine.settle(c)
    if r.proposal is None and not engine.edited(c):
        raise UsageError(f"{c.layout.worktree}: nothing was changed", "edit the kernel there, then validate")
    if r.proposal is not None and level == "full" and r.proposal.risk != "high":
        raise UsageError(
            f"round {number} is being validated at level quick already",
            "finish it without --level, then measure it again with it",
        )
    engine.begin(c, "validate")
    engine.propose_worktree(c, number, (hypothesis or "").strip() or f"what was edited in round {number}", risk)
    engine.run(c)


def _tell(c: Campaign, number: int, level: str, as_json: bool) -> None:
    r = round_of(c, number)
    if as_json:
        said = {"campaign": c.manifest.campaign, "round": number, "level": level, "status": r.status}
        print_json(said | _numbers(r.decision) | {"commit": r.commit, "next": _next(c)})
        return
    show(round_panel(c.state, number), _next(c))


def _numbers(d: Decision | None) -> dict[str, Any]:
    keys = ("verdict", "code", "reason", "gain_pct", "low_pct", "high_pct", "sessions", "shapes")
    data = d.model_dump(mode="json") if d else {}
    return {k: data.get(k) for k in keys}


def _next(c: Campaign) -> str:
    """What to do now, in one line."""
    if c.state.reported:
        ended = f"{c.state.terminated.code}: {c.state.terminated.why}" if c.state.terminated else "reported"
        return f"the campaign has ended ({ended}): {c.layout.report / 'report.md'}"
    if c.state.current is None:
        return "`turbo-opt resume` goes on"
    return f"edit {c.layout.worktree}, then: turbo-opt validate --round {c.state.current.number} --hypothesis TEXT"


# -- a closed round ----------------------------------------------------------------------------------------------------
class Again(NamedTuple):
    """A closed round measured afresh: the decision, and the full session's gain (percent) where one was asked for."""

    decision: Decision
    full_pct: float | None = None
    full_low_pct: float | None = None  # lower bound at z_full


def measure_again(c: Campaign, r: Round, full: bool) -> Again:
    """Gates and sessions of a closed round once more, its candidate restored from its ref into a folder of its own.

    The journal, the round's files, the branch and the worktree stay as they are. Raises Interrupted on a first ^C.
    """
    commit = c.repo.resolve(c.ref(f"round-{r.number}"))
    if r.commit is None or commit is None:
        raise UsageError(
            f"round {r.number} left nothing to measure", "its proposal changed nothing, or its patch didn't apply"
        )
    root = c.layout.root / ".scratch" / f"again-{r.number}"
    shutil.rmtree(root, ignore_errors=True)
    root.mkdir(parents=True)
    try:
        for path in (c.layout.harness, c.layout.project):
            shutil.copy(path, root / path.name)
        dry = Campaign(Layout(root), c.repo, _until_patched(c, r, commit), c.say, c.stop, c.bench_override)
        return _decide_again(dry, full)
    finally:
        dry.close()
        shutil.rmtree(root, ignore_errors=True)


def _until_patched(c: Campaign, r: Round, commit: str) -> MemoryJournal:
    """The story up to the round's last attempt, whose files are those of `commit`."""
    events: Sequence[Event] = c.journal.events
    last = max(i for i, e in enumerate(events) if isinstance(e, Patched) and e.round == r.number)
    return MemoryJournal([*events[:last], events[last].model_copy(update={"commit": commit})])


def _decide_again(dry: Campaign, full: bool) -> Again:
    """VALIDATE's steps up to its decision, which is not applied."""
    while True:
        if dry.stop.asked:
            raise Interrupted("stopped before a verdict; nothing was recorded")
        for event in validate.run(dry):
            if isinstance(event, Decided):
                return _with_full(dry, event.decision) if full and event.decision.shapes else Again(event.decision)
            dry.record(event)


def _with_full(dry: Campaign, decision: Decision) -> Again:
    """The decision with a full session's estimate: the one it rests on, else one more."""
    r, b = dry.state.current, dry.state.baseline
    assert r is not None
    assert b is not None
    if not any(s.level == "full" for s in r.sessions):
        for event in validate.measure(dry, r, "full"):
            dry.record(event)
        r = dry.state.current
        assert r is not None
    sessions = [s for s in r.sessions if s.level == "full"]
    if not sessions:
        failed = next((g.detail for g in r.gates if not g.ok), None) or next(
            x.detail for x in r.checks if x.check != "PASS"
        )
        raise TurboOptError(f"{decision.verdict.value} ({decision.code}), but the full session failed: {failed}")
    est = stats.combine(sessions, dry.policy, b.sigma_aa)
    return Again(decision, stats.pct(est.mean), stats.pct(est.mean - dry.policy.z_full * est.se))


def _tell_again(c: Campaign, r: Round, again: Again, as_json: bool) -> None:
    old, new = r.decision, again.decision
    assert old is not None
    repeats = new.verdict is old.verdict
    if as_json:
        said = {"campaign": c.manifest.campaign, "round": r.number, "repeats": repeats} | _numbers(new)
        full = {"full_gain_pct": again.full_pct, "full_low_pct": again.full_low_pct}
        print_json(said | {"recorded": _numbers(old)} | full)
        return
    print(f"recorded  {old.verdict.value} ({old.code}): {old.reason}")
    print(f"again     {new.verdict.value} ({new.code}): {new.reason}")
    for d in new.shapes:
        print(f"          {d.shape}: {gain(d.gain_pct, d.low_pct, d.high_pct)}")
    if again.full_pct is not None:
        shapes = len(c.manifest.target_shapes)
        print(f"full      {pct(again.full_pct)} over all {shapes} shapes, at least {pct(again.full_low_pct)}")
    print("the verdict repeats" if repeats else "the verdict does not repeat", "(nothing was recorded)")
