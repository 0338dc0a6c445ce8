"""turbo-opt replay."""

from __future__ import annotations

from pathlib import Path

import typer

from turbo_optimize.campaign import Campaign
from turbo_optimize.cli.console import print_json
from turbo_optimize.cli.reading import reading, show
from turbo_optimize.core.errors import TurboOptError, UsageError
from turbo_optimize.core.models import POLICIES, Evidence, Policy, Session
from turbo_optimize.core.replaying import Replayed, counts, evidence_of, noise_of, replay, sessions_of
from turbo_optimize.core.state import Round


def command(
    campaign_id: str | None = typer.Argument(None, metavar="[ID]", help="The campaign; the latest if left out."),
    policy: str = typer.Option(
        ..., "--policy", help="standard, precise, cpu, or a YAML file of overrides on the campaign's."
    ),
    as_json: bool = typer.Option(False, "--json", help="Policy, rounds and counts as one JSON object."),
) -> None:
    c = reading(campaign_id)
    other = other_policy(c, policy)
    found = replayed(c, other)
    first = next((r.round for r in found if r.differs), None)
    if as_json:
        print_json({
            "campaign": c.manifest.campaign, "old_policy": c.policy.name, "policy": other.model_dump(),
            "first_difference": first, "counts": counts(found), "rounds": [r.model_dump() for r in found],
        })  # fmt: skip
        return
    _show(found, c.policy.name, other.name, first)


def other_policy(c: Campaign, given: str) -> Policy:
    """A shipped policy by name (the project's overrides on it), or a file of overrides on the campaign's own."""
    from turbo_optimize.phases.shared.policies import choose_policy, load_policy
    from turbo_optimize.projects.loader import load_project

    if given not in POLICIES and Path(given).is_file():
        return load_policy(Path(given), c.policy)
    own = load_project(c.layout.project).policy
    return choose_policy(given, c.manifest.target_gpu, own, f"{c.layout.project}: policy")


def replayed(c: Campaign, policy: Policy) -> tuple[Replayed, ...]:
    """Every closed round of a campaign re-decided from its samples; TurboOptError where they are lost."""
    b = c.state.baseline
    if b is None:
        raise UsageError(f"{c.manifest.campaign} has no baseline yet", "`turbo-opt resume` measures it")
    noise = noise_of(_sessions(c, 1), b.representative_shapes, policy)

    def evidence(r: Round) -> Evidence:
        return evidence_of(r, _sessions(c, r.number) if r.sessions else (), noise, c.manifest, b)

    return replay(c.state.closed, evidence, policy)


def _sessions(c: Campaign, number: int) -> tuple[Session, ...]:
    """A round's sessions from its samples.csv."""
    from turbo_optimize.effects.layout import key_of
    from turbo_optimize.effects.replay import parse_samples

    path = c.layout.samples(key_of(number))
    if not path.exists():
        raise TurboOptError(
            f"{path}: round {number} was measured, its samples are gone", "`turbo-opt verify` says what else is"
        )
    try:
        return sessions_of(parse_samples(path.read_text(encoding="utf-8"), str(path)))
    except ValueError as e:
        raise TurboOptError(f"{path}: {e}", "`turbo-opt verify` says what else is damaged") from None


def _show(found: tuple[Replayed, ...], old: str, new: str, first: int | None) -> None:
    from rich import box
    from rich.table import Table
    from rich.text import Text

    from turbo_optimize.reports.console import STYLES
    from turbo_optimize.reports.text import one_line, pct

    table = Table(box=box.SIMPLE_HEAD, show_edge=False)
    table.add_column("#", justify="right", no_wrap=True)
    table.add_column(f"Under {old}", no_wrap=True)
    table.add_column(f"Under {new}", no_wrap=True)
    table.add_column("Gain", justify="right", no_wrap=True)
    table.add_column("Why", overflow="fold")
    for r in found:
        mark = f"{r.verdict} {r.code}".strip()
        after = Text(mark, style=STYLES.get(r.verdict, "yellow") if r.differs else "")
        table.add_row(str(r.round), f"{r.old_verdict} {r.old_code}", after, pct(r.gain_pct), Text(one_line(r.why)))
    show(table, ", ".join(f"{n} {verdict}" for verdict, n in counts(found).items()) or "no closed round")
    if first is None:
        show("every verdict repeats")
    else:
        show(
            f"the path after round {first} is hypothetical: with its other verdict another incumbent would have stood"
            " there, and other changes would have been tried"
        )
