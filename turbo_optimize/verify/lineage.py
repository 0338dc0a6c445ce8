"""The branch and the refs: exactly the commits that the journal tells of, with its trailers and its files."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from turbo_optimize.campaign import Campaign
from turbo_optimize.core.verifying import Finding, Link, attempts, links, trailers
from turbo_optimize.verify.case import Case, finding, said


def _log(c: Campaign, *what: str) -> dict[str, tuple[str, tuple[str, ...], str]]:
    """Commit -> (tree, parents, message), in one call, oldest first."""
    out = c.repo.git("log", "--reverse", "--first-parent", "--format=%H%x00%T%x00%P%x00%B%x01", *what)
    records = (x.lstrip("\n").split("\0") for x in out.split("\1") if x.strip())
    return {r[0]: (r[1], tuple(r[2].split()), r[3]) for r in records}


def lineage(case: Case) -> Iterator[Finding]:
    c = case.c
    if c.state.prepared is None and c.state.baseline is None:
        return
    branch = c.manifest.git_branch
    ref = c.state.prepared.head_ref if c.state.prepared else f"refs/heads/{branch}" if branch else c.ref("head")
    head = c.repo.resolve(ref)
    gone = None if c.repo.resolve(c.base) else f"base commit {c.base[:12]} is gone"
    yield finding("lineage", "base", gone or ("" if head else f"{ref} is gone"))
    if gone or not head:
        return
    wanted = links(case.events)
    there = _log(c, f"{c.base}..{head}")
    yield finding("lineage", ref.removeprefix("refs/heads/"), _order(case, wanted, list(there)))
    before = c.base
    for link in wanted:
        if link.commit in there:
            yield finding("commit", f"round {link.round}{' undone' if link.undoes else ''}", said(
                lambda link=link, before=before: _commit(case, link, before, there[link.commit])
            ))  # fmt: skip
        before = link.commit


def _order(case: Case, wanted: Sequence[Link], there: list[str]) -> str:
    """The branch has exactly the journal's commits, in order; one more where a decision waits for its fact."""
    if case.pending and len(there) == len(wanted) + 1:
        there = there[:-1]
    for i, link in enumerate(wanted):
        if link.commit not in there:
            return f"{link.commit[:12]} (round {link.round}) is not on the branch"
        if there[i] != link.commit:
            return f"commit {i + 1} is {there[i][:12]}, the journal has {link.commit[:12]} (round {link.round})"
    more = there[len(wanted) :]
    return f"{len(more)} commits that the journal doesn't know, first {more[0][:12]}" if more else ""


def _commit(case: Case, link: Link, before: str, found: tuple[str, tuple[str, ...], str]) -> str:
    """One commit's parent, trailers and files."""
    c = case.c
    tree, parents, message = found
    if parents != (before,):
        return f"{link.commit[:12]} has the parent {' '.join(p[:12] for p in parents)}, expected {before[:12]}"
    r = c.state.round(link.round)
    told = trailers(message)
    wanted = {"Campaign": c.manifest.campaign}
    if link.attempt is None:
        wanted["Undoes-Round"] = str(link.round)
    else:
        wanted |= {
            "Round": str(link.round),
            "Score": f"{r.score.value:.6g} {r.score.unit}" if r and r.score else "(its score is lost)",
        }
    wrong = [k for k, v in wanted.items() if told.get(k) != v]
    if wrong:
        return f"trailer {wrong[0]} is {told.get(wrong[0])!r}, expected {wanted[wrong[0]]!r}"
    if link.attempt:
        kept = c.repo.resolve(link.attempt)  # superseded by the accepted commit; git may have collected it
        return (
            ""
            if not kept or c.repo.tree_of(kept) == tree
            else f"its files are not those of attempt {link.attempt[:12]}"
        )
    again = c.repo.reverted(link.undoes, before) if link.undoes else None
    return "" if again == tree else f"it is not the revert of {(link.undoes or 'a lost commit')[:12]}"


def refs(case: Case) -> Iterator[Finding]:
    c = case.c
    applied = {x.round: x.commit for x in links(case.events) if x.attempt}
    wanted = {name: {e.commit} for name, e in attempts(case.events).items()}
    for number, commit in applied.items():  # accepting moves the last attempt's ref to the commit on the branch
        wanted.setdefault(f"round-{number}", set()).add(commit)
    if c.state.prepared:
        wanted["round-1"] = {c.base}
    for name, commits in wanted.items():
        ref = c.ref(name)
        at = case.refs.get(ref)
        fine = at in commits or (at is not None and name == f"round-{case.pending}")
        expected = " or ".join(sorted(x[:12] for x in commits))
        yield finding("ref", name, "" if fine else f"{ref} is {f'at {at[:12]}' if at else 'gone'}, expected {expected}")
