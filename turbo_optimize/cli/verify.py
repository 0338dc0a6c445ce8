"""turbo-opt verify."""

from __future__ import annotations

from collections.abc import Sequence

import typer

from turbo_optimize.cli.console import here, print_json
from turbo_optimize.cli.reading import show
from turbo_optimize.core.errors import TurboOptError
from turbo_optimize.core.verifying import Finding


def command(
    campaign_id: str | None = typer.Argument(None, metavar="[ID]", help="The campaign; the latest if left out."),
    as_json: bool = typer.Option(False, "--json", help="Every finding as one JSON object."),
) -> None:
    from turbo_optimize import engine
    from turbo_optimize.verify import verify

    repo = here()
    layout = engine.find(repo, campaign_id)
    found = verify(layout, repo)
    bad = [f for f in found if not f.ok]
    if as_json:
        print_json({"campaign": layout.root.name, "ok": not bad, "findings": [f.model_dump() for f in found]})
    else:
        _show(found)
    if bad:
        raise TurboOptError(
            f"{layout.root}: {len(bad)} of {len(found)} checks don't match", "restore what is named above from a backup"
        )


def _show(found: Sequence[Finding]) -> None:
    """A row a check with what it covered, and a row each mismatch."""
    from rich import box
    from rich.table import Table
    from rich.text import Text

    from turbo_optimize.reports.text import one_line

    table = Table(box=box.SIMPLE_HEAD, show_edge=False)
    table.add_column("Check", no_wrap=True)
    table.add_column("Result", no_wrap=True)
    table.add_column("Where", no_wrap=True)
    table.add_column("What", overflow="fold")
    for check in dict.fromkeys(f.check for f in found):
        of = [f for f in found if f.check == check]
        good = [f for f in of if f.ok]
        if good:
            where = good[0].where if len(good) == 1 else f"{len(good)} checked"
            table.add_row(check, Text("ok", style="green"), where, "; ".join(f.detail for f in good if f.detail))
        for f in of:
            if not f.ok:
                table.add_row(check, Text("MISMATCH", style="red"), Text(f.where), Text(one_line(f.detail)))
    show(table)
