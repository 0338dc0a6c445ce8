"""One file a phase: run(campaign) yields events; the engine records each before the phase goes on. Phases never import
each other."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from turbo_optimize.campaign import Campaign
from turbo_optimize.core.events import Event, Phase
from turbo_optimize.phases import analyze, baseline, optimize, prepare, report, validate

PHASES: dict[Phase, Callable[[Campaign], Iterator[Event]]] = {
    Phase.PREPARE_ENVIRONMENT: prepare.run,
    Phase.BASELINE: baseline.run,
    Phase.ANALYZE: analyze.run,
    Phase.OPTIMIZE: optimize.run,
    Phase.VALIDATE: validate.run,
    Phase.REPORT: report.run,
}
