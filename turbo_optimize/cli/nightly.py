"""turbo-opt nightly."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import typer

from turbo_optimize.cli.console import here

Told = Callable[[str, str, str], None]
STYLES = {"waiting": "dim", "running": "cyan", "ok": "green", "failed": "red"}


def command(
    config: Path = typer.Argument(..., help="A nightly file; campaigns/nightly.yaml is an example."),
    executor: str = typer.Option("local", "--executor", help="local: one campaign a GPU of this machine."),
    folder: Path | None = typer.Option(None, "--dir", help="Where nights are kept [campaigns/nightly]."),
    as_json: bool = typer.Option(False, "--json", help="The night's record (night.json) on stdout."),
) -> None:
    from turbo_optimize.core.errors import UsageError
    from turbo_optimize.effects.devices import devices
    from turbo_optimize.effects.probe import gpus
    from turbo_optimize.fleet import nightly
    from turbo_optimize.fleet.config import load_night
    from turbo_optimize.fleet.executors import EXECUTORS
    from turbo_optimize.projects.loader import nearest

    if executor not in EXECUTORS:
        raise UsageError(f"unknown executor {executor!r}", nearest(executor, EXECUTORS).removeprefix("; "))
    night = load_night(config)
    repo = here()
    home = folder.resolve() if folder else repo.top / "campaigns" / "nightly"
    with _ended_by_term(), _progress() as told:
        found = devices(gpus(), os.environ)
        record, where = nightly.run(night, repo, home, EXECUTORS[executor], devices=found, told=told)
    text = (where / "summary.md").read_text(encoding="utf-8")
    _step_summary(text)
    if as_json:
        print(record.model_dump_json(indent=2))
    else:
        _show(text, where)
    nightly.gate(record)


@contextmanager
def _ended_by_term() -> Iterator[None]:
    """A TERM ends a night as ^C does: its campaigns are ended first, resumable."""

    def handle(signum: int, frame: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, handle)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


@contextmanager
def _progress() -> Iterator[Told]:
    """A live line a campaign on a terminal, plain lines elsewhere; on stderr, so that stdout stays for data."""
    from rich.console import Console
    from rich.markup import escape
    from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    console = Console(stderr=True, highlight=False)
    if not console.is_terminal:
        yield lambda target, state, text: print(f"{target}: {state} {text}".rstrip(), file=sys.stderr, flush=True)
        return
    columns = (SpinnerColumn(finished_text=" "), TextColumn("{task.description}"), TimeElapsedColumn())
    with Progress(*columns, console=console) as live:
        tasks = {}

        def told(target: str, state: str, text: str) -> None:
            line = f"{escape(target)} [{STYLES[state]}]{state}[/] {escape(text)}"
            if target not in tasks:
                tasks[target] = live.add_task(line, start=False, total=1)
            live.update(tasks[target], description=line, completed=int(state in ("ok", "failed")))
            if state == "running":
                live.start_task(tasks[target])

        yield told


def _step_summary(text: str) -> None:
    """Appends to the file that a CI job shows beside its log, where there is one."""
    from turbo_optimize.effects.store import disk_errors

    name = os.environ.get("GITHUB_STEP_SUMMARY")
    if name:
        with disk_errors(Path(name)), open(name, "a", encoding="utf-8") as f:
            f.write(text)


def _show(text: str, where: Path) -> None:
    from rich.console import Console
    from rich.markdown import Markdown

    console = Console()
    if console.is_terminal:
        console.print(Markdown(text))
    else:
        print(text, end="")
    print(f"night: {where}")
