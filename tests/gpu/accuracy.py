"""How near to the truth every operator comes on this device: small, odd and real shapes, one line each.

    python -m tests.gpu.accuracy OUT.csv [--op gemm,…] [--seconds S]

Exits 1 where an output isn't right. A shape that an operator refuses by name is REFUSED, which is no failure.
"""

from __future__ import annotations

import argparse
import csv
import math
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from types import ModuleType

import torch
import yaml

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "kernels"))

from turbo_kernels import suite  # noqa: E402
from turbo_kernels.bench_kit import BenchCase  # noqa: E402
from turbo_kernels.registry import FAMILIES  # noqa: E402

KINDS = ("small", "odd", "real")
ODD = {"B": 3, "M": 131, "N": 77, "K": 203, "rows": 37, "cols": 515}
ODD_OTHER = 67


@dataclass(frozen=True)
class Row:
    """`worst_snr_db`: of the outputs that the check tells of; `check` PASS, FAIL, ERROR or REFUSED."""

    op: str
    variant: str
    dtype: str
    kind: str
    dims: str
    check: str
    worst_snr_db: float = math.nan
    note: str = ""


def shapes(quick: Sequence[BenchCase], kind: str) -> Iterator[dict[str, int]]:
    """Of one kind; `real` are the smallest and the largest of the quick ones."""
    if kind == "real":
        by_size = sorted((c.dims for c in quick), key=lambda dims: math.prod(dims.values()))
        yield from (by_size[0], by_size[-1]) if len(by_size) > 1 else by_size
    elif kind == "small":
        yield quick[0].small().dims
    else:
        yield {d: 1 if n == 1 else ODD.get(d, ODD_OTHER) for d, n in quick[0].dims.items()}


def judged(cases: ModuleType, op: str, variant: str, dtype: str, kind: str, dims: dict[str, int], device: str) -> Row:
    row = (op, variant, dtype, kind, " ".join(f"{d}{n}" for d, n in dims.items()))
    try:
        inputs = cases.make_inputs(dims, dtype, variant, 11, device)
        passed, metrics, detail = cases.check(cases.step(inputs), cases.reference(inputs), dtype, variant)
    except ValueError as e:
        return Row(*row, "REFUSED", note=suite.short(e))
    except Exception as e:
        return Row(*row, "ERROR", note=suite.short(e))
    worst = min((v for k, v in metrics.items() if k.endswith("_snr")), default=math.nan)
    return Row(*row, "PASS" if passed else "FAIL", worst, detail)


def rows(ops: Sequence[str], kinds: Sequence[str], device: str, end: float) -> Iterator[Row]:
    """Kind by kind, so that a budget starves no operator."""
    models = yaml.safe_load((ROOT / "SHAPES.yaml").read_text())
    for kind in kinds:
        for spec in (f for f in FAMILIES if f.name in ops):
            cases, why = suite.adapter(spec)
            if cases is None:
                yield Row(spec.name, "", "", kind, "", "ERROR", note=why)
                continue
            for variant in spec.variants:
                for dtype in spec.dtypes:
                    quick = [c for c in cases.bench_cases(models, dtype, variant) if c.quick]
                    for dims in shapes(quick, kind):
                        if time.monotonic() > end:
                            return
                        yield judged(cases, spec.name, variant, dtype, kind, dims, device)
                        if device == "cuda":
                            torch.cuda.empty_cache()


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("--op", default=",".join(f.name for f in FAMILIES))
    parser.add_argument("--seconds", type=float, default=math.inf)
    args = parser.parse_args(argv)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    kinds = KINDS if device == "cuda" else KINDS[:2]
    found = []
    with args.out.open("w", newline="", encoding="utf-8") as f:  # row by row: what a crash leaves counts
        writer = csv.DictWriter(f, [c.name for c in fields(Row)], lineterminator="\n")
        writer.writeheader()
        for row in rows(args.op.split(","), kinds, device, time.monotonic() + args.seconds):
            found.append(row)
            writer.writerow(asdict(row) | {"worst_snr_db": f"{row.worst_snr_db:.1f}"})
            f.flush()
            print(f"{row.check} {row.op} {row.variant} {row.dtype} {row.kind} {row.dims}: {row.worst_snr_db:.1f} dB {row.note}",
                  flush=True)  # fmt: skip
    return 0 if found and all(r.check in ("PASS", "REFUSED") for r in found) else 1


if __name__ == "__main__":
    sys.exit(main())
