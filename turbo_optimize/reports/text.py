"""How numbers and other people's words become text: units, signs, escaping. Pure.

A hypothesis is written by a proposer; it may hold anything. `cell` and `prose` keep it from breaking a table, opening a
section of its own or steering a terminal.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from functools import lru_cache

NONE = "—"
TIMES_NOTE = "times are CPU (Triton interpreter) times, not a GPU's"
BARS = "▁▂▃▄▅▆▇█"

_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff\ufffe\uffff]")
_LIVE = re.compile(r"(\\*)(<(?=[A-Za-z/!?])|!(?=\[))")  # HTML and images, with the backslashes before them


def clean(text: str) -> str:
    """Without control characters, direction overrides and lone surrogates; line ends are \\n."""
    if text.isprintable():  # nearly all are
        return text
    return _CONTROL.sub("\ufffd", text.replace("\r\n", "\n").replace("\r", "\n"))


def one_line(text: str) -> str:
    return " ".join(clean(text).split())


def _inert(text: str) -> str:
    """HTML and images escaped; a backslash that stood before them can't undo it."""
    return _LIVE.sub(lambda m: f"{m[1] * 2}\\{m[2]}", text)


def cell(value: object) -> str:
    """One cell of a Markdown table."""
    return _cell(str(value))


@lru_cache(maxsize=4096)  # headings, labels, codes: most cells stand in every round's tables
def _cell(text: str) -> str:
    text = one_line(text).replace("\\", "\\\\").replace("|", "\\|")
    return _LIVE.sub(r"\1\\\2", text) or NONE


def inline(text: str) -> str:
    """Words within a Markdown line."""
    return _inert(one_line(text))


def lead(text: str) -> str:
    """`inline` words that open a line or a list item: no heading, list or fence of their own."""
    return f"\\{text}" if text and text[0] in "#>|-+*=~" else text


def prose(text: str) -> str:
    """Any text as a Markdown quotation: a heading or a fence in it can't leave the quotation."""
    return "\n".join(f"> {_inert(row)}".rstrip() for row in clean(text).strip().split("\n"))


def pct(value: float | None, digits: int = 2) -> str:
    return NONE if value is None else f"{value:+.{digits}f}%"


def share(value: float | None) -> str:
    """A percentage that has no sign."""
    return NONE if value is None else f"{value:.2f}%" if value < 10 else f"{value:.1f}%"


def interval(low: float | None, high: float | None) -> str:
    return NONE if low is None or high is None else f"[{low:+.2f}, {high:+.2f}]%"


def gain(value: float | None, low: float | None, high: float | None) -> str:
    """`+2.10% [+1.60, +2.60]%`"""
    if value is None:
        return NONE
    return pct(value) if low is None or high is None else f"{pct(value)} {interval(low, high)}"


def num(value: float | None) -> str:
    """Four significant digits, never an exponent on large numbers."""
    if value is None:
        return NONE
    return f"{value:.0f}" if abs(value) >= 1000 else f"{value:.4g}"


def duration(seconds: float | None) -> str:
    if seconds is None:
        return NONE
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest:02d} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60:02d} min"


def when(at: float) -> str:
    """Seconds since the epoch as UTC; the same on every machine."""
    return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%d %H:%M UTC") if at else NONE


def short(commit: str | None) -> str:
    return commit[:10] if commit else NONE


def md_table(columns: Sequence[str] | Mapping[str, str], rows: Iterable[Mapping[str, object]]) -> str:
    """A Markdown table. `columns`: headings that are the rows' keys, or {key: heading}."""
    heads = columns if isinstance(columns, Mapping) else {c: c for c in columns}
    lines = [f"| {' | '.join(map(cell, heads.values()))} |", f"|{'---|' * len(heads)}"]
    lines += [f"| {' | '.join(cell(row[k]) for k in heads)} |" for row in rows]
    return "\n".join(lines)


def sparkline(values: Sequence[float], width: int = 60) -> str:
    """One bar a value; more values than `width` are thinned, the last one stays."""
    if not values:
        return ""
    if len(values) > width:
        values = [values[round(i * (len(values) - 1) / (width - 1))] for i in range(width)]
    low, span = min(values), max(values) - min(values)
    return "".join(BARS[round((v - low) / span * (len(BARS) - 1))] if span else BARS[0] for v in values)
