"""OPTIMIZE: exactly one hypothesis, written into the worktree and stored as a commit under the campaign's refs."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from turbo_optimize.campaign import Campaign
from turbo_optimize.core.errors import RepoError
from turbo_optimize.core.events import Applied, Decided, Event, Gated, Patched, Proposed
from turbo_optimize.core.models import Decision, GateResult, Proposal, Verdict
from turbo_optimize.core.state import Round
from turbo_optimize.effects.layout import key_of
from turbo_optimize.effects.store import disk_errors, write_atomic
from turbo_optimize.phases.shared.proposing import context, proposer


def run(c: Campaign) -> Iterator[Event]:
    r = c.state.current
    assert r is not None, "OPTIMIZE needs an open round"
    if r.proposal is None or r.gates:
        yield from _propose(c, r)
        r = c.state.current
        if r is None or r.proposal is None or r.gates:
            return
    yield from _patch(c, r)


def _propose(c: Campaign, r: Round) -> Iterator[Event]:
    """The first proposal of a round, or a repair of one whose build or check failed."""
    parts: dict[str, float] = {}
    ctx = context(c, r.analysis.bottleneck if r.analysis else "", parts)
    if r.proposal is None:
        found, attempt = proposer(c).propose(ctx), 1
    else:
        why = next((g.detail for g in r.gates if not g.ok), "") or next(
            (x.detail for x in r.checks if x.check != "PASS"), ""
        )
        found, attempt = proposer(c).repair(ctx, why), r.attempt + 1
        if found and r.commit:  # round-N is the last attempt; an earlier one keeps a ref of its own
            c.repo.move_ref(c.ref(f"round-{r.number}-attempt-{r.attempt}"), r.commit, None)
    if parts:
        yield c.spent(r.number, parts)
    if found:
        yield Proposed(round=r.number, attempt=attempt, proposal=found)
    elif r.proposal is not None:  # nothing left to try: the failure stands
        yield Gated(round=r.number, attempt=r.attempt, gates=r.gates, checks=r.checks, repairable=False)


def _patch(c: Campaign, r: Round) -> Iterator[Event]:
    assert r.proposal is not None
    parent = c.incumbent
    if r.proposal.worktree:
        tree = c.repo.tree_from(c.layout.worktree, parent)
    else:
        c.repo.sync_worktree(c.layout.worktree, parent)
        try:
            _write(c, r.proposal)
        except RepoError as e:
            failed = GateResult(code="G03", ok=False, detail=f"the patch doesn't apply: {e.message}")
            yield Gated(round=r.number, attempt=r.attempt, gates=(failed,), repairable=True)
            return
        tree = c.repo.tree_from(c.layout.worktree, parent)
    files = c.repo.changed(parent, tree)
    if not files:
        reason = r.proposal.change or "the proposal changes nothing"
        yield Decided(
            round=r.number, decision=Decision(verdict=Verdict.ROLLBACK, code="D08", reason=reason), incumbent=parent
        )
        yield Applied(round=r.number, commit=parent)
        return
    message = f"{r.proposal.summary}\n\nAttempt {r.attempt} of round {r.number}, not decided yet.\n\nHypothesis: {r.proposal.hypothesis}\n"
    commit = c.repo.commit(tree, [parent], message, r.proposed_at)
    ref = c.ref(f"round-{r.number}")
    c.repo.move_ref(ref, commit, c.repo.resolve(ref))
    _keep(c, r.number, parent, commit, files)
    yield Patched(round=r.number, attempt=r.attempt, commit=commit, parent=parent, files=files)


def _write(c: Campaign, proposal: Proposal) -> None:
    """The proposal's edits (whole files) or its patch, into the worktree."""
    top = c.layout.worktree
    for name, text in proposal.edits.items():
        path = (top / name).resolve()
        if not path.is_relative_to(top.resolve()):
            raise RepoError(f"{name} lies outside of the worktree")
        with disk_errors(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
    if proposal.patch:
        text = proposal.patch if proposal.patch.endswith("\n") else f"{proposal.patch}\n"
        c.repo.git("apply", "--whitespace=nowarn", "-", cwd=top, stdin=text.encode("utf-8", "surrogateescape"))


def _keep(c: Campaign, number: int, parent: str, commit: str, files: tuple[str, ...]) -> None:
    """patch.diff and the changed files as they are in the candidate, for people."""
    folder = c.layout.round(number)
    write_atomic(folder / "patch.diff", c.repo.diff(parent, commit).encode("utf-8", "surrogateescape"))
    for name in files:
        text = c.repo.show(commit, name)
        if text is not None:
            write_atomic(folder / "kernel_snapshot" / Path(name), text.encode("utf-8", "surrogateescape"))
    write_atomic(c.layout.artifacts(key_of(number)) / "parent.txt", f"{parent}\n")
