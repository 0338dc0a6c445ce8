"""A folder of patches (by name), or a branch's commits (oldest first): one a round."""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

from turbo_optimize.core.errors import UsageError
from turbo_optimize.core.models import Proposal
from turbo_optimize.proposers.context import Context, Ranked


class Patch(NamedTuple):
    name: str
    subject: str
    text: str


def read_folder(folder: Path) -> tuple[Patch, ...]:
    """Every *.patch and *.diff of a folder by name; the subject is a mail header's, else the file's name."""
    files = sorted(p for p in folder.iterdir() if p.suffix in {".patch", ".diff"})
    if not files:
        raise UsageError(f"{folder} holds no *.patch or *.diff", "`git format-patch -o DIR` makes them")
    out = []
    for path in files:
        try:
            text = path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as e:
            raise UsageError(f"{path}: can't be read ({e})", "a patch is a UTF-8 text") from None
        found = re.search(r"^Subject: (?:\[PATCH[^\]]*\] )?(.+)$", text, re.MULTILINE)
        out.append(Patch(path.name, found.group(1).strip() if found else path.stem.replace("-", " "), text))
    return tuple(out)


def _all(ctx: Context) -> tuple[Patch, ...]:
    source = ctx.args.get("patches", "")
    if Path(source).is_dir():
        return read_folder(Path(source))
    return tuple(Patch(commit[:12], subject, text) for commit, subject, text in ctx.patch_of(source))


def _left(ctx: Context) -> list[Patch]:
    tried = ctx.tried()
    return [p for p in _all(ctx) if f"patch/{p.name}" not in tried]


def directions(ctx: Context) -> tuple[Ranked, ...]:
    return tuple(
        Ranked(
            name=f"patch/{p.name}", bottleneck=ctx.bottleneck, change=p.subject, expected_gain_pct=0.0, risk="high",
            signal="", bucket="K1", category="patch",
        )
        for p in _left(ctx)
    )  # fmt: skip


def propose(ctx: Context) -> Proposal | None:
    p = _left(ctx)[0]
    return Proposal(
        hypothesis=p.subject, change=f"patch {p.name}", summary=p.subject[:60], category="patch",
        direction=f"patch/{p.name}", bottleneck=ctx.bottleneck, risk="high", patch=p.text,
    )  # fmt: skip


def repair(ctx: Context, failure: str) -> Proposal | None:
    return None
