"""turbo-opt tips."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import typer

from turbo_optimize.cli.console import here, print_json


class Tips(NamedTuple):
    """One tips file: lessons of a GPU, op and backend, oldest first."""

    gpu: str
    op: str
    backend: str
    file: str
    tips: list[str]


def read_all(top: Path) -> Iterator[Tips]:
    """Every tips file of a repository; a tip is a line that starts with `- `."""
    for path in sorted(top.glob("campaigns/tips/*/*/*/tips.md")):
        gpu, op, backend = path.relative_to(top).parts[2:5]
        found = [line[2:] for line in path.read_text(encoding="utf-8").splitlines() if line.startswith("- ")]
        yield Tips(gpu, op, backend, str(path.relative_to(top)), found)


def command(
    gpu: str | None = typer.Option(None, "--gpu", help="gfx942, gfx950, sm_90, a product name, or cpu."),
    op: str | None = typer.Option(None, "--op", help="gemm_fp8, or with its variant gemm_fp8_blockwise."),
    backend: str | None = typer.Option(None, "--backend", help="A backend, e.g. TRITON."),
    as_json: bool = typer.Option(False, "--json", help="A JSON list, an object a tips file."),
) -> None:
    from turbo_optimize.core.hardware import resolve_gpu

    top = here().top
    arch = resolve_gpu(gpu) if gpu else None
    folders = _folders(top, op) if op else None
    found = [
        t
        for t in read_all(top)
        if arch in (None, t.gpu)
        and (folders is None or t.op in folders)
        and (backend is None or t.backend == backend.lower())
    ]
    if as_json:
        print_json([t._asdict() for t in found])
    else:
        _show(found)


def _folders(top: Path, op: str) -> set[str]:
    """The folder names that an op's tips may have: itself, and with each variant that the project file gives it."""
    from turbo_optimize.projects.loader import NAMES, load_project

    path = next((top / n for n in NAMES if (top / n).is_file()), None)
    known = load_project(path).ops.get(op) if path else None
    return {op} | {f"{op}_{variant}" for variant in (known.variants if known else ())}


def _show(found: list[Tips]) -> None:
    from rich.console import Console
    from rich.padding import Padding
    from rich.text import Text

    console = Console(highlight=False)
    for t in found:
        console.print(Text(f"{t.gpu}  {t.op}  {t.backend}", style="bold"))
        for tip in t.tips:
            console.print(Padding(Text(f"- {tip}"), (0, 0, 0, 2)))
    if not any(t.tips for t in found):
        console.print("no tips for this yet: the report of a finished campaign writes them")
