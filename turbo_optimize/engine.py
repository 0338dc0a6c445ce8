"""The loop: settle what is pending, next phase, run it, append. Everything else is in phases/ and core/."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Literal

from turbo_optimize.campaign import Campaign, Stop
from turbo_optimize.core.errors import RepoError, TurboOptError, UsageError
from turbo_optimize.core.events import Created, Opened, Phase, Proposed, Reported, StopAsked, UndoDecided, Undone
from turbo_optimize.core.machine import next_phase, termination
from turbo_optimize.core.models import Manifest, Proposal
from turbo_optimize.core.state import Round
from turbo_optimize.effects.bench import Bench
from turbo_optimize.effects.layout import Layout
from turbo_optimize.effects.repo import Repo
from turbo_optimize.effects.store import Journal, Lock, MemoryJournal, read_events, write_atomic
from turbo_optimize.phases import PHASES
from turbo_optimize.phases.define import Plan
from turbo_optimize.phases.shared.proposing import context, proposer
from turbo_optimize.projects.loader import nearest
from turbo_optimize.reports.manifest import load_manifest, manifest_yaml
from turbo_optimize.reports.project import write_projections

Say = Callable[[str], None]


def _quiet(_: str) -> None:
    """Nobody watches."""


# -- finding -----------------------------------------------------------------------------------------------------------
def campaigns_dir(repo: Repo) -> Path:
    return repo.top / "campaigns"


def campaign_names(repo: Repo) -> list[str]:
    """Every campaign of this checkout, oldest first."""
    found = [p.parent for p in campaigns_dir(repo).glob("*/journal.jsonl")]
    return [p.name for p in sorted(found, key=lambda p: ((p / "journal.jsonl").stat().st_mtime, p.name))]


def find(repo: Repo, given: str | None) -> Layout:
    """The campaign by name or folder; without one, the only or the latest."""
    if given and (Path(given) / "journal.jsonl").is_file():
        return Layout(Path(given).resolve())
    names = campaign_names(repo)
    if not names:
        raise UsageError(f"no campaign in {campaigns_dir(repo)}", "begin one with `turbo-opt start`")
    if given is None:
        return Layout(campaigns_dir(repo) / names[-1])
    if given not in names:
        raise UsageError(f"unknown campaign {given!r}", nearest(given, names).removeprefix("; "))
    return Layout(campaigns_dir(repo) / given)


# -- opening -----------------------------------------------------------------------------------------------------------
def create(
    plan: Plan, repo: Repo, say: Say = _quiet, clock: Callable[[], float] = time.time, stop: Stop | None = None
) -> tuple[Campaign, Lock]:
    """A new campaign's folder and first event. Ignored by git from the inside: no tracked file changes."""
    layout = Layout(campaigns_dir(repo) / plan.manifest.campaign)
    lock = Lock(layout.lock, f"campaign {plan.manifest.campaign}").acquire()
    try:
        if layout.journal.exists():  # begun by another runner between the plan and the lock
            raise UsageError(f"campaign {plan.manifest.campaign} exists", "`turbo-opt start` again takes the next name")
        top_ignore = campaigns_dir(repo) / ".gitignore"
        if not top_ignore.exists():
            write_atomic(top_ignore, "# written by turbo-opt: campaigns are not part of the repository\n*\n")
        write_atomic(layout.root / ".gitignore", "*\n")
        write_atomic(layout.project, plan.project_text, durable=True)
        write_atomic(layout.manifest, manifest_yaml(plan.manifest))
        campaign = Campaign(layout, repo, Journal(layout.journal, clock), say, stop or Stop())
        campaign.record(Created(manifest=plan.manifest))
    except BaseException:
        lock.release()
        raise
    return campaign, lock


def open_campaign(
    layout: Layout, repo: Repo, say: Say = _quiet, clock: Callable[[], float] = time.time, stop: Stop | None = None
) -> tuple[Campaign, Lock]:
    """An existing campaign for writing: locked, its torn tail cut, its manifest checked against the journal."""
    if not layout.journal.exists():
        raise UsageError(f"{layout.root} holds no journal", "`turbo-opt list` names the campaigns")
    lock = Lock(layout.lock, f"campaign {layout.root.name}").acquire()
    try:
        campaign = Campaign(layout, repo, Journal(layout.journal, clock), say, stop or Stop())
        if campaign.state.manifest is None:
            raise TurboOptError(f"{layout.root}: nothing was journaled yet", "remove the folder and start again")
        check_manifest(campaign)
    except BaseException:
        lock.release()
        raise
    return campaign, lock


def check_manifest(c: Campaign) -> None:
    """manifest.yaml is for people; where it is there it must say what the journal says."""
    path = c.layout.manifest
    if not path.exists():
        write_atomic(path, manifest_yaml(current_manifest(c)))
        return
    read = load_manifest(path.read_text(encoding="utf-8", errors="replace"), str(path))
    frozen = current_manifest(c)
    filled = {"representative_shapes", "schema_sha256", "harness_sha256", "noise", "environment"}
    for key in type(read).model_fields:
        if key not in filled and getattr(read, key) != getattr(frozen, key):
            raise TurboOptError(
                f"{path}: {key}: is {getattr(read, key)!r}, the campaign was defined with {getattr(frozen, key)!r}",
                "a target is frozen after DEFINE_TARGET: put it back, or `turbo-opt report` rewrites the file",
            )


def read_campaign(layout: Layout, repo: Repo) -> Campaign:
    """An existing campaign for reading alone, also beside a runner: no lock is taken, nothing it records is kept."""
    if not layout.journal.exists():
        raise UsageError(f"{layout.root} holds no journal", "`turbo-opt list` names the campaigns")
    return Campaign(layout, repo, MemoryJournal(read_events(layout.journal)))


def current_manifest(c: Campaign) -> Manifest:
    """The journal's manifest with what BASELINE filled in."""
    b, m = c.state.baseline, c.manifest
    if b is None:
        return m
    return m.model_copy(
        update={
            "representative_shapes": b.representative_shapes, "schema_sha256": b.schema_sha256,
            "harness_sha256": b.environment.get("harness_sha256"), "noise": b.noise_pct, "environment": b.environment,
        }
    )  # fmt: skip


# -- running -----------------------------------------------------------------------------------------------------------
def begin(c: Campaign, command: str, max_rounds: int | None = None, max_duration_s: float | None = None) -> None:
    """Journals that a runner took over; a raised budget or a resumed stop reopens an ended campaign."""
    c.layout.stop_request.unlink(missing_ok=True)
    again = _reopens(c, raised=max_rounds is not None or max_duration_s is not None)
    c.record(
        Opened(command=command, pid=os.getpid(), max_rounds=max_rounds, max_duration_s=max_duration_s, again=again)
    )


def _reopens(c: Campaign, raised: bool) -> bool:
    """Whether an ended campaign has more to do than what is left of its report: a stop that is over, a raised budget, new
    directions after T6, an end that was measured before an undo. Else going on is idempotent."""
    ended = c.state.terminated
    if c.state.stop_asked or (ended and raised):
        return True
    if not (ended and c.state.reported):
        return False
    last = next(e for e in reversed(c.journal.events) if isinstance(e, Reported | UndoDecided))
    return isinstance(last, UndoDecided) or (ended.code == "T6" and bool(proposer(c).directions(context(c, "unknown"))))


def settle(c: Campaign) -> None:
    """Finishes what was intended and makes the campaign's own places whole again; the rest is simply done again."""
    if c.state.prepared is None:
        return
    branch = c.state.prepared.branch
    c.repo.clear_locks(c.layout.worktree, (c.state.prepared.head_ref, c.ref("").rstrip("/")))
    c.repo.add_worktree(c.layout.worktree, f"refs/heads/{branch}" if branch else None, c.incumbent)
    if c.state.undo:
        _undo(c)
    head = c.repo.resolve(c.state.prepared.head_ref)
    pending = c.state.current
    if head != c.incumbent and not (pending and pending.decision):
        raise RepoError(
            f"{c.state.prepared.head_ref} is at {head or 'nothing'}, the campaign left it at {c.incumbent}",
            f"put it back: git update-ref {c.state.prepared.head_ref} {c.incumbent}; then `turbo-opt resume`",
        )
    if not (pending and (pending.proposal is None or pending.proposal.worktree)):
        c.repo.sync_worktree(c.layout.worktree, c.incumbent)  # an open manual round's edits stay


def run(c: Campaign) -> Phase:
    """Until the campaign is done, or waits for a person. The phase it stopped in."""
    try:
        return _run(c)
    finally:
        c.close()


def _run(c: Campaign) -> Phase:
    settle(c)
    while True:
        _heed_stop(c)
        ended = None if c.state.terminated or c.state.prepared is None else termination(c.state, c.policy, c.op.peak)
        if ended and (c.state.baseline or ended.code == "T4"):
            c.record(ended)
        phase = next_phase(c.state, c.policy)
        if phase in (Phase.DONE, Phase.WAIT):
            project(c)
            return phase
        was = len(c.state.closed)
        c.say(f"{phase.value}{f' round {c.state.current.number}' if c.state.current else ''}")
        for event in PHASES[phase](c):
            c.record(event)
        if len(c.state.closed) != was or phase in (Phase.BASELINE, Phase.ANALYZE):
            project(c)


def _heed_stop(c: Campaign) -> None:
    if c.layout.stop_request.exists():
        c.stop.asked = "`turbo-opt stop`"
        c.layout.stop_request.unlink(missing_ok=True)
    if c.stop.asked and not c.state.stop_asked and not c.state.terminated:
        c.record(StopAsked(why=c.stop.asked))


def project(c: Campaign, everything: bool = False) -> None:
    """Renders what changed: the last rounds' summaries, the logs, the manifest."""
    if c.state.baseline is None:
        return
    write_atomic(c.layout.manifest, manifest_yaml(current_manifest(c)))
    numbers = None if everything else [r.number for r in c.state.rounds[-2:]]
    write_projections(c.state, c.layout.root, write_atomic, numbers)


def open_round(c: Campaign, number: int) -> Round:
    """Round `number`, if it is open; else a UsageError that says which one is."""
    r = c.state.current
    if r is None or r.number != number:
        said = f"round {r.number} is open" if r else "no round is open"
        raise UsageError(f"round {number} can't be validated: {said}", "`turbo-opt status` says where it stands")
    return r


def edited(c: Campaign) -> bool:
    """Whether the worktree differs from the incumbent (ignored files don't count). Settled campaigns alone have one."""
    return c.repo.tree_from(c.layout.worktree, c.incumbent) != c.repo.tree_of(c.incumbent)


def propose_worktree(c: Campaign, number: int, hypothesis: str, risk: Literal["low", "high"] = "low") -> Round:
    """Journals what stands in the worktree as the open round's proposal (manual campaigns). High risk: full validation."""
    r = open_round(c, number)
    if r.proposal is None:
        c.record(
            Proposed(
                round=number,
                proposal=Proposal(
                    hypothesis=hypothesis, change="what stands in the worktree", category="manual",
                    summary=" ".join(hypothesis.split())[:60], direction=f"manual/round-{number}", risk=risk, worktree=True,
                ),
            )
        )  # fmt: skip
    r = c.state.current
    assert r is not None
    return r


# -- undoing -----------------------------------------------------------------------------------------------------------
def undo(c: Campaign, number: int) -> str:
    """Takes an accepted round back by a revert commit; the history stays. Returns the new head."""
    cut_short = c.state.undo
    settle(c)
    if cut_short and cut_short.round == number:
        return c.incumbent  # a crash came between its intent and its fact; settling finished it
    r = c.state.round(number)
    if r is None or r not in c.state.accepted:
        kept = ", ".join(str(x.number) for x in c.state.accepted) or "none"
        raise UsageError(f"round {number} is not an accepted round", f"accepted are: {kept}")
    if c.state.current and c.state.current.commit:
        raise UsageError(f"round {c.state.current.number} is open on top of it", "`turbo-opt resume` first, then undo")
    if edited(c):
        raise UsageError(
            f"{c.layout.worktree} holds edits that nobody validated", "`turbo-opt validate` or drop them first"
        )
    assert r.applied
    if c.repo.reverted(r.applied, c.incumbent) is None:
        raise UsageError(
            f"round {number} can't be taken back alone: later rounds changed the same lines", "undo those first"
        )
    c.record(Opened(command="undo", pid=os.getpid()))  # the time since the last run doesn't count
    c.record(UndoDecided(round=number, commit=r.applied, onto=c.incumbent))
    return _undo(c)


def _undo(c: Campaign) -> str:
    u = c.state.undo
    assert u is not None and c.state.prepared
    tree = c.repo.reverted(u.commit, u.onto)
    if tree is None:
        raise RepoError(f"round {u.round} no longer reverts cleanly onto {u.onto[:12]}")
    subject = c.repo.message(u.commit).split("\n")[0]
    message = f'Revert "{subject}"\n\nThis reverts commit {u.commit}.\n\nCampaign: {c.manifest.campaign}\nUndoes-Round: {u.round}\n'
    commit = c.repo.commit(tree, [u.onto], message, u.at, like=u.commit)
    c.repo.move_ref(c.state.prepared.head_ref, commit, u.onto)
    c.repo.sync_worktree(c.layout.worktree, commit)
    c.record(Undone(round=u.round, commit=commit))
    project(c, everything=True)
    return commit


def recover(c: Campaign, number: int, attempt: int | None = None) -> str:
    """Any attempt (the round's last, if not said) as a branch `turbo-opt/<campaign>/round-N`. Returns its name."""
    r = c.state.round(number)
    last = r.attempt if r else 1
    name = f"round-{number}" if attempt in (None, last) else f"round-{number}-attempt-{attempt}"
    commit = c.repo.resolve(c.ref(name))
    if commit is None:
        left = f"round {number} left no attempt" + (f" {attempt}" if attempt else "")
        raise UsageError(left, "`turbo-opt log` lists the rounds")
    branch = f"turbo-opt/{c.manifest.campaign}/{name}"
    there = c.repo.resolve(f"refs/heads/{branch}")
    if there not in (None, commit):
        raise UsageError(f"branch {branch} exists and is elsewhere", "rename or delete it first")
    c.repo.move_ref(f"refs/heads/{branch}", commit, None)
    return branch


def with_bench(c: Campaign, bench: Bench, proposer: object | None = None) -> Campaign:
    """The same campaign over another bench (a recorded one) and proposer."""
    c.bench_override, c.proposer_override = bench, proposer
    return c
