"""turbo-opt diff."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import typer

from turbo_optimize.campaign import Campaign
from turbo_optimize.cli.console import print_json
from turbo_optimize.cli.reading import reading, round_of, show
from turbo_optimize.core.errors import UsageError
from turbo_optimize.core.scoring import gain_pct, shape_value

if TYPE_CHECKING:
    from rich.table import Table


def command(
    n: int = typer.Argument(..., metavar="N", help="A round; 1 is the baseline."),
    m: int = typer.Argument(..., metavar="M", help="The other round."),
    campaign_id: str | None = typer.Option(None, "-c", "--campaign", help="The campaign; the latest if left out."),
    as_json: bool = typer.Option(False, "--json", help="Diff and table as one JSON object."),
) -> None:
    c = reading(campaign_id)
    commits = [_commit(c, number) for number in (n, m)]
    diff = c.repo.diff(*commits).encode("utf-8", "surrogateescape").decode("utf-8", "replace")
    rows = shape_table(c, n, m)
    if as_json:
        print_json(
            {"campaign": c.manifest.campaign, "rounds": [n, m], "commits": commits, "diff": diff, "shapes": rows}
        )
        return
    _show_diff(diff or f"rounds {n} and {m} have the same files\n")
    show("", _table(c, n, m, rows))


def _show_diff(diff: str) -> None:
    """Coloured on a terminal; elsewhere as it is, for `git apply` and friends."""
    from turbo_optimize.reports.text import clean

    if not sys.stdout.isatty():
        print(diff, end="")
        return
    from rich.syntax import Syntax

    show(Syntax(clean(diff).rstrip("\n"), "diff", theme="ansi_dark", background_color="default", word_wrap=True))


def _commit(c: Campaign, number: int) -> str:
    """The commit that holds a round's files; the base commit for round 1."""
    round_of(c, number)
    commit = c.base if number == 1 else c.repo.resolve(c.ref(f"round-{number}"))
    if commit is None:
        raise UsageError(f"round {number} left no attempt", "its proposal changed nothing, or its patch didn't apply")
    return commit


def shape_table(c: Campaign, n: int, m: int) -> list[dict[str, Any]]:
    """Per shape the primary metric from both rounds' benchmark.csv (None: not measured) and the step between them.

    The two were measured at different times, so the step is a hint; paired gains are `show N`'s.
    """
    one, other = _values(c, n), _values(c, m)
    return [
        {"shape": s.label, "n": a, "m": b, "change_pct": gain_pct(b, a) if a and b else None}
        for s in c.representative
        for a, b in [(one.get(s.label), other.get(s.label))]
    ]


def _values(c: Campaign, number: int) -> dict[str, float]:
    path = c.layout.csv(f"round-{number}", full=False)
    if not path.exists():
        return {}
    rows = c.read_csv(path, c.representative)
    return {r.label: shape_value(c.schema, c.manifest.primary_metric, r) for r in rows if r.check == "PASS"}


def _table(c: Campaign, n: int, m: int, rows: list[dict[str, Any]]) -> Table:
    from rich import box
    from rich.table import Table
    from rich.text import Text

    from turbo_optimize.reports.rounds import times_note, unit
    from turbo_optimize.reports.text import num, pct

    note = "; ".join(filter(None, (f"{unit(c.state)}, not paired: `show` has the paired gain", times_note(c.state))))
    table = Table(box=box.SIMPLE_HEAD, caption=Text(f"Note: {note}"), caption_justify="left", show_edge=False)
    table.add_column("Shape", overflow="fold")
    for name in (f"Round {n}", f"Round {m}", "Change"):
        table.add_column(name, justify="right", no_wrap=True)
    for row in rows:
        table.add_row(row["shape"], num(row["n"]), num(row["m"]), pct(row["change_pct"]))
    return table
