"""A campaign against its journal: every hash, score, quad, verdict, commit and ref again, each named with its result.

Reads alone. A check that can't be made (its event or its file is lost) is a mismatch that says so, never a pass.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from turbo_optimize.campaign import Campaign
from turbo_optimize.core.errors import TurboOptError
from turbo_optimize.core.verifying import Finding, fold_past
from turbo_optimize.effects.layout import Layout
from turbo_optimize.effects.repo import Repo
from turbo_optimize.effects.store import MemoryJournal, scan
from turbo_optimize.verify.case import Case
from turbo_optimize.verify.files import harness, journal, manifest, patches, read_manifest, rendered
from turbo_optimize.verify.lineage import lineage, refs
from turbo_optimize.verify.numbers import csvs, final, noise, quads, samples, verdicts

CHECKS: tuple[Callable[[Case], Iterator[Finding]], ...] = (
    manifest, harness, samples, csvs, noise, quads, verdicts, final, lineage, refs, patches, rendered,
)  # fmt: skip


def verify(layout: Layout, repo: Repo) -> list[Finding]:
    """Every check of a campaign. Takes no lock: what a runner is writing now is checked as far as it is journaled."""
    lines, torn = scan(layout.journal)
    c = Campaign(layout, repo, MemoryJournal([]))
    c.journal.events += [x.event for x in lines if x.event]
    c.state = fold_past(c.journal.events)
    case = Case(c, lines, torn)
    found = list(journal(case))
    if c.state.manifest is None:
        try:  # the line that held the target is lost: its rendering for people is what is left
            target = read_manifest(c)
        except TurboOptError as e:
            return [
                *found,
                Finding(check="manifest.yaml", where="manifest.yaml", ok=False, detail=f"the target is lost: {e}"),
            ]
        c.state = fold_past(c.journal.events, c.state.model_copy(update={"manifest": target, "rounds": ()}))
    for check in CHECKS:
        found += check(case)
    return found
