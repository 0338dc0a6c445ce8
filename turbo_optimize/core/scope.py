"""Which files a campaign may change."""

from __future__ import annotations

import re
from collections.abc import Sequence


def _pattern(glob: str) -> re.Pattern[str]:
    """`*` within a folder, `**` across folders, `?` one character; everything else is itself."""
    parts = re.split(r"(\*\*/?|\*|\?)", glob)
    table = {"**/": r"(?:.*/)?", "**": r".*", "*": r"[^/]*", "?": r"[^/]"}
    return re.compile("".join(table.get(p, re.escape(p)) for p in parts))


def outside(files: Sequence[str], editable: Sequence[str]) -> tuple[str, ...]:
    """Files that no editable pattern covers."""
    patterns = [_pattern(g) for g in editable]
    return tuple(f for f in files if not any(p.fullmatch(f) for p in patterns))
