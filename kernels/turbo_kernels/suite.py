"""Every operator beside what torch offers, on the shapes of public models:

    python -m turbo_kernels.suite [--op gemm_fp8,…] [--group dense,…] [--variant V] [--dtype D] [--backend B] [--quick]
        [--csv FILE] [--json] [--plot FILE.svg] [--seconds S] [--budget S] [--models SHAPES.yaml]

For every operator × variant × dtype × shape: its outputs are judged first, and what is wrong isn't timed. Then forward
and training step are timed between torch's own calls, on the same tensors, back and forth (A B B A), over a ring of
inputs that the cache can't hold. Without a GPU the shapes are miniatures and the times mean nothing. Exit 0 all right, 1
something is wrong, 2 what was asked for can't be. What the budget left out is counted, and is no failure.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import json
import math
import os
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
import triton
import yaml

from turbo_kernels import arch, suite_report
from turbo_kernels.bench_kit import Baseline, BenchCase, Shapes, Work
from turbo_kernels.case_kit import Tensors
from turbo_kernels.dispatch import AutoKernelDispatcher
from turbo_kernels.registry import FAMILIES, family
from turbo_kernels.spec import Spec
from turbo_kernels.suite_report import Row

PALINDROMES = 4  # each gives every contender two blocks
RING_BYTES_PER_CACHE = 3.0
RING_MOST = 8
OURS = "ours"

Call = Callable[[], Any]


@dataclass(frozen=True)
class Asked:
    """One operator's part: which variants and dtypes, and why there is nothing to run where `cases` is missing."""

    spec: Spec
    variants: tuple[str, ...]
    dtypes: tuple[str, ...]
    cases: ModuleType | None
    why: str = ""


def adapter(spec: Spec) -> tuple[ModuleType | None, str]:
    """(the family's cases.py, "") or (None, why it can't be benched)."""
    name = f"turbo_kernels.{spec.name}.cases"
    if importlib.util.find_spec(name) is None:
        return None, "no cases.py"
    cases = importlib.import_module(name)
    return (cases, "") if hasattr(cases, "bench_cases") else (None, "no bench_cases in its cases.py")


def interleaved(contenders: Mapping[str, Sequence[Call]], seconds: float, block_ms: Callable[[Sequence[Call]], float]
                ) -> dict[str, list[float]]:  # fmt: skip
    """Milliseconds a call, block by block: A B C C B A, again and again. `contenders` have their ring of calls each.

    `seconds` is about what one contender gets. Every ring is gone round once before: that compiles.
    """
    blocks: dict[str, list[Call]] = {}
    for name, ring in contenders.items():
        block_ms(ring)
        each = max(block_ms(ring), 1e-4)
        count = max(1, min(1000, round(seconds * 1e3 / (2 * PALINDROMES) / each)))
        blocks[name] = [ring[i % len(ring)] for i in range(count)]
    found: dict[str, list[float]] = {name: [] for name in blocks}
    for _ in range(PALINDROMES):
        for name in [*blocks, *reversed(blocks)]:
            found[name].append(block_ms(blocks[name]))
    return found


def gpu_block_ms(calls: Sequence[Call]) -> float:
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    for call in calls:
        call()
    end.record()
    end.synchronize()
    return start.elapsed_time(end) / len(calls)


def cpu_block_ms(calls: Sequence[Call]) -> float:
    start = time.perf_counter()
    for call in calls:
        call()
    return (time.perf_counter() - start) * 1e3 / len(calls)


@contextmanager
def backends_seen() -> Iterator[set[str]]:
    """The names of the backends that dispatchers choose meanwhile."""
    seen: set[str] = set()
    real = AutoKernelDispatcher.select

    def select(self: AutoKernelDispatcher, *args: Any, **kwargs: Any) -> Any:
        backend = real(self, *args, **kwargs)
        seen.add(backend.name)
        return backend

    AutoKernelDispatcher.select = select
    try:
        yield seen
    finally:
        AutoKernelDispatcher.select = real


def ring_of(cases: ModuleType, dims: dict[str, int], dtype: str, variant: str, device: str) -> list[Tensors]:
    """Inputs of different seeds, together larger than the last cache, and no more than a quarter of the free memory."""
    first = cases.make_inputs(dims, dtype, variant, 0, device)
    size = sum(t.nbytes for t in first.values())
    count = 2
    if device == "cuda":
        cache = torch.cuda.get_device_properties(0).L2_cache_size
        fits = int(torch.cuda.mem_get_info()[0] / 4 // size)
        count = max(1, min(RING_MOST, fits, math.ceil(RING_BYTES_PER_CACHE * cache / size)))
    return [first, *(cases.make_inputs(dims, dtype, variant, seed, device) for seed in range(1, count))]


def phases(cases: ModuleType, ring: Sequence[Tensors], case: BenchCase) -> Iterator[tuple[str, Work, list[Call]]]:
    def step(inputs: Tensors) -> Any:
        for t in inputs.values():
            t.grad = None
        return cases.step(inputs)

    yield "forward", case.forward, [lambda i=inputs: cases.forward(i) for inputs in ring]
    if case.step is not None:
        yield "step", case.step, [lambda i=inputs: step(i) for inputs in ring]


def rivals(cases: ModuleType, ring: Sequence[Tensors], variant: str) -> tuple[dict[str, list[Baseline]], str]:
    """Each of torch's ways over the ring; those that can't run here are named instead."""
    offered = getattr(cases, "baselines", None)
    made = [offered(inputs, variant) for inputs in ring] if offered else []
    good: dict[str, list[Baseline]] = {}
    bad = []
    for name in made[0] if made else ():
        try:
            for call in (made[0][name].forward, made[0][name].step):
                if call:
                    call()
            good[name] = [m[name] for m in made]
        except Exception as e:
            bad.append(f"{name}: {short(e)}")
    return good, "; ".join(bad)


def short(e: BaseException) -> str:
    return f"{type(e).__name__}: {next(iter(str(e).splitlines()), '')[:120]}"


def measured(cases: ModuleType, row: Row, case: BenchCase, variant: str, device: str, seconds: float) -> list[Row]:
    """The rows of one shape: one a phase and baseline; a single one that says why where it is wrong."""
    try:
        ring = ring_of(cases, case.dims, row.dtype, variant, device)
        with backends_seen() as seen:
            outputs = cases.step(ring[0])
        passed, metrics, detail = cases.check(outputs, cases.reference(ring[0]), row.dtype, variant)
        del outputs
    except Exception as e:
        return [replace(row, check="ERROR", note=short(e))]
    worst = min((v for k, v in metrics.items() if k.endswith("_snr")), default=math.nan)
    row = replace(row, check="PASS" if passed else "FAIL", snr_db=worst, backend="+".join(sorted(seen)) or "TRITON")
    if not passed:
        return [replace(row, note=detail)]
    if device == "cuda":
        torch.cuda.empty_cache()  # of the judgement's wide copies
    others, missing = rivals(cases, ring, variant)
    row = replace(row, note=missing)
    try:
        return [r for phase, work, calls in phases(cases, ring, case)
                for r in _timed(replace(row, phase=phase), work, calls, others, device, seconds)]  # fmt: skip
    except Exception as e:
        return [replace(row, check="ERROR", note=short(e))]


def _timed(row: Row, work: Work, calls: list[Call], others: Mapping[str, list[Baseline]], device: str, seconds: float
           ) -> Iterator[Row]:  # fmt: skip
    contenders = {OURS: calls}
    for name, ring in others.items():
        found = [call for b in ring if (call := getattr(b, row.phase)) is not None]
        if found:
            contenders[name] = found
    times = interleaved(contenders, seconds, gpu_block_ms if device == "cuda" else cpu_block_ms)
    ms = statistics.median(times[OURS])
    row = replace(
        row,
        time_ms=ms,
        tflops=work.flops / ms / 1e9 if work.flops else None,
        gbps=work.least_bytes / ms / 1e6 if work.least_bytes else None,
    )
    for name in contenders:
        if name != OURS:
            ratio = statistics.median(b / a for a, b in zip(times[OURS], times[name], strict=True))
            yield replace(row, baseline=name, baseline_ms=statistics.median(times[name]), ratio=ratio)
    if len(contenders) == 1:
        yield row


def cases_of(asked: Asked, shapes: Shapes, groups: Sequence[str] | None, quick: bool, device: str
             ) -> Iterator[tuple[str, str, BenchCase]]:  # fmt: skip
    """(variant, dtype, case); in miniature, each once, where there is no GPU."""
    for variant in asked.variants:
        for dtype in asked.dtypes:
            seen: set[tuple[int, ...]] = set()
            for case in asked.cases.bench_cases(shapes, dtype, variant) if asked.cases else ():
                if (groups and case.group not in groups) or (quick and not case.quick):
                    continue
                run = case if device == "cuda" else case.small()
                if tuple(run.dims.values()) not in seen:
                    seen.add(tuple(run.dims.values()))
                    yield variant, dtype, run


def machine(device: str) -> dict[str, Any]:
    name = torch.cuda.get_device_name(0) if device == "cuda" else "cpu"
    return {"gpu": name, "arch": arch.detect(), "torch": torch.__version__, "triton": triton.__version__}


def run(asked: Sequence[Asked], shapes: Shapes, groups: Sequence[str] | None, quick: bool, seconds: float,
        budget: float, say: Callable[[str], None]) -> tuple[list[Row], int]:  # fmt: skip
    """(rows, shapes that the budget left out). Round robin over the operators, so that a budget starves none."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    end, here = time.monotonic() + budget, machine(device)
    queues = [[(a, *c) for c in cases_of(a, shapes, groups, quick, device)] for a in asked]
    order = [queue[i] for i in range(max(map(len, queues), default=0)) for queue in queues if i < len(queue)]
    rows: list[Row] = []
    for done, (a, variant, dtype, case) in enumerate(order):
        if time.monotonic() > end:
            return rows, len(order) - done
        size = " ".join(f"{d}{n}" for d, n in case.dims.items())
        row = Row(a.spec.name, variant, dtype, case.group, case.label, size, **here)
        assert a.cases is not None
        found = measured(a.cases, row, case, variant, device, seconds)
        rows += found
        say(suite_report.line(found))
        if device == "cuda":
            torch.compiler.reset()  # or torch would stop to compile after a few shapes
            torch.cuda.empty_cache()
    return rows, 0


def _listed(text: str | None, known: Sequence[str], what: str) -> list[str]:
    chosen = [t.strip() for t in text.split(",")] if text else list(known)
    for name in chosen:
        if name not in known:
            raise ValueError(f"no {what} {name!r}; there are {', '.join(known)}")
    return chosen


def plan(ops: Sequence[str], variant: str | None, dtype: str | None) -> list[Asked]:
    """ValueError where no operator asked for has that variant or dtype."""
    found = []
    for name in ops:
        spec = family(name)
        variants = tuple(v for v in spec.variants if variant in (None, v))
        dtypes = tuple(d for d in spec.dtypes if dtype in (None, d))
        if variants and dtypes:
            found.append(Asked(spec, variants, dtypes, *adapter(spec)))
    if not found:
        wanted = " ".join(filter(None, [variant, dtype]))
        raise ValueError(f"{', '.join(ops)}: no {wanted} there; `turbo-opt ops` lists what there is")
    return found


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="turbo_kernels.suite", description="Every operator beside torch's own.")
    parser.add_argument("--op", help="comma-separated; every family by default")
    parser.add_argument("--group", help="comma-separated groups of SHAPES.yaml; all by default")
    parser.add_argument("--variant")
    parser.add_argument("--dtype")
    parser.add_argument("--backend", help="forced for every operator whose environment group there is")
    parser.add_argument("--quick", action="store_true", help="a few shapes of each group, the first dtype")
    parser.add_argument("--csv", type=Path)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--plot", type=Path, help="an SVG: how many times torch's best we are, an operator a bar")
    parser.add_argument("--seconds", type=float, default=0.2, help="about what one contender gets a shape and phase")
    parser.add_argument("--budget", type=float, default=math.inf, help="seconds for everything; the rest is left out")
    parser.add_argument("--models", type=Path, default=Path(__file__).parents[2] / "SHAPES.yaml")
    args = parser.parse_args(argv)
    try:
        asked = plan(_listed(args.op, [f.name for f in FAMILIES], "operator"), args.variant, args.dtype)
        shapes = yaml.safe_load(args.models.read_text(encoding="utf-8"))
        groups = _listed(args.group, list(shapes), "group") if args.group else None
        if not (torch.cuda.is_available() or arch.INTERPRET):
            raise ValueError("no GPU: set TRITON_INTERPRET=1 to run miniatures in Triton's interpreter")
    except (ValueError, OSError) as e:
        print(f"turbo_kernels.suite: {e}", file=sys.stderr)
        return 2
    if args.quick and not args.dtype:
        asked = [replace(a, dtypes=a.dtypes[:1]) for a in asked]
    if args.backend:
        for group in ("GEMM", "GROUPED_GEMM", "ATTENTION"):
            os.environ[f"TURBO_{group}_BACKEND"] = args.backend
    say = (lambda text: None) if args.json else (lambda text: print(text, flush=True))
    rows, left = run(asked, shapes, groups, args.quick, args.seconds, args.budget, say)
    idle = {a.spec.name: a.why for a in asked if a.cases is None}
    if args.csv:
        suite_report.write(args.csv, rows)
    if args.plot:
        args.plot.write_text(suite_report.svg(rows), encoding="utf-8")
    if args.json:
        data = {"rows": [suite_report.plain(r) for r in rows], "left_out": left, "not_benched": idle}
        print(json.dumps(data, indent=1))
    else:
        suite_report.show(rows, left, idle)
    return 1 if any(r.check != "PASS" for r in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
