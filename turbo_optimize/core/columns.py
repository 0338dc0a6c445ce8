"""The columns of benchmark.csv, declared once per op class, and the work behind its rates. Read through schema.py."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from typing import Literal, NamedTuple

from turbo_optimize.core.errors import UsageError
from turbo_optimize.core.models import Frozen

Kind = Literal["label", "dim", "check", "rate", "stddev", "time", "snr"]


class Work(NamedTuple):
    """What a shape costs, from its dims, and how that becomes a rate in `unit`."""

    unit: str  # of the rate columns
    scale: float  # units of work a second in one `unit`
    forward: Callable[[Mapping[str, int]], float]
    backward: Callable[[Mapping[str, int]], float]

    def rate(self, work: float, time_ms: float) -> float:
        return work / (time_ms * 1e-3) / self.scale


def _gemm_flops(d: Mapping[str, int]) -> float:
    return 2.0 * d["B"] * d["M"] * d["N"] * d["K"]


def _attention_flops(d: Mapping[str, int]) -> float:
    return 4.0 * d["B"] * d["H"] * d["S"] * d["S"] * d["D"]


def _elements(d: Mapping[str, int]) -> float:
    return float(d["rows"] * d["cols"])


WORK: dict[str, Work] = {
    # out = a·b; backward is two products of the same size: da = dout·bᵀ, db = aᵀ·dout. B multiplies (groups, batch).
    "gemm": Work("TFLOPS", 1e12, _gemm_flops, lambda d: 2 * _gemm_flops(d)),
    # A convention, so that rates compare between rounds: 2-byte elements; forward reads x and writes out, backward
    # reads x and dout and writes dx. An op that moves other amounts scales all its rates by the same factor.
    "memory": Work("GB/s", 1e9, lambda d: 2 * 2 * _elements(d), lambda d: 3 * 2 * _elements(d)),
    # q·kᵀ and p·v, full length both; five products in backward (the scores are computed again). A causal op does half
    # of this: halving is its own matter, in how it reports its shapes.
    "attention": Work("TFLOPS", 1e12, _attention_flops, lambda d: 2.5 * _attention_flops(d)),
}


class Column(Frozen):
    name: str
    kind: Kind
    unit: str = ""
    backward: bool = False  # absent where only the forward runs


class Schema(Frozen):
    """The exact columns of one op class in one execution mode."""

    op_class: Literal["gemm", "memory", "attention"]
    execution_mode: Literal["training", "forward"]
    columns: tuple[Column, ...]

    def names(self, *kinds: Kind) -> tuple[str, ...]:
        """Column names in order; only those of `kinds` where given."""
        return tuple(c.name for c in self.columns if not kinds or c.kind in kinds)

    @property
    def header(self) -> str:
        return ",".join(self.names())

    @property
    def dims(self) -> tuple[str, ...]:
        return self.names("dim")

    @property
    def correctness(self) -> tuple[str, ...]:
        return self.names("snr")

    @property
    def numbers(self) -> tuple[Column, ...]:
        """What `Row.values` holds: rates and times (> 0, finite), deviations (≥ 0, finite), SNRs (finite or +inf)."""
        return tuple(c for c in self.columns if c.kind in ("rate", "stddev", "time", "snr"))

    @property
    def passes(self) -> tuple[str, ...]:
        return ("forward", "backward") if self.execution_mode == "training" else ("forward",)

    @property
    def work(self) -> Work:
        return WORK[self.op_class]

    def work_of(self, which: str, dims: Mapping[str, int]) -> float:
        """FLOP or bytes of one pass (`forward` or `backward`) of a shape."""
        return {"forward": self.work.forward, "backward": self.work.backward}[which](dims)

    def rate_column(self, which: str) -> str:
        return f"{which.capitalize()} {self.work.unit}"

    def time_column(self, which: str) -> str:
        return f"{which.capitalize()} Time (ms)"


def _declare(op_class: Literal["gemm", "memory", "attention"], dims: str, gradients: str) -> Schema:
    unit = WORK[op_class].unit
    columns = [Column(name="label", kind="label"), *(Column(name=d, kind="dim") for d in dims.split())]
    columns.append(Column(name="Check", kind="check"))
    for which in ("Forward", "Backward"):
        back = which == "Backward"
        columns.append(Column(name=f"{which} {unit}", kind="rate", unit=unit, backward=back))
        columns.append(Column(name=f"{which} {unit}_stddev", kind="stddev", unit=unit, backward=back))
    for which in ("Forward", "Backward"):
        columns.append(Column(name=f"{which} Time (ms)", kind="time", unit="ms", backward=which == "Backward"))
    columns.append(Column(name="out_snr", kind="snr", unit="dB"))
    columns += [Column(name=f"{g}_snr", kind="snr", unit="dB", backward=True) for g in gradients.split()]
    return Schema(op_class=op_class, execution_mode="training", columns=tuple(columns))


SCHEMAS: dict[str, Schema] = {
    "gemm": _declare("gemm", "B M N K", "da db"),
    "memory": _declare("memory", "rows cols", "dx"),
    "attention": _declare("attention", "B H S D", "dq dk dv"),
}


def forward_only(schema: Schema) -> Schema:
    """The variant without the backward's columns and the gradients' SNR. Its header, so its hash, is its own."""
    kept = tuple(c for c in schema.columns if not c.backward)
    return Schema(op_class=schema.op_class, execution_mode="forward", columns=kept)


def schema_for(op_class: str, execution_mode: str) -> Schema:
    """The schema of an op class in `training` or `forward` mode."""
    if op_class not in SCHEMAS:
        raise UsageError(f"no op class {op_class!r}", f"one of {', '.join(SCHEMAS)}")
    if execution_mode not in ("training", "forward"):
        raise UsageError(f"no execution mode {execution_mode!r}", "training or forward")
    return SCHEMAS[op_class] if execution_mode == "training" else forward_only(SCHEMAS[op_class])


def schema_sha256(schema: Schema) -> str:
    return hashlib.sha256(schema.header.encode()).hexdigest()
