"""What the compilers say of everything that ships, for GPUs that needn't be there:

    python -m turbo_kernels.compile_report [--arch gfx942,sm_90] [--op gemm,…] [--csv FILE] [--json] [--subset] [--jobs N] [--asm FOLDER]

Compiles every Build of every family that has `builds.py`. Exit 0 all sound; 1 something spills, needs scratch, exceeds
its shared memory or registers, lacks its matrix instruction or doesn't compile (the row says which); 2 what was asked for can't be.
"""

from __future__ import annotations

import argparse
import csv
import importlib
import importlib.metadata
import importlib.util
import json
import multiprocessing
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from turbo_kernels.builds import Build
from turbo_kernels.registry import FAMILIES, family

ARCHS = ("gfx942", "gfx950", "sm_90")


@dataclass(frozen=True)
class Row:
    """One build. `registers` are VGPRs and AGPRs together on AMD; `spills` registers there, bytes on NVIDIA."""

    op: str
    arch: str
    build: str
    registers: int | None = None
    agprs: int | None = None
    sgprs: int | None = None
    spills: int | None = None
    scratch_bytes: int | None = None
    shared_bytes: int | None = None
    shared_limit_bytes: int | None = None
    operands: str = ""
    matrix: str = ""
    matrix_count: int = 0
    code_bytes: int | None = None
    seconds: float | None = None
    problem: str = ""


@dataclass(frozen=True)
class Task:
    """The `index`-th build of a family; kernels themselves don't travel between processes."""

    op: str
    arch: str
    index: int
    cache: str
    assembly: Path | None = None


def has_builds(op: str) -> bool:
    return importlib.util.find_spec(f"turbo_kernels.{op}.builds") is not None


def shipped(op: str, arch: str) -> list[Build]:
    return list(importlib.import_module(f"turbo_kernels.{op}.builds").builds(arch))


def subset(builds: Sequence[Build]) -> Iterator[tuple[int, Build]]:
    """The first of every kernel and kind of operands."""
    seen: set[tuple[str, str | None]] = set()
    for i, build in enumerate(builds):
        key = (build.kernel.__name__, build.matrix)
        if key not in seen:
            seen.add(key)
            yield i, build


def row_of(task: Task) -> Row:
    """Compiles in this process. A failure of any kind is a row with its problem."""
    from turbo_kernels import aot

    os.environ["TRITON_CACHE_DIR"] = task.cache
    build = shipped(task.op, task.arch)[task.index]
    limit = aot.TARGETS[task.arch].shared_limit_bytes
    try:
        found = aot.compiled(build, task.arch)
    except Exception as e:
        line = next((line.strip() for line in str(e).splitlines() if line.strip()), "")
        why = f"doesn't compile: {type(e).__name__}: {line}"
        return Row(task.op, task.arch, build.label, shared_limit_bytes=limit, problem=why)
    if task.assembly:
        name = re.sub(r"[^A-Za-z0-9]+", "-", build.label)
        (task.assembly / f"{name}.{task.arch}.{aot.TARGETS[task.arch].assembly}").write_text(found.assembly)
    most = max(
        found.matrix, key=lambda key: (aot.same(key[0], build.matrix or ""), found.matrix[key]), default=("", "")
    )
    return Row(
        task.op, task.arch, build.label, found.registers, found.agprs, found.sgprs, found.spills, found.scratch_bytes,
        found.shared_bytes, limit, *most, found.matrix.get(most, 0), found.code_bytes, round(found.seconds, 3),
        "; ".join(aot.problems(build, task.arch, found)),
    )  # fmt: skip


def report(ops: Sequence[str], archs: Sequence[str], some: bool, jobs: int, assembly: Path | None = None) -> list[Row]:
    """A row a build, ordered as asked. Each architecture has processes of its own (see aot)."""
    rows = []
    with tempfile.TemporaryDirectory(prefix="turbo-compile-") as cache:
        for arch in archs:
            tasks = []
            for op in ops:
                builds = shipped(op, arch)
                chosen = subset(builds) if some else enumerate(builds)
                tasks += [Task(op, arch, i, cache, assembly) for i, _ in chosen]
            if tasks:
                workers = max(1, min(jobs, len(tasks) // 4))  # a process takes as long to start as four kernels
                with ProcessPoolExecutor(workers, multiprocessing.get_context("spawn")) as pool:
                    rows += pool.map(row_of, tasks)
    return rows


def versions() -> dict[str, str]:
    """Of Triton, whose own LLVM compiles for AMD, and of the ptxas that it ships."""
    from triton import knobs

    said = subprocess.run([knobs.nvidia.ptxas.path, "--version"], capture_output=True, text=True, check=False).stdout
    release = re.search(r"V(\d[\d.]*)", said)
    return {
        "triton": importlib.metadata.version("triton"),
        "torch": importlib.metadata.version("torch"),
        "ptxas": release[1] if release else "not found",
    }


def show(rows: Sequence[Row]) -> None:
    """A table of 80 columns an architecture; what is wrong stands below, a line each."""
    from rich.console import Console
    from rich.text import Text

    console = Console(width=None if sys.stdout.isatty() else 80, highlight=False)
    for arch in dict.fromkeys(r.arch for r in rows):
        console.print(_table(arch, [r for r in rows if r.arch == arch]))
    for r in rows:
        if r.problem:
            console.print(Text(f"FAIL {r.arch} {r.build}: {r.problem}"), soft_wrap=True)
    bad = sum(bool(r.problem) for r in rows)
    said = ", ".join(f"{k} {v}" for k, v in versions().items())
    console.print(f"{len(rows)} builds, {bad} unsound ({said})", soft_wrap=True)


def _table(arch: str, rows: Sequence[Row]) -> Any:
    from rich import box
    from rich.table import Table
    from rich.text import Text

    table = Table(box=box.SIMPLE_HEAD, show_edge=False, padding=(0, 1, 0, 0), title=arch, title_justify="left")
    table.add_column("Build", overflow="fold")
    for name in ("Regs", "Spills", "Shared KiB"):
        table.add_column(name, no_wrap=True, justify="right")
    table.add_column("Matrix", no_wrap=True)
    for name in ("Code KiB", "s"):
        table.add_column(name, no_wrap=True, justify="right")
    for r in rows:
        label = Text(r.build, style="red" if r.problem else "")
        if r.registers is None:
            table.add_row(label, *["—"] * 6)
            continue
        shared = f"{(r.shared_bytes or 0) / 1024:.0f} of {(r.shared_limit_bytes or 0) / 1024:.0f}"
        size = re.search(r"\d+x\d+x\d+|m\d+n\d+k\d+", r.matrix)
        matrix = f"{r.matrix_count}× {size[0]} {r.operands}" if size else "—"
        code = f"{(r.code_bytes or 0) / 1024:.1f}"
        table.add_row(label, str(r.registers), str(r.spills), shared, matrix, code, f"{r.seconds or 0:.1f}")
    return table


def _listed(text: str | None, known: Sequence[str], what: str) -> list[str]:
    chosen = [t.strip() for t in text.split(",")] if text else list(known)
    for name in chosen:
        if name not in known:
            raise ValueError(f"no {what} {name!r}; there are {', '.join(known)}")
    return chosen


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="turbo_kernels.compile_report", description="Registers, spills, shared memory."
    )
    parser.add_argument("--arch", help=f"comma-separated; {', '.join(ARCHS)} by default")
    parser.add_argument("--op", help="comma-separated; every family by default")
    parser.add_argument("--csv", type=Path)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--subset", action="store_true", help="the first build of every kernel and kind of operands")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--asm", type=Path, help="a folder for the assembly")
    args = parser.parse_args(argv)
    try:
        if os.environ.get("TRITON_INTERPRET"):
            raise ValueError("TRITON_INTERPRET is set: unset it, an interpreted kernel can't be compiled")
        archs = _listed(args.arch, ARCHS, "architecture")
        ops = _listed(args.op, [f.name for f in FAMILIES], "operator")
        missing = [op for op in ops if not has_builds(family(op).name)]
        if args.op and missing:
            raise ValueError(f"{', '.join(missing)}: no builds.py, nothing to compile")
    except ValueError as e:
        print(f"turbo_kernels.compile_report: {e}", file=sys.stderr)
        return 2
    if args.asm:
        args.asm.mkdir(parents=True, exist_ok=True)
    rows = report([op for op in ops if op not in missing], archs, args.subset, args.jobs, args.asm)
    if args.csv:
        write(args.csv, rows)
    if args.json:
        print(
            json.dumps({"versions": versions(), "without builds": missing, "rows": [vars(r) for r in rows]}, indent=1)
        )
    else:
        show(rows)
        for op in missing:
            print(f"{op}: no builds.py, nothing compiled")
    return 1 if any(r.problem for r in rows) else 0


def write(path: Path, rows: Sequence[Row]) -> None:
    said: dict[str, Any] = versions()
    with path.open("w", newline="", encoding="utf-8") as f:
        writer = csv.DictWriter(f, [c.name for c in fields(Row)] + list(said), lineterminator="\n")
        writer.writeheader()
        writer.writerows(vars(r) | said for r in rows)


if __name__ == "__main__":
    sys.exit(main())
