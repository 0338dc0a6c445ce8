"""turbo-opt recover."""

from __future__ import annotations

import typer

from turbo_optimize.cli.console import print_json
from turbo_optimize.cli.reading import reading, round_of


def command(
    number: int = typer.Argument(..., metavar="N", help="The round whose attempt comes back."),
    campaign_id: str | None = typer.Option(None, "-c", "--campaign", help="The campaign; the latest if left out."),
    attempt: int | None = typer.Option(None, "--attempt", help="An earlier attempt of a repaired round."),
    as_json: bool = typer.Option(False, "--json", help="Branch and commit as one JSON object."),
) -> None:
    from turbo_optimize import engine

    c = reading(campaign_id)
    r = round_of(c, number)
    branch = engine.recover(c, number, attempt)
    commit = c.repo.resolve(f"refs/heads/{branch}")
    if as_json:
        print_json({"campaign": c.manifest.campaign, "round": number, "branch": branch, "commit": commit})
        return
    print(f"round {number} ({r.status}), commit {(commit or '')[:12]}, is on a branch: git switch {branch}")
