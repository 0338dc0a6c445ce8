"""What the commands over an existing campaign share: opening it for reading, and tables that a pipe can take."""

from __future__ import annotations

from typing import Any

from turbo_optimize.campaign import Campaign
from turbo_optimize.cli.console import here
from turbo_optimize.core.errors import UsageError
from turbo_optimize.core.state import Round


def reading(campaign_id: str | None) -> Campaign:
    """The campaign (the latest if none is named), without its lock: also while a runner has it."""
    from turbo_optimize import engine

    repo = here()
    return engine.read_campaign(engine.find(repo, campaign_id), repo)


def round_of(c: Campaign, number: int) -> Round:
    """Round `number`, or a UsageError that says which there are."""
    r = c.state.round(number)
    if r is None:
        there = f"1 to {len(c.state.rounds)}" if c.state.rounds else "none yet"
        raise UsageError(f"no round {number} in {c.manifest.campaign}", f"rounds: {there}")
    return r


def show(*renderables: Any) -> None:
    """Prints rich renderables to stdout."""
    from rich.console import Console

    console = Console(highlight=False)
    for renderable in renderables:
        console.print(renderable, soft_wrap=isinstance(renderable, str), markup=False)
