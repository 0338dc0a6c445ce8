"""turbo-opt ops."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import typer

from turbo_optimize.cli.console import here, print_json

if TYPE_CHECKING:
    from turbo_optimize.core.models import Backend, Project


class Row(NamedTuple):
    """One op × variant × backend; `gpus` says per architecture None (available here) or why not."""

    op: str
    variant: str
    backend: str
    lang: str
    gpus: dict[str, str | None]


def rows(project: Project, archs: Sequence[str], present: Sequence[str]) -> Iterator[Row]:
    """The table for the architectures `archs`, on a machine whose GPUs are `present`."""
    for name, op in project.ops.items():
        for variant in op.variants:
            for key, backend in op.backends.items():
                yield Row(name, variant, key, backend.lang, {a: _reason(backend, a, present) for a in archs})


def _reason(backend: Backend, arch: str, present: Sequence[str]) -> str | None:
    from turbo_optimize.projects.loader import unavailable

    return unavailable(backend, arch) or (None if arch == "cpu" or arch in present else "not here")


def command(
    project: Path | None = typer.Option(None, "--project", help="A project file (docs/projects.md)."),
    gpu: str | None = typer.Option(None, "--gpu", help="One GPU alone: gfx942, gfx950, sm_90, a product name, or cpu."),
    as_json: bool = typer.Option(False, "--json", help="The rows as a JSON list."),
) -> None:
    from turbo_optimize.core.hardware import ARCHS, resolve_gpu
    from turbo_optimize.effects.probe import gpus
    from turbo_optimize.projects.loader import load_project

    archs = [resolve_gpu(gpu)] if gpu else list(ARCHS)
    path = _project_file(project)
    found = list(rows(load_project(path), archs, [g.arch for g in gpus()]))
    if as_json:
        print_json([row._asdict() for row in found])
        return
    _show(found, archs, path)


def _project_file(given: Path | None) -> Path:
    """The one given; else the repository's own; outside a repository, the one that travels with the product."""
    from turbo_optimize.core.errors import RepoError
    from turbo_optimize.data import data_path
    from turbo_optimize.projects.loader import find_project

    if given:
        return given
    try:
        top = here().top
    except RepoError:
        return data_path("project.yaml")
    return find_project(top, None)


def _show(found: Sequence[Row], archs: Sequence[str], path: Path) -> None:
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=box.SIMPLE_HEAD, show_edge=False, padding=(0, 1, 0, 0))
    for name in ("Op", "Variant", "Backend", *archs):
        table.add_column(name, overflow="fold")
    for row in found:
        cells = [Text(why, style="dim") if (why := row.gpus[a]) else Text("✓", style="green") for a in archs]
        table.add_row(Text(row.op), Text(row.variant), Text(row.backend), *cells)
    console = Console(highlight=False)
    console.print(table)
    console.print(Text(f"from {path}"), soft_wrap=True)
