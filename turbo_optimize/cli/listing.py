"""turbo-opt list."""

from __future__ import annotations

import sys

import typer

from turbo_optimize.cli.console import here, print_json
from turbo_optimize.cli.reading import show
from turbo_optimize.core.errors import TurboOptError
from turbo_optimize.core.state import State


def command(as_json: bool = typer.Option(False, "--json", help="A JSON list, an object a campaign.")) -> None:
    from turbo_optimize import engine
    from turbo_optimize.reports.console import list_table
    from turbo_optimize.reports.tables import status_facts

    repo = here()
    states: dict[str, State] = {}
    damaged: dict[str, TurboOptError] = {}
    for name in engine.campaign_names(repo):
        try:
            states[name] = engine.read_campaign(engine.find(repo, name), repo).state
        except TurboOptError as e:
            damaged[name] = e
    if as_json:
        root = engine.campaigns_dir(repo)
        good = [{**status_facts(s), "campaign": name, "dir": str(root / name)} for name, s in states.items()]
        print_json(
            [*good, *({"campaign": name, "dir": str(root / name), "error": str(e)} for name, e in damaged.items())]
        )
    elif states:
        show(list_table(states))
    elif not damaged:
        print("no campaign yet: begin one with `turbo-opt start`")
    for name, e in damaged.items():
        print(f"turbo-opt: {name}: {e}", file=sys.stderr)
    if damaged:
        sys.stdout.flush()
        raise TurboOptError(f"can't be read: {', '.join(damaged)}", "`turbo-opt verify ID` says what is lost")
