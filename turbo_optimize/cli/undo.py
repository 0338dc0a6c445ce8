"""turbo-opt undo."""

from __future__ import annotations

import typer

from turbo_optimize.cli.console import here, print_json, progress


def command(
    number: int = typer.Argument(..., metavar="N", help="The accepted round to take back."),
    campaign_id: str | None = typer.Option(None, "-c", "--campaign", help="The campaign; the latest if left out."),
    as_json: bool = typer.Option(False, "--json", help="The new head as one JSON object."),
) -> None:
    from turbo_optimize import engine

    repo = here()
    with progress(quiet=as_json) as say:
        c, lock = engine.open_campaign(engine.find(repo, campaign_id), repo, say)
        with lock:
            commit = engine.undo(c, number)
    head = c.state.prepared.head_ref if c.state.prepared else "HEAD"
    if as_json:
        print_json({"campaign": c.manifest.campaign, "round": number, "commit": commit, "head_ref": head})
        return
    print(f"round {number} is taken back: {head.removeprefix('refs/heads/')} is at {commit[:12]}")
    if c.state.compared:
        print("the report's end measurements are of the head before; `turbo-opt resume` measures the end again")
