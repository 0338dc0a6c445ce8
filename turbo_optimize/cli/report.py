"""turbo-opt report."""

from __future__ import annotations

import typer

from turbo_optimize.cli.console import print_json
from turbo_optimize.cli.reading import reading, show
from turbo_optimize.core.errors import UsageError


def command(
    campaign_id: str | None = typer.Argument(None, metavar="[ID]", help="The campaign; the latest if left out."),
    open_it: bool = typer.Option(False, "--open", help="Open the report afterwards."),
    as_json: bool = typer.Option(False, "--json", help="The paths as one JSON object."),
) -> None:
    from turbo_optimize import engine
    from turbo_optimize.effects.store import write_changed
    from turbo_optimize.reports.manifest import manifest_yaml
    from turbo_optimize.reports.project import REPORTS, write_projections

    c = reading(campaign_id)
    if c.state.manifest is None:
        raise UsageError(f"{c.layout.root}: nothing was journaled yet", "remove the folder and start again")
    write_changed(c.layout.manifest, manifest_yaml(engine.current_manifest(c)))
    write_projections(c.state, c.layout.root, write_changed)
    for name, text_of in REPORTS.items():  # a campaign that goes on has a report too, once somebody asks for it
        if not c.state.terminated:
            write_changed(c.layout.root / name, text_of(c.state))
    path = c.layout.report / "report.md"
    if as_json:
        print_json(
            {"campaign": c.manifest.campaign, "report": str(path), "files": [str(c.layout.root / n) for n in REPORTS]}
        )
    else:
        show(str(path))
    if open_it and typer.launch(str(path)):
        raise UsageError(f"nothing here opens {path}", "open it by hand")
