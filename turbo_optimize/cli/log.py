"""turbo-opt log."""

from __future__ import annotations

import typer

from turbo_optimize.cli.console import print_json
from turbo_optimize.cli.reading import reading, show


def command(
    campaign_id: str | None = typer.Argument(None, metavar="[ID]", help="The campaign; the latest if left out."),
    events: bool = typer.Option(False, "--events", help="Every event of the journal in place of the rounds."),
    as_json: bool = typer.Option(False, "--json", help="A JSON list, an object a round (or an event)."),
) -> None:
    from turbo_optimize.reports.console import log_table, trend_table
    from turbo_optimize.reports.rounds import round_row

    c = reading(campaign_id)
    if as_json and events:
        import json

        print_json([json.loads(e.model_dump_json()) for e in c.journal.events])
    elif as_json:
        print_json([round_row(c.state, r) for r in c.state.rounds])
    else:
        show(log_table(c.journal.events) if events else trend_table(c.state))
