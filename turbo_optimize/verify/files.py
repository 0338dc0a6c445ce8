"""The journal's lines, the manifest, the harness, the rendered files."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from turbo_optimize.campaign import Campaign
from turbo_optimize.core.errors import TurboOptError
from turbo_optimize.core.models import Manifest
from turbo_optimize.core.verifying import Finding, between
from turbo_optimize.effects.store import sha256_bytes
from turbo_optimize.engine import current_manifest
from turbo_optimize.reports.manifest import load_manifest
from turbo_optimize.reports.project import write_projections
from turbo_optimize.verify.case import Case, finding, hash_of, said


def journal(case: Case) -> Iterator[Finding]:
    events = [x.event for x in case.lines]
    raw = case.c.layout.journal.read_bytes().split(b"\n")
    for i, line in enumerate(case.lines):
        if not line.problem:
            continue
        if line.event is None:
            lost = "lost: " + (_hint(raw[i]) or f"an event {between(events, i)}")
        elif "numbered" in line.problem:
            lost = f"lost: what stood before {line.event.kind}, {between([*events[:i], None, *events[i:]], i)}"
        else:
            number = getattr(line.event, "round", None)
            lost = f"not to be trusted: {line.event.kind}{f' of round {number}' if number else ''}"
        yield Finding(check="journal", where=f"line {line.number}", ok=False, detail=f"{line.problem}; {lost}")
    if all(not x.problem for x in case.lines):
        tail = (
            f"a torn last line of {case.torn} bytes is no event; the next `turbo-opt resume` cuts it"
            if case.torn
            else ""
        )
        yield Finding(
            check="journal",
            where=f"{len(case.lines)} lines",
            ok=bool(case.lines),
            detail=tail or ("" if events else "empty"),
        )


def _hint(raw: bytes) -> str:
    """What a damaged line still says of its event."""
    text = raw.decode(errors="replace")
    kind, number = re.search(r'"kind":"(\w+)"', text), re.search(r'"round":(\d+)', text)
    return f"{kind[1]}{f' of round {number[1]}' if number else ''}" if kind else ""


def read_manifest(c: Campaign) -> Manifest:
    path = c.layout.manifest
    if not path.exists():
        raise TurboOptError("it is gone", "`turbo-opt report` writes it again")
    return load_manifest(path.read_text(encoding="utf-8", errors="replace"), path.name)


def manifest(case: Case) -> Iterator[Finding]:
    def differs() -> str:
        read, told = read_manifest(case.c), current_manifest(case.c)
        keys = [k for k in Manifest.model_fields if getattr(read, k) != getattr(told, k)]
        return f"differs from the journal in {', '.join(keys)}" if keys else ""

    yield finding("manifest.yaml", "manifest.yaml", said(differs))


def harness(case: Case) -> Iterator[Finding]:
    """quick_test_bench.py as it was at BASELINE, and the judging files of the base tree as they are in git."""
    c, b = case.c, case.c.state.baseline
    if b is None:
        return

    def bench() -> str:
        names = (c.op.adapter, *c.op.frozen)
        texts = {n: c.repo.show(c.base, n) for n in names}
        gone = [n for n, text in texts.items() if text is None]
        if gone:
            return f"{gone[0]} is not in the base commit"
        hashes = [sha256_bytes(str(t).encode("utf-8", "surrogateescape")) for t in texts.values()]
        told = b.environment.get("harness_sha256")
        if sha256_bytes("".join([hash_of(c.layout.harness), *hashes]).encode()) != told:
            return "is not the file that measured the baseline"
        tree = c.layout.tree(c.base)
        edited = [n for n, h in zip(names, hashes, strict=True) if tree.is_dir() and hash_of(tree / n) != h]
        return f"{tree / edited[0]} differs from the base commit" if edited else ""

    yield finding("harness", "quick_test_bench.py", said(bench))


def rendered(case: Case) -> Iterator[Finding]:
    state = case.c.state
    if state.baseline is None:
        return
    root = case.c.layout.root
    told: dict[Path, str] = {}
    write_projections(state, root, told.__setitem__)
    settled = {root / f"rounds/round-{r.number}" for r in state.rounds if r.applied}
    over = state.reported  # while a campaign runs, its logs are a step behind the journal
    wanted = [p for p in told if (p.parent in settled if p.parent.parent.name == "rounds" else over)]
    gone = [p.relative_to(root).as_posix() for p in wanted if not p.is_file()]
    differs = [p.relative_to(root).as_posix() for p in wanted if p.is_file() and p.read_text("utf-8") != told[p]]
    yield finding(
        "rendered files",
        f"{len(wanted)} files",
        "; ".join(
            f"{what}: {', '.join(names)}; `turbo-opt report` writes them"
            for what, names in (("gone", gone), ("not what the journal says", differs))
            if names
        ),
    )


def patches(case: Case) -> Iterator[Finding]:
    """patch.diff and kernel_snapshot against the attempt's commit."""
    c = case.c
    checked = 0
    for r in c.state.rounds:
        if not (r.commit and r.parent and r.applied and r.number > 1):
            continue
        if not (c.repo.resolve(r.commit) and c.repo.resolve(r.parent)):
            continue  # `refs` and `lineage` say that they are gone
        checked += 1
        folder = c.layout.round(r.number)
        told = {folder / "patch.diff": c.repo.diff(r.parent, r.commit)}
        told |= {folder / "kernel_snapshot" / n: c.repo.show(r.commit, n) or "" for n in r.files}
        bad = [p.relative_to(folder).as_posix() for p, text in told.items() if text and hash_of(p) != _sha(text)]
        if bad:
            yield finding("patch", f"round {r.number}", f"not what the commit says: {', '.join(bad)}")
    if checked:
        yield finding("patch", f"{checked} checked", "")


def _sha(text: str) -> str:
    return sha256_bytes(text.encode("utf-8", "surrogateescape"))
