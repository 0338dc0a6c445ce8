"""turbo-opt status."""

from __future__ import annotations

import typer

from turbo_optimize.cli.console import print_json
from turbo_optimize.cli.reading import reading, show


def command(
    campaign_id: str | None = typer.Argument(None, metavar="[ID]", help="The campaign; the latest if left out."),
    as_json: bool = typer.Option(False, "--json", help="The facts as one JSON object."),
) -> None:
    from turbo_optimize.effects.store import Lock
    from turbo_optimize.reports.console import status_table
    from turbo_optimize.reports.tables import status_facts

    c = reading(campaign_id)
    holder = Lock(c.layout.lock, "").holder()
    if as_json:
        print_json({**status_facts(c.state), "dir": str(c.layout.root), "runner_pid": holder})
        return
    table = status_table(c.state)
    table.add_row("runner", f"process {holder}" if holder else _idle(c.state.reported))
    show(table)


def _idle(ended: bool) -> str:
    return "none: the campaign has ended" if ended else "none; `turbo-opt resume` goes on"
