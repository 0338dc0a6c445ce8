"""A campaign under examination, and how a check says what it found."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from turbo_optimize.campaign import Campaign
from turbo_optimize.core.errors import TurboOptError
from turbo_optimize.core.events import Decided, Event, Opened, Spent, UndoDecided
from turbo_optimize.core.models import Sample
from turbo_optimize.core.verifying import Finding
from turbo_optimize.effects.layout import key_of
from turbo_optimize.effects.replay import parse_samples
from turbo_optimize.effects.store import Line, sha256_file


@dataclass
class Case:
    """A campaign under examination: its journal's lines and what is left of its story."""

    c: Campaign
    lines: list[Line]
    torn: int

    @property
    def events(self) -> Sequence[Event]:
        return self.c.journal.events

    @cached_property
    def pending(self) -> int | None:
        """The round whose decision (or undo) is the end of the story: git may be one step ahead of the journal."""
        last = next((e for e in reversed(self.events) if not isinstance(e, Opened | Spent)), None)
        return last.round if isinstance(last, Decided | UndoDecided) else None

    @cached_property
    def refs(self) -> dict[str, str]:
        return self.c.repo.refs(self.c.ref("").rstrip("/"))

    def samples(self, number: int) -> tuple[Sample, ...]:
        path = self.c.layout.samples(key_of(number))
        if not path.exists():
            raise TurboOptError(f"{path.name} is gone")
        return parse_samples(path.read_text(encoding="utf-8", errors="replace"), path.name)


def finding(check: str, where: str, detail: str) -> Finding:
    """A mismatch where `detail` says something, else fine."""
    return Finding(check=check, where=where, ok=not detail, detail=detail)


def said(test: Callable[[], str]) -> str:
    """A test's word; what it can't read is its word too."""
    try:
        return test()
    except TurboOptError as e:
        return e.message
    except (ValueError, LookupError) as e:  # an edited target may name what isn't there
        return f"can't be compared: {e}"


def hash_of(path: Path) -> str:
    return sha256_file(path) if path.is_file() else "gone"
