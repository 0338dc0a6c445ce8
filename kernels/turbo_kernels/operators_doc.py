"""The table of docs/operators.md, from the registry: `python -m turbo_kernels.operators_doc [--check]`.

What stands between MARKS is replaced. A cell says what is known of an operator, variant and backend on an architecture; the
words are in MEANINGS. `measured` needs the suite's CSV of that architecture in docs/evidence/library/. With --check nothing
is written: exit 1 if the table is not the registry's.
"""

from __future__ import annotations

import argparse
import csv
import importlib.util
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from turbo_kernels.registry import FAMILIES
from turbo_kernels.spec import Spec

DOCS = Path(__file__).parents[2] / "docs"
PAGE = DOCS / "operators.md"
EVIDENCE = DOCS / "evidence" / "library"
MARKS = ("<!-- operators: python -m turbo_kernels.operators_doc -->", "<!-- end of operators -->")
OTHERS = ("AITER", "CK", "FLYDSL", "DEEP_EP")
ARCHS = ("sm_90", "gfx942", "gfx950", "cpu")
MEANINGS = {
    "measured": "judged and timed there (docs/evidence/library)",
    "tested": "the tests run there: in Triton's interpreter, where right or wrong shows and speed doesn't",
    "compiles": "compiled for it without its GPU: no spills, within its shared memory, on its matrix instruction",
    "torch": "what torch has; whether it can run an input is asked when it is called",
    "external": "another package's, used where it is installed; never run here",
    "—": "not there",
}

Known = set[tuple[str, ...]]  # (op, variant, backend, arch) that was measured


def measured(folder: Path = EVIDENCE) -> Known:
    """What the suite's files say was right, and timed."""
    found: Known = set()
    for path in sorted(folder.glob("*.csv")):
        with path.open(newline="", encoding="utf-8") as f:
            rows = [r for r in csv.DictReader(f) if r.get("check") == "PASS" and r.get("time_ms")]
        found |= {(r["op"], r["variant"], b, r["arch"]) for r in rows for b in r["backend"].split("+")}
    return found


def status(spec: Spec, variant: str, backend: str, arch: str, known: Known) -> str:
    if arch not in spec.architectures(variant, backend):
        return "—"
    if (spec.name, variant, backend, arch) in known:
        return "measured"
    if arch == "cpu":
        return "tested"
    if backend in ("TORCH", "HIPBLASLT"):
        return "torch"
    if backend in OTHERS:
        return "external"
    built = importlib.util.find_spec(f"turbo_kernels.{spec.name}.builds") is not None
    return "compiles" if built else "—"


def table(known: Known) -> Iterator[str]:
    yield "| op | `ops.` | variant | dtypes | backend | " + " | ".join(ARCHS) + " |"
    yield "|---" * (5 + len(ARCHS)) + "|"
    for spec in FAMILIES:
        functions = ", ".join(f"`{f}`" for f in spec.functions())
        for variant in spec.variants:
            for backend in (b for b in spec.backends if spec.architectures(variant, b)):
                cells = (status(spec, variant, backend, a, known) for a in ARCHS)
                row = (f"`{spec.name}`", functions, variant, ", ".join(spec.dtypes), backend, *cells)
                yield "| " + " | ".join(row) + " |"


def section() -> str:
    rows = list(table(measured()))
    used = [word for word in MEANINGS if any(f"| {word} |" in row for row in rows)]
    return "\n".join([MARKS[0], *rows, "", *(f"- *{word}*: {MEANINGS[word]}" for word in used), MARKS[1]])


def replaced(text: str) -> str:
    """The page with the registry's table. ValueError where it lacks its marks."""
    start, end = (text.find(mark) for mark in MARKS)
    if start < 0 or end < start:
        raise ValueError(f"the page has no {MARKS[0]} … {MARKS[1]}")
    return text[:start] + section() + text[end + len(MARKS[1]) :]


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="turbo_kernels.operators_doc", description="The table of docs/operators.md.")
    parser.add_argument("page", type=Path, nargs="?", default=PAGE)
    parser.add_argument("--check", action="store_true", help="write nothing; 1 if it isn't the registry's")
    args = parser.parse_args(argv)
    try:
        text = args.page.read_text(encoding="utf-8")
        wanted = replaced(text)
    except (OSError, ValueError) as e:
        print(f"turbo_kernels.operators_doc: {args.page}: {e}", file=sys.stderr)
        return 2
    if args.check and text != wanted:
        print(f"{args.page} isn't the registry's: run `python -m turbo_kernels.operators_doc`", file=sys.stderr)
        return 1
    if text != wanted:
        args.page.write_text(wanted, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
