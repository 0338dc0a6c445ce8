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
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch.utils.benchmark import Timer

from turbo_kernels.case_kit import Tensors
from turbo_kernels.registry import family
from turbo_kernels.spec import Spec

Dims = dict[str, int]
Shape = tuple[str, Dims]


@dataclass(frozen=True)
class Layout:
    """A class of operators: its dims, what a forward and a backward cost in units of 1/scale a second, its gradients."""

    dims: tuple[str, ...]
    unit: str
    scale: float
    forward: Callable[[Dims], float]
    backward: Callable[[Dims], float]
    gradients: tuple[str, ...]
    shapes: Mapping[str, str]  # by device, where none are given

    @property
    def columns(self) -> tuple[str, ...]:
        rates = [f"{which} {self.unit}{suffix}" for which in ("Forward", "Backward") for suffix in ("", "_stddev")]
        snrs = [f"{name}_snr" for name in ("out", *self.gradients)]
        return ("label", *self.dims, "Check", *rates, "Forward Time (ms)", "Backward Time (ms)", *snrs)


def _product(d: Dims) -> float:
    return 2.0 * d["B"] * d["M"] * d["N"] * d["K"]


LAYOUTS: dict[str, Layout] = {
    "gemm": Layout(
        ("B", "M", "N", "K"), "TFLOPS", 1e12, _product, lambda d: 2 * _product(d), ("da", "db"),
        {"cuda": "4096x4096x4096,8192x6144x4096,2048x6144x4096", "cpu": "64x64x64"},
    ),
    # By convention 2-byte elements: forward reads x and writes out, backward reads x and grad_out and writes dx.
    "memory": Layout(
        ("rows", "cols"), "GB/s", 1e9, lambda d: 4.0 * d["rows"] * d["cols"], lambda d: 6.0 * d["rows"] * d["cols"],
        ("dx",), {"cuda": "16384x8192,16384x4096,8192x14336", "cpu": "64x96"},
    ),
}  # fmt: skip
COLUMNS = LAYOUTS["gemm"].columns


def parse_shapes(text: str, dims: Sequence[str] = LAYOUTS["gemm"].dims) -> list[Shape]:
    """Sizes in the order of `dims`, joined by x (a leading B may be left out), comma-separated; or a JSON file of
    [{label, dims}]. A shape's text is its label.

    ValueError names what isn't a shape.
    """
    if Path(text).suffix == ".json":
        return [(s["label"], {d: int(s["dims"][d]) for d in dims}) for s in json.loads(Path(text).read_text())]
    shapes = []
    for label in text.split(","):
        sizes = label.strip().split("x")
        if dims[0] == "B" and len(sizes) == len(dims) - 1:
            sizes = ["1", *sizes]
        if len(sizes) != len(dims) or not all(s.isdigit() and int(s) for s in sizes):
            raise ValueError(f"{label!r} is no shape: {'x'.join(dims)}, each at least 1 (a leading B may be left out)")
        shapes.append((label.strip(), dict(zip(dims, map(int, sizes), strict=True))))
    return shapes


def times_ms(call: Callable[[], Any], seconds: float) -> list[float]:
    """Milliseconds a call, one value a block of Timer's."""
    measured = Timer("call()", globals={"call": call}).blocked_autorange(min_run_time=seconds)
    return [t * 1e3 for t in measured.times]


def rate(work: float, times: Sequence[float]) -> tuple[float, float]:
    """(rate at the mean time, standard deviation of the samples' rates), in `work` a second."""
    values = [work / (ms * 1e-3) for ms in times]
    return work / (statistics.mean(times) * 1e-3), statistics.stdev(values) if len(values) > 1 else 0.0


def measure(cases: ModuleType, layout: Layout, inputs: Tensors, dims: Dims, seconds: float) -> dict[str, float]:
    def step() -> None:
        for t in inputs.values():
            t.grad = None
        cases.step(inputs)

    forward, whole = times_ms(lambda: cases.forward(inputs), seconds), times_ms(step, seconds)
    forward_ms = statistics.median(forward)
    backward = [ms - forward_ms for ms in whole if ms > forward_ms]
    if not backward:
        raise RuntimeError(f"the forward ({forward_ms:.4g} ms) took longer than the step; raise --seconds")
    columns = {"Forward Time (ms)": statistics.mean(forward), "Backward Time (ms)": statistics.mean(backward)}
    for which, work, times in (("Forward", layout.forward, forward), ("Backward", layout.backward, backward)):
        name = f"{which} {layout.unit}"
        columns[name], columns[f"{name}_stddev"] = rate(work(dims) / layout.scale, times)
    return columns


def row_of(spec: Spec, shape: Shape, dtype: str, variant: str, seconds: float) -> dict[str, Any]:
    cases, layout = importlib.import_module(f"turbo_kernels.{spec.name}.cases"), LAYOUTS[spec.schema_class]
    device = "cuda" if torch.cuda.is_available() else "cpu"
    label, dims = shape
    inputs = cases.make_inputs(dims, dtype, variant, 0, device)
    passed, metrics, detail = cases.check(cases.step(inputs), cases.reference(inputs), dtype, variant)
    timing = measure(cases, layout, inputs, dims, seconds)
    print(f"{'PASS' if passed else 'FAIL'} {label}: forward {timing[f'Forward {layout.unit}']:.4g}, backward "
          f"{timing[f'Backward {layout.unit}']:.4g} {layout.unit} {detail}", flush=True)  # fmt: skip
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
    parser.add_argument("--shapes")
    parser.add_argument("--csv", type=Path, required=True)
    parser.add_argument("--seconds", type=float, default=0.2, help="least time per measurement")
    args = parser.parse_args(argv)
    try:
        spec = family(args.op)
        layout = LAYOUTS[spec.schema_class]
        given_shapes = args.shapes or layout.shapes["cuda" if torch.cuda.is_available() else "cpu"]
        shapes = parse_shapes(given_shapes, layout.dims)
        variant, dtype = args.variant or spec.variants[0], args.dtype or spec.dtypes[0]
        for what, given, known in (("variant", variant, spec.variants), ("dtype", dtype, spec.dtypes)):
            if given not in known:
                raise ValueError(f"{spec.name} has no {what} {given!r}; there are {', '.join(known)}")
    except (ValueError, OSError, KeyError) as e:
        print(f"turbo_kernels.bench: {e}", file=sys.stderr)
        return 2
    rows = [row_of(spec, shape, dtype, variant, args.seconds) for shape in shapes]
    lines = [",".join(layout.columns), *(",".join(cell(row.get(c, math.nan)) for c in layout.columns) for row in rows)]
    args.csv.write_bytes(("\n".join(lines) + "\n").encode())
    return 0 if all(row["Check"] == "PASS" for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
