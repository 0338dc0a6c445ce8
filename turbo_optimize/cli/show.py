"""turbo-opt show."""

from __future__ import annotations

import typer

from turbo_optimize.cli.console import print_json
from turbo_optimize.cli.reading import reading, round_of
from turbo_optimize.cli.reading import show as display


def command(
    number: int = typer.Argument(..., metavar="N", help="The round; 1 is the baseline."),
    campaign_id: str | None = typer.Option(None, "-c", "--campaign", help="The campaign; the latest if left out."),
    as_json: bool = typer.Option(False, "--json", help="The round as one JSON object."),
) -> None:
    from turbo_optimize.reports.console import round_panel
    from turbo_optimize.reports.device import read_device
    from turbo_optimize.reports.rounds import round_row

    c = reading(campaign_id)
    r = round_of(c, number)
    device = read_device(c.layout.root, r)
    if not as_json:
        display(round_panel(c.state, number, device))
        return
    more = {
        "gates": [g.model_dump() for g in r.gates],
        "checks": [{"shape": x.shape, "check": x.check, "code": x.code, "detail": x.detail} for x in r.checks],
        "sessions_measured": [{"level": s.level, "index": s.index} for s in r.sessions],
        "device": device or None,
        "proposal": r.proposal.model_dump(exclude={"hints"}) if r.proposal else None,
    }
    print_json(round_row(c.state, r) | more)
