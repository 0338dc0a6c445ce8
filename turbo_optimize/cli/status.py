"""turbo-opt status."""

from __future__ import annotations

import typer

from turbo_optimize.cli.console import print_json
from turbo_optimize.cli.reading import reading, show
from turbo_optimize.core.events import Phase
from turbo_optimize.core.state import State
from turbo_optimize.reports import referee
from turbo_optimize.reports.tables import status_facts


def command(
    campaign_id: str | None = typer.Argument(None, metavar="[ID]", help="The campaign; the latest if left out."),
    as_json: bool = typer.Option(False, "--json", help="The facts as one JSON object."),
) -> None:
    from turbo_optimize.effects.store import Lock
    from turbo_optimize.reports.console import status_table

    c = reading(campaign_id)
    holder = Lock(c.layout.lock, "").holder()
    if as_json:
        facts = {**status_facts(c.state), "referee": referee.facts(c.state)}
        print_json({**facts, "dir": str(c.layout.root), "runner_pid": holder})
        return
    table = status_table(c.state)
    table.add_row("runner", f"process {holder}" if holder else _idle(c.state))
    show(table)


def _idle(state: State) -> str:
    """What a campaign that nobody runs waits for."""
    facts = status_facts(state)
    if facts["phase"] == Phase.WAIT.value:
        return f"none; edit the worktree, then `turbo-opt validate --round {facts['open_round']}`"
    stopped = state.terminated is not None and state.terminated.code == "T4"
    return "none: the campaign has ended" if state.reported and not stopped else "none; `turbo-opt resume` goes on"
