"""turbo-opt rules."""

from __future__ import annotations

import re
from pathlib import Path

import typer

from turbo_optimize.cli.console import print_json


def page_name(code: str, title: str) -> str:
    """The file of a code's page: G01, scope -> G01-scope.md."""
    return f"{code}-{re.sub(r'[^a-z0-9]+', '-', title.lower()).strip('-')}.md"


def command(
    code: str | None = typer.Argument(None, help="A rule code, e.g. D02: its page. Without: all codes."),
    as_json: bool = typer.Option(False, "--json", help="A JSON list of codes and titles; with CODE, its page."),
) -> None:
    from turbo_optimize.core.rules import catalog

    titles = catalog()
    if code is None:
        if as_json:
            print_json([{"code": c, "title": t} for c, t in titles.items()])
        else:
            _show_all(titles)
        return
    asked = _known(code, titles)
    text = _page(asked, titles[asked])
    if as_json:
        print_json({"code": asked, "title": titles[asked], "page": text})
    else:
        _show_page(text)


def _known(code: str, titles: dict[str, str]) -> str:
    from turbo_optimize.core.errors import UsageError
    from turbo_optimize.projects.loader import nearest

    if code.upper() not in titles:
        hint = f"{nearest(code, titles).removeprefix('; ')} (`turbo-opt rules` lists all)"
        raise UsageError(f"no rule {code!r}", hint)
    return code.upper()


def _page(code: str, title: str) -> str:
    from turbo_optimize.core.errors import TurboOptError
    from turbo_optimize.data import data_path

    path: Path = data_path("rules") / page_name(code, title)
    if not path.is_file():
        raise TurboOptError(f"{path}: the page of {code} is missing", "install turbo-optimize again")
    return path.read_text(encoding="utf-8")


def _show_page(text: str) -> None:
    """Rendered on a terminal; elsewhere the Markdown itself."""
    from rich.console import Console
    from rich.markdown import Markdown

    console = Console()
    if console.is_terminal:
        console.print(Markdown(text))
    else:
        print(text, end="")


def _show_all(titles: dict[str, str]) -> None:
    from rich import box
    from rich.console import Console
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, show_edge=False, padding=(0, 1, 0, 0))
    table.add_column("Code", no_wrap=True)
    table.add_column("Title", overflow="fold")
    for code, title in titles.items():
        table.add_row(code, title)
    console = Console(highlight=False)
    console.print(table)
    console.print("turbo-opt rules CODE shows a rule's page")
