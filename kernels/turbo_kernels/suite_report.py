"""The suite's rows as CSV, as a table of 80 columns, as an SVG. Standard library, and rich for the table."""

from __future__ import annotations

import csv
import math
import statistics
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Row:
    """One operator, variant, dtype, shape, phase and baseline. `ratio` is baseline_ms / time_ms, block by block: over 1
    we are faster. Rates count the least work (`bench_kit.Work`). check: PASS, FAIL or ERROR (`note` says what)."""

    op: str
    variant: str
    dtype: str
    group: str
    shape: str
    dims: str
    gpu: str
    arch: str
    torch: str
    triton: str
    phase: str = ""
    backend: str = ""
    check: str = ""
    snr_db: float | None = None
    time_ms: float | None = None
    tflops: float | None = None
    gbps: float | None = None
    baseline: str = ""
    baseline_ms: float | None = None
    ratio: float | None = None
    note: str = ""


COLUMNS: tuple[str, ...] = (
    "op", "variant", "dtype", "group", "shape", "dims", "phase", "backend", "check", "time_ms", "tflops", "gbps",
    "baseline", "baseline_ms", "ratio", "snr_db", "gpu", "arch", "torch", "triton", "note",
)  # fmt: skip
assert set(COLUMNS) == {f.name for f in fields(Row)}


def plain(row: Row) -> dict[str, Any]:
    """For JSON, which knows no infinity: figures that aren't finite are text."""
    return {k: v if not isinstance(v, float) or math.isfinite(v) else str(v) for k, v in asdict(row).items()}


def write(path: Path, rows: Iterable[Row]) -> None:
    with path.open("w", newline="", encoding="utf-8") as f:
        writer = csv.DictWriter(f, COLUMNS, lineterminator="\n")
        writer.writeheader()
        for row in rows:
            writer.writerow({k: f"{v:.6g}" if isinstance(v, float) else v for k, v in asdict(row).items()})


def best(rows: Iterable[Row]) -> list[Row]:
    """Of each shape and phase the row beside the fastest baseline; rows without a baseline are left out."""
    found: dict[tuple[str, ...], Row] = {}
    for r in rows:
        key = (r.op, r.variant, r.dtype, r.shape, r.phase)
        if r.ratio is not None and (key not in found or r.ratio < (found[key].ratio or 0)):
            found[key] = r
    return list(found.values())


@dataclass(frozen=True)
class Summary:
    """Over the shapes of an operator, variant, dtype and phase; ratios are against each shape's fastest baseline."""

    name: str
    phase: str
    shapes: int
    wrong: int
    tflops: float | None
    gbps: float | None
    ratio: float | None
    least: float | None


def _mean(values: Iterable[float | None]) -> float | None:
    known = [v for v in values if v]
    return statistics.geometric_mean(known) if known else None


def summaries(rows: Sequence[Row]) -> list[Summary]:
    groups: dict[tuple[str, str], list[Row]] = {}
    for r in rows:
        groups.setdefault((f"{r.op} {r.variant} {r.dtype}", r.phase), []).append(r)
    found = []
    for (name, phase), own in groups.items():
        once = list({r.shape: r for r in own}.values())
        ratios = [r.ratio for r in best(own) if r.ratio]
        found.append(Summary(
            name, phase, len(once), sum(r.check != "PASS" for r in once), _mean(r.tflops for r in once),
            _mean(r.gbps for r in once), _mean(ratios), min(ratios, default=None),
        ))  # fmt: skip
    return found


def line(rows: Sequence[Row]) -> str:
    """One shape, in one line."""
    r = rows[0]
    head = f"{r.check} {r.op} {r.variant} {r.dtype} {r.shape}:"
    timed = {x.phase: x for x in rows if x.time_ms}
    if not timed:
        return f"{head} {r.note}"
    beside = {x.phase: x for x in best(rows)}
    return head + ",".join(
        f" {p} {x.time_ms:.4g} ms" + (f" ({beside[p].ratio:.2f}× {beside[p].baseline})" if p in beside else "")
        for p, x in timed.items()
    )


def show(rows: Sequence[Row], left_out: int, not_benched: Mapping[str, str]) -> None:
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    def cell(value: float | None, form: str) -> str:
        return "—" if value is None else format(value, form)

    console = Console(width=None if sys.stdout.isatty() else 80, highlight=False)
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, padding=(0, 1, 0, 0))
    table.add_column("Operator", overflow="fold")
    table.add_column("Phase", no_wrap=True)
    for name in ("Shapes", "TFLOPS", "GB/s", "× torch", "least"):
        table.add_column(name, no_wrap=True, justify="right")
    for s in summaries(rows):
        shapes = f"{s.shapes - s.wrong}/{s.shapes}" if s.wrong else str(s.shapes)
        table.add_row(
            Text(s.name, style="red" if s.wrong else ""), s.phase, shapes, cell(s.tflops, ".0f"), cell(s.gbps, ".0f"),
            cell(s.ratio, ".2f"), cell(s.least, ".2f"),
        )  # fmt: skip
    console.print(table)
    for r in {(r.op, r.variant, r.dtype, r.shape): r for r in rows if r.check != "PASS"}.values():
        console.print(Text(f"{r.check} {r.op} {r.variant} {r.dtype} {r.shape}: {r.note}"), soft_wrap=True)
    for op, why in not_benched.items():
        console.print(Text(f"{op}: not benched, {why}"), soft_wrap=True)
    if left_out:
        console.print(f"{left_out} shapes were left out: the time was up")
    if rows:
        r = rows[0]
        console.print(f"{r.gpu} ({r.arch}), torch {r.torch}, triton {r.triton}; means are geometric", soft_wrap=True)


WIDTH, LEFT, BAR, GAP, TOP = 720, 300, 16, 8, 56
COLOURS = {"forward": "#0b5394", "step": "#b45309"}


def svg(rows: Sequence[Row]) -> str:
    """A bar an operator and phase: the geometric mean of how many times as fast as torch's best; a line at 1."""
    shown = [s for s in summaries(rows) if s.ratio is not None]
    largest = max([1.25, *(s.ratio or 0 for s in shown)])
    height = TOP + len(shown) * (BAR + GAP) + 28

    def x(ratio: float) -> float:
        return LEFT + ratio / largest * (WIDTH - LEFT - 60)

    where = f"{rows[0].gpu}, torch {rows[0].torch}, triton {rows[0].triton}" if rows else ""
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}"'
        ' font-family="sans-serif" font-size="12" fill="#111827">',
        f'<rect width="{WIDTH}" height="{height}" fill="#ffffff"/>',
        '<text x="12" y="20" font-weight="bold">Speed relative to torch&#39;s best call (1 = equal)</text>',
        f'<text x="12" y="38" fill="#6b7280">{where}</text>',
    ]
    for i, s in enumerate(shown):
        y, ratio = TOP + i * (BAR + GAP), s.ratio or 0.0
        colour = COLOURS.get(s.phase, "#6b7280")
        parts.append(f'<text x="{LEFT - 8}" y="{y + 12}" text-anchor="end">{s.name} {s.phase}</text>')
        parts.append(f'<rect x="{LEFT}" y="{y}" width="{x(ratio) - LEFT:.1f}" height="{BAR}" fill="{colour}"/>')
        parts.append(f'<text x="{x(ratio) + 6:.1f}" y="{y + 12}">{ratio:.2f}</text>')
    parts.append(f'<path d="M{x(1):.1f} {TOP - 6}V{height - 24}" stroke="#111827" stroke-dasharray="4 3"/>')
    parts.append(f'<text x="{x(1):.1f}" y="{height - 8}" text-anchor="middle">1</text>')
    return "\n".join([*parts, "</svg>", ""])
