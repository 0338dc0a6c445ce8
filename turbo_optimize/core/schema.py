"""benchmark.csv: the strict reader and writer of its text. The columns themselves are declared in columns.py.

A reader never guesses: whatever isn't exactly as frozen is a CsvError with its own code (DEFECTS), and no decision is
made on it. The writer reads back what it wrote, so what can't be read is never written.

Blank cells: a PASS row has every number. A FAIL or ERROR row may leave any number blank (it wasn't measured, or it
isn't a number: an SNR of NaN); it is then absent from `Row.values`. What stands there is checked all the same.
"""

from __future__ import annotations

import csv
import io
import math
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Literal, NoReturn, get_args

from turbo_optimize.core.columns import SCHEMAS, WORK, Column, Schema, forward_only, schema_for, schema_sha256
from turbo_optimize.core.errors import CsvError
from turbo_optimize.core.models import Frozen, Shape

__all__ = [
    "DEFECTS",
    "SCHEMAS",
    "WORK",
    "Check",
    "Column",
    "Row",
    "Schema",
    "format_csv",
    "forward_only",
    "parse_csv",
    "schema_for",
    "schema_sha256",
    "unmeasured_row",
]

Check = Literal["PASS", "FAIL", "ERROR"]

RATE_TOLERANCE = 0.01  # how far a rate may be from work / time before the two contradict each other

# code -> title; rules/<code>-<title, lower case, hyphens>.md says what, why, example, mend
DEFECTS: dict[str, str] = {
    "C01": "not UTF-8",
    "C02": "byte order mark",
    "C03": "wrong line ending",
    "C04": "missing final newline",
    "C05": "empty file",
    "C06": "missing column",
    "C07": "extra column",
    "C08": "renamed column",
    "C09": "reordered columns",
    "C10": "duplicate column",
    "C11": "wrong field count",
    "C12": "missing label",
    "C13": "duplicate label",
    "C14": "unexpected label",
    "C15": "blank metric",
    "C16": "not a number",
    "C17": "NaN value",
    "C18": "infinite metric",
    "C19": "zero or negative metric",
    "C20": "unknown check value",
    "C21": "dimensions differ",
    "C22": "faster than the roofline",
    "C23": "rate contradicts time",
}
_FORM = "write UTF-8 without a byte order mark, '\\n' after every line"
_HEADER = "the header must be byte for byte that of the schema frozen at BASELINE"
_ROWS = "one row for each target shape, no other"
_NUMBER = "measure that shape again; a PASS row needs plain, finite numbers"
_MENDS = (
    dict.fromkeys(("C01", "C02", "C03"), _FORM)
    | {"C04": "the file was cut off: write it again", "C05": "the benchmark wrote nothing: see its log"}
    | dict.fromkeys(("C06", "C07", "C08", "C09", "C10"), _HEADER)
    | {"C11": "as many fields as the header has; quote a label that holds a comma"}
    | dict.fromkeys(("C12", "C13", "C14"), _ROWS)
    | dict.fromkeys(("C15", "C16", "C17", "C18", "C19"), _NUMBER)
    | {"C20": "Check is PASS, FAIL or ERROR", "C21": "benchmark the target's own shape under its label"}
    | {"C22": "find the work that was skipped or the clock that was wrong", "C23": "write both from the same samples"}
)


class Row(Frozen):
    label: str
    dims: dict[str, int]
    check: Check
    values: dict[str, float]  # column name -> number; a blank cell is absent


def unmeasured_row(shape: Shape, check: Check, metrics: Mapping[str, float]) -> Row:
    """The row of a shape that failed: its correctness numbers where they are numbers (NaN and -inf stay blank)."""
    kept = {k: float(v) for k, v in metrics.items() if math.isfinite(v) or v == math.inf}
    return Row(label=shape.label, dims=shape.dims, check=check, values=kept)


def format_csv(schema: Schema, rows: Sequence[Row]) -> str:
    """The file's text, header first. Raises CsvError for rows that `parse_csv` would not give back."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(schema.names())
    for row in rows:
        _only_known(schema, row)
        dims = [row.dims[d] for d in schema.dims]
        numbers = [repr(float(row.values[c.name])) if c.name in row.values else "" for c in schema.numbers]
        writer.writerow([row.label, *dims, row.check, *numbers])
    text = out.getvalue()
    parse_csv(schema, text.encode(), [Shape(label=r.label, dims=r.dims) for r in rows])
    return text


def _only_known(schema: Schema, row: Row) -> None:
    where = f"label {row.label!r}"
    if set(row.dims) != set(schema.dims):
        _fail("C21", where, f"has {sorted(row.dims)}, the {schema.op_class} class has {list(schema.dims)}")
    unknown = set(row.values) - {c.name for c in schema.numbers}
    if unknown:
        _fail("C07", where, f"numbers without a column: {sorted(unknown)}")


def parse_csv(
    schema: Schema,
    data: bytes,
    shapes: Sequence[Shape],
    *,
    min_time_ms: Callable[[str], float] | None = None,
) -> tuple[Row, ...]:
    """Rows in the file's order, one per shape of `shapes`.

    `min_time_ms(label)` is the roofline's least time for all that a row times (forward + backward). Raises CsvError.
    """
    lines = _lines(data)
    _check_header(schema, lines[0])
    if len(lines) == 1:
        _fail("C05", "line 1", "a header and no rows")
    expected = {s.label: s for s in shapes}
    rows: dict[str, Row] = {}
    for number, line in enumerate(lines[1:], start=2):
        row = _row(schema, number, line, expected, rows)
        _check_numbers(schema, row, f"line {number}, label {row.label!r}", min_time_ms)
        rows[row.label] = row
    missing = [label for label in expected if label not in rows]
    if missing:
        _fail("C12", f"{len(rows)} rows", f"no row for {', '.join(map(repr, missing))}")
    return tuple(rows.values())


def _fail(code: str, where: str, what: str) -> NoReturn:
    raise CsvError(code, f"{DEFECTS[code]} in the benchmark CSV, {where}: {what}", _MENDS[code])


def _lines(data: bytes) -> list[str]:
    if not data:
        _fail("C05", "line 1", "0 bytes")
    if data.startswith((b"\xef\xbb\xbf", b"\xff\xfe", b"\xfe\xff")):
        _fail("C02", "line 1", f"starts with {data[:3]!r}")
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as e:
        line = data.count(b"\n", 0, e.start) + 1
        _fail("C01", f"line {line}", f"byte {data[e.start]:#04x} at offset {e.start}")
    lines = text.split("\n")
    for number, line in enumerate(lines, start=1):
        if "\r" in line:
            _fail("C03", f"line {number}", "a carriage return")
    if lines[-1]:
        _fail("C04", f"line {len(lines)}", f"ends with {lines[-1][-20:]!r}")
    return lines[:-1]


def _fields(line: str, code: str, where: str) -> list[str]:
    # One line at a time: a quoted line break would let one row swallow the next.
    try:
        return next(csv.reader([line], strict=True), [])
    except csv.Error as e:
        _fail(code, where, f"{e} in {line[:60]!r}")


def _check_header(schema: Schema, line: str) -> None:
    if line == schema.header:
        return
    found, wanted = _fields(line, "C08", "line 1"), list(schema.names())
    twice = sorted({n for n in found if found.count(n) > 1})
    missing = [n for n in wanted if n not in found]
    extra = [n for n in found if n not in wanted]
    if twice:
        _fail("C10", "line 1", f"{twice} stand more than once")
    if missing and extra:
        _fail("C08", "line 1", f"wanted {missing}, found {extra}")
    if missing:
        _fail("C06", "line 1", f"no {missing}")
    if extra:
        _fail("C07", "line 1", f"{extra}")
    if found != wanted:
        first = next(i for i, (f, w) in enumerate(zip(found, wanted, strict=True)) if f != w)
        _fail("C09", "line 1", f"column {first + 1} is {found[first]!r}, wanted {wanted[first]!r}")
    _fail("C08", "line 1", f"the names are right, the bytes are not: {line!r}")


def _row(schema: Schema, number: int, line: str, expected: Mapping[str, Shape], seen: Mapping[str, Row]) -> Row:
    fields = _fields(line, "C11", f"line {number}")
    if len(fields) != len(schema.columns):
        _fail("C11", f"line {number}", f"{len(fields)} fields, the header has {len(schema.columns)}")
    cells = dict(zip(schema.names(), fields, strict=True))
    label, check = cells["label"], cells["Check"]
    where = f"line {number}, label {label!r}"
    if not label:
        _fail("C12", f"line {number}", "the label is blank")
    if label not in expected:
        _fail("C14", where, "not a target shape")
    if label in seen:
        _fail("C13", where, "stands more than once")
    if check not in get_args(Check):
        _fail("C20", f"{where}, column 'Check'", repr(check))
    dims = {d: _dim(cells[d], f"{where}, column {d!r}") for d in schema.dims}
    if dims != expected[label].dims:
        _fail("C21", where, f"{dims}, the target shape is {expected[label].dims}")
    found = {c.name: _number(c, cells[c.name], check, f"{where}, column {c.name!r}") for c in schema.numbers}
    values = {name: v for name, v in found.items() if v is not None}
    return Row(label=label, dims=dims, check=check, values=values)  # pyright: ignore[reportArgumentType]


def _dim(text: str, where: str) -> int:
    if not re.fullmatch(r"[0-9]{1,18}", text):
        _fail("C16", where, f"{text!r} is not a whole number")
    return int(text)


_PLAIN = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?")
_LEAST = {"rate": "above 0", "time": "above 0", "stddev": "0 or more"}


def _number(column: Column, text: str, check: str, where: str) -> float | None:
    if check == "PASS" and not text.strip():
        _fail("C15", where, "blank in a PASS row")
    if text == "":
        return None
    word = text.lower().lstrip("+-")
    if word == "nan":
        _fail("C17", where, repr(text))
    if column.kind == "snr" and text == "inf":  # an exact match
        return math.inf
    if word not in ("inf", "infinity") and not _PLAIN.fullmatch(text):
        _fail("C16", where, repr(text))
    value = float(text)
    if math.isinf(value):
        _fail("C18", where, repr(text))
    if column.kind in _LEAST and (value < 0 or (value == 0 and column.kind != "stddev")):
        _fail("C19", where, f"{text!r}, must be {_LEAST[column.kind]}")
    return value


def _check_numbers(schema: Schema, row: Row, where: str, min_time_ms: Callable[[str], float] | None) -> None:
    """What two cells say together: a rate is work over time, and no time beats the roofline."""
    times = [row.values.get(schema.time_column(which)) for which in schema.passes]
    for which, time_ms in zip(schema.passes, times, strict=True):
        rate = row.values.get(schema.rate_column(which))
        if rate is None or time_ms is None:
            continue
        said = schema.work.rate(schema.work_of(which, row.dims), time_ms)
        if abs(rate - said) > RATE_TOLERANCE * said:
            what = f"{rate!r}, but {time_ms!r} ms make {said:.6g} {schema.work.unit}"
            _fail("C23", f"{where}, column {schema.rate_column(which)!r}", what)
    known = [t for t in times if t is not None]
    if min_time_ms is None or len(known) != len(times):
        return
    floor_ms, total_ms = min_time_ms(row.label), math.fsum(known)
    if total_ms < floor_ms:
        _fail("C22", where, f"{total_ms!r} ms in all, the least possible is {floor_ms:.6g} ms")
