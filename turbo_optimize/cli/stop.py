"""turbo-opt stop."""

from __future__ import annotations

import os

import typer

from turbo_optimize.cli.console import here, print_json, progress, stop_on_sigint
from turbo_optimize.cli.outcome import finish


def command(
    campaign_id: str | None = typer.Argument(None, metavar="[ID]", help="The campaign; the latest if left out."),
    as_json: bool = typer.Option(False, "--json", help="The outcome as one JSON object."),
) -> None:
    from turbo_optimize import engine
    from turbo_optimize.core.errors import LockedError
    from turbo_optimize.core.events import Opened, StopAsked
    from turbo_optimize.effects.store import write_atomic

    repo = here()
    layout = engine.find(repo, campaign_id)
    with progress(quiet=as_json) as say, stop_on_sigint(say) as stop:
        try:
            c, lock = engine.open_campaign(layout, repo, say, stop=stop)
        except LockedError:  # the runner heeds it between two steps
            write_atomic(layout.stop_request, "")
            _asked(layout.root.name, as_json)
            return
        with lock:
            if not c.state.reported:
                c.record(Opened(command="stop", pid=os.getpid()))
                if not c.state.stop_asked and not c.state.terminated:
                    c.record(StopAsked(why="`turbo-opt stop`"))
                engine.run(c)
    finish(c, as_json)


def _asked(name: str, as_json: bool) -> None:
    if as_json:
        print_json({"campaign": name, "stop": "asked"})
    else:
        print(f"{name}: its runner ends after the present step, then reports")
