"""The full benchmark: `python -m turbo_kernels.bench OP --csv FILE [--variant V] [--dtype D] [--shapes S]`.

Checks each shape first, then times forward and training step with torch.utils.benchmark.Timer; the backward is their
difference. Exit 0 all PASS, 1 a FAIL, 2 what was asked for can't be. Its absolute numbers don't compare with a
campaign's: that one rotates inputs and interleaves two trees.
"""

from __future__ import annotations

import argparse
import importlib
import json
import math
import statistics
import sys
from collections.abc import Callable, Sequence
from decimal import Decimal
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch.utils.benchmark import Timer

from turbo_kernels.case_kit import Tensors
from turbo_kernels.registry import family

COLUMNS = (
    "label", "B", "M", "N", "K", "Check", "Forward TFLOPS", "Forward TFLOPS_stddev", "Backward TFLOPS",
    "Backward TFLOPS_stddev", "Forward Time (ms)", "Backward Time (ms)", "out_snr", "da_snr", "db_snr",
)  # fmt: skip
DEFAULT_SHAPES = {"cuda": "4096x4096x4096,8192x6144x4096,2048x6144x4096", "cpu": "64x64x64"}

Shape = tuple[str, dict[str, int]]


def parse_shapes(text: str) -> list[Shape]:
    """`MxNxK` or `BxMxNxK`, comma-separated, or a JSON file of [{label, dims}]. A shape's text is its label.

    ValueError names what isn't a shape.
    """
    if Path(text).suffix == ".json":
        return [(s["label"], {d: int(s["dims"][d]) for d in "BMNK"}) for s in json.loads(Path(text).read_text())]
    shapes = []
    for label in text.split(","):
        sizes = label.strip().split("x")
        if len(sizes) not in (3, 4) or not all(s.isdigit() and int(s) for s in sizes):
            raise ValueError(f"{label!r} is no shape: MxNxK or BxMxNxK, each at least 1")
        dims = [1, *map(int, sizes)][-4:]
        shapes.append((label.strip(), dict(zip("BMNK", dims, strict=True))))
    return shapes


def times_ms(call: Callable[[], Any], seconds: float) -> list[float]:
    """Milliseconds a call, one value a block of Timer's."""
    measured = Timer("call()", globals={"call": call}).blocked_autorange(min_run_time=seconds)
    return [t * 1e3 for t in measured.times]


def rate(flops: float, times: Sequence[float]) -> tuple[float, float]:
    """(rate at the mean time, standard deviation of the samples' rates) in TFLOPS."""
    values = [flops / (ms * 1e-3) / 1e12 for ms in times]
    return flops / (statistics.mean(times) * 1e-3) / 1e12, statistics.stdev(values) if len(values) > 1 else 0.0


def measure(cases: ModuleType, inputs: Tensors, dims: dict[str, int], seconds: float) -> dict[str, float]:
    def step() -> None:
        for t in inputs.values():
            t.grad = None
        cases.step(inputs)

    forward, whole = times_ms(lambda: cases.forward(inputs), seconds), times_ms(step, seconds)
    forward_ms = statistics.median(forward)
    backward = [ms - forward_ms for ms in whole if ms > forward_ms]
    if not backward:
        raise RuntimeError(f"the forward ({forward_ms:.4g} ms) took longer than the step; raise --seconds")
    product = 2.0 * dims["B"] * dims["M"] * dims["N"] * dims["K"]
    columns = {"Forward Time (ms)": statistics.mean(forward), "Backward Time (ms)": statistics.mean(backward)}
    columns["Forward TFLOPS"], columns["Forward TFLOPS_stddev"] = rate(product, forward)
    columns["Backward TFLOPS"], columns["Backward TFLOPS_stddev"] = rate(2 * product, backward)
    return columns


def row_of(op: str, shape: Shape, dtype: str, variant: str, seconds: float) -> dict[str, Any]:
    cases = importlib.import_module(f"turbo_kernels.{op}.cases")
    device = "cuda" if torch.cuda.is_available() else "cpu"
    label, dims = shape
    inputs = cases.make_inputs(dims, dtype, variant, 0, device)
    passed, metrics, detail = cases.check(cases.step(inputs), cases.reference(inputs), dtype, variant)
    timing = measure(cases, inputs, dims, seconds)
    print(f"{'PASS' if passed else 'FAIL'} {label}: forward {timing['Forward TFLOPS']:.4g}, backward "
          f"{timing['Backward TFLOPS']:.4g} TFLOPS {detail}", flush=True)  # fmt: skip
    return {"label": label, **dims, "Check": "PASS" if passed else "FAIL", **timing, **metrics}


def cell(value: Any) -> str:
    """Six significant digits, never an exponent."""
    if not isinstance(value, float):
        return str(value)
    return format(Decimal(f"{value:.6g}"), "f") if math.isfinite(value) else str(value)


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="turbo_kernels.bench", description="The full benchmark of one operator.")
    parser.add_argument("op")
    parser.add_argument("--variant")
    parser.add_argument("--dtype")
    parser.add_argument("--shapes", default=DEFAULT_SHAPES["cuda" if torch.cuda.is_available() else "cpu"])
    parser.add_argument("--csv", type=Path, required=True)
    parser.add_argument("--seconds", type=float, default=0.2, help="least time per measurement")
    args = parser.parse_args(argv)
    try:
        spec, shapes = family(args.op), parse_shapes(args.shapes)
        variant, dtype = args.variant or spec.variants[0], args.dtype or spec.dtypes[0]
        for what, given, known in (("variant", variant, spec.variants), ("dtype", dtype, spec.dtypes)):
            if given not in known:
                raise ValueError(f"{spec.name} has no {what} {given!r}; there are {', '.join(known)}")
    except (ValueError, OSError, KeyError) as e:
        print(f"turbo_kernels.bench: {e}", file=sys.stderr)
        return 2
    rows = [row_of(spec.name, shape, dtype, variant, args.seconds) for shape in shapes]
    lines = [",".join(COLUMNS), *(",".join(cell(row.get(c, math.nan)) for c in COLUMNS) for row in rows)]
    args.csv.write_bytes(("\n".join(lines) + "\n").encode())
    return 0 if all(row["Check"] == "PASS" for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
