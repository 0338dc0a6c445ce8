"""turbo-opt resume."""

from __future__ import annotations

import typer

from turbo_optimize.cli.console import here, progress, stop_on_sigint
from turbo_optimize.cli.outcome import finish


def command(
    campaign_id: str | None = typer.Argument(None, metavar="[ID]", help="The campaign; the latest if left out."),
    max_rounds: int | None = typer.Option(None, "--max-rounds", help="A new limit of rounds, 1 to 119."),
    max_duration: str | None = typer.Option(None, "--max-duration", help="A new limit of running time: 30m, 2h."),
    as_json: bool = typer.Option(False, "--json", help="The outcome as one JSON object on the last line."),
) -> None:
    from turbo_optimize import engine
    from turbo_optimize.core.errors import UsageError
    from turbo_optimize.effects.devices import held_gpu
    from turbo_optimize.phases.define import MAX_ROUNDS_LIMIT, parse_duration

    if max_rounds is not None and not 1 <= max_rounds < MAX_ROUNDS_LIMIT:
        raise UsageError(f"--max-rounds {max_rounds}", f"expected 1 to {MAX_ROUNDS_LIMIT - 1}")
    duration_s = None if max_duration is None else parse_duration(max_duration)
    repo = here()
    with progress() as say, stop_on_sigint(say) as stop:
        campaign, lock = engine.open_campaign(engine.find(repo, campaign_id), repo, say, stop=stop)
        with lock, held_gpu(campaign.manifest.target_gpu):
            done = len(campaign.state.rounds)
            if max_rounds is not None and max_rounds < done:
                raise UsageError(f"--max-rounds {max_rounds}: {done} rounds are there already", "name a higher limit")
            engine.begin(campaign, "resume", max_rounds, duration_s)
            engine.run(campaign)
    finish(campaign, as_json)
