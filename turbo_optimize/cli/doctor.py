"""turbo-opt doctor."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from turbo_optimize.cli.console import print_json

if TYPE_CHECKING:
    from turbo_optimize.doctor import Finding

STYLES = {"ok": "green", "warn": "yellow", "missing": "red"}


def command(as_json: bool = typer.Option(False, "--json", help="The findings as a JSON list.")) -> None:
    from turbo_optimize.doctor import examine

    findings = examine(Path.cwd())
    if as_json:
        print_json([asdict(f) for f in findings])
        return
    _show(findings)


def _show(findings: list[Finding]) -> None:
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=box.SIMPLE_HEAD, show_edge=False, padding=(0, 1, 0, 0))
    table.add_column("Finding", no_wrap=True)
    table.add_column("State", no_wrap=True)
    table.add_column("Found; mend", overflow="fold")
    for f in findings:
        told = Text(f.found)
        if f.mend:
            told.append(f"\n→ {f.mend}", style="bold")
        table.add_row(f.name, Text(f.state, style=STYLES[f.state]), told)
    console = Console(highlight=False)
    console.print(table)
    count = sum(f.state != "ok" for f in findings)
    console.print(f"{len(findings)} findings, {count} with a mend" if count else f"{len(findings)} findings, all ok")
