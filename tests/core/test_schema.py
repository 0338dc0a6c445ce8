"""benchmark.csv: what is written reads back, and every way of not being exact has its own code."""

from __future__ import annotations

import math
from pathlib import Path
from typing import get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from turbo_optimize.core.errors import CsvError, UsageError
from turbo_optimize.core.models import Shape
from turbo_optimize.core.schema import (
    DEFECTS,
    SCHEMAS,
    Check,
    Row,
    Schema,
    format_csv,
    forward_only,
    parse_csv,
    schema_for,
    schema_sha256,
    unmeasured_row,
)
from turbo_optimize.core.scoring import row_values

GEMM = SCHEMAS["gemm"]
GEMM_HEADER = (
    "label,B,M,N,K,Check,Forward TFLOPS,Forward TFLOPS_stddev,Backward TFLOPS,Backward TFLOPS_stddev,"
    "Forward Time (ms),Backward Time (ms),out_snr,da_snr,db_snr"
)
ALL = [*SCHEMAS.values(), *(forward_only(s) for s in SCHEMAS.values())]
DIMS = {"B": 1, "M": 4096, "N": 4096, "K": 4096}


def row(label: str = "big", dims: dict[str, int] = DIMS, ms: float = 0.5) -> Row:
    snr = {"out_snr": math.inf, "da_snr": 40.5, "db_snr": 41.0}
    return Row(label=label, dims=dims, check="PASS", values=row_values(GEMM, dims, [ms, ms * 1.1], [2 * ms], snr))


ROWS = (row(), row("small", DIMS | {"M": 512}, 0.1))
SHAPES = [Shape(label=r.label, dims=r.dims) for r in ROWS]
TEXT = format_csv(GEMM, ROWS)


def code_of(data: bytes | str, **kwargs: object) -> str:
    with pytest.raises(CsvError) as e:
        parse_csv(GEMM, data.encode() if isinstance(data, str) else data, SHAPES, **kwargs)  # type: ignore[arg-type]
    assert str(e.value).startswith(f"{e.value.code}: ")
    assert "\n" not in str(e.value)
    assert e.value.hint
    return e.value.code


def with_cell(column: str, text: str, line: int = 1, check: str = "PASS") -> str:
    """The good file with one cell of the first row replaced."""
    lines = TEXT.split("\n")
    cells = lines[line].split(",")
    cells[GEMM.names().index("Check")] = check
    cells[GEMM.names().index(column)] = text
    lines[line] = ",".join(cells)
    return "\n".join(lines)


def with_header(header: str) -> str:
    return TEXT.replace(GEMM_HEADER, header)


def test_header_bytes() -> None:
    assert GEMM.header == GEMM_HEADER
    assert TEXT.startswith(GEMM_HEADER + "\n")
    assert SCHEMAS["memory"].header == (
        "label,rows,cols,Check,Forward GB/s,Forward GB/s_stddev,Backward GB/s,Backward GB/s_stddev,"
        "Forward Time (ms),Backward Time (ms),out_snr,dx_snr"
    )
    assert SCHEMAS["attention"].header.startswith("label,B,H,S,D,Check,Forward TFLOPS,")
    assert SCHEMAS["attention"].header.endswith(",out_snr,dq_snr,dk_snr,dv_snr")


def test_forward_mode_is_a_schema_of_its_own() -> None:
    forward = schema_for("gemm", "forward")
    assert forward.header == ("label,B,M,N,K,Check,Forward TFLOPS,Forward TFLOPS_stddev,Forward Time (ms),out_snr")
    assert len({schema_sha256(s) for s in ALL}) == len(ALL)
    with pytest.raises(UsageError, match="gemm, memory, attention"):
        schema_for("conv", "training")
    with pytest.raises(UsageError, match="training or forward"):
        schema_for("gemm", "inference")


@st.composite
def files(draw: st.DrawFn, schema: Schema) -> list[Row]:
    labels = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\r\n"), min_size=1, max_size=12)
    ms = st.lists(st.floats(1e-6, 1e6), min_size=1, max_size=4)
    out = []
    for label in draw(st.lists(labels, min_size=1, max_size=4, unique=True)):
        dims = {d: draw(st.integers(1, 10**6)) for d in schema.dims}
        snr = {c: draw(st.floats(-100, 400) | st.just(math.inf)) for c in schema.correctness}
        values = row_values(schema, dims, draw(ms), draw(ms), snr)
        check: Check = draw(st.sampled_from(get_args(Check)))
        kept = values if check == "PASS" else {k: v for k, v in values.items() if draw(st.booleans())}
        out.append(Row(label=label, dims=dims, check=check, values=kept))
    return out


@pytest.mark.parametrize("schema", ALL, ids=lambda s: f"{s.op_class}-{s.execution_mode}")
@given(data=st.data())
@settings(max_examples=30, deadline=None)
def test_what_is_written_reads_back(schema: Schema, data: st.DataObject) -> None:
    rows = data.draw(files(schema))
    text = format_csv(schema, rows)
    assert text.endswith("\n")
    assert "\r" not in text
    shapes = [Shape(label=r.label, dims=r.dims) for r in rows]
    assert parse_csv(schema, text.encode(), shapes) == tuple(rows)


@given(at=st.integers(0, len(GEMM_HEADER) - 1), new=st.characters(codec="utf-8"))
@settings(max_examples=300, deadline=None)
def test_any_corrupted_header_character_is_named(at: int, new: str) -> None:
    if new == GEMM_HEADER[at]:
        return
    assert code_of(with_header(GEMM_HEADER[:at] + new + GEMM_HEADER[at + 1 :])) in DEFECTS


@given(at=st.integers(0, len(GEMM_HEADER) - 1))
@settings(max_examples=100, deadline=None)
def test_any_lost_header_character_is_named(at: int) -> None:
    assert code_of(with_header(GEMM_HEADER[:at] + GEMM_HEADER[at + 1 :])) in DEFECTS


@given(cut=st.integers(1, len(TEXT) - 1))
@settings(max_examples=100, deadline=None)
def test_any_truncation_is_named(cut: int) -> None:
    assert code_of(TEXT[:cut]) in {"C04", "C05", "C12"}


FAULTS: list[tuple[str, bytes | str]] = [
    ("C01", TEXT.encode() + b"\xff,1\n"),
    ("C02", b"\xef\xbb\xbf" + TEXT.encode()),
    ("C02", TEXT.encode("utf-16")),
    ("C03", TEXT.replace("\n", "\r\n")),
    ("C03", TEXT.replace("big", "b\rg")),
    ("C04", TEXT[:-1]),
    ("C04", TEXT[:-20]),
    ("C05", b""),
    ("C05", GEMM_HEADER + "\n"),
    ("C06", with_header(GEMM_HEADER.removesuffix(",db_snr"))),
    ("C06", "\n" + TEXT),
    ("C07", with_header(GEMM_HEADER + ",clock_mhz")),
    ("C08", with_header(GEMM_HEADER.replace("Forward Time (ms)", "Forward Time (us)"))),
    ("C08", with_header(GEMM_HEADER.replace("label", '"label"'))),
    ("C08", with_header(GEMM_HEADER.replace(",M,", ", M,"))),
    ("C09", with_header(GEMM_HEADER.replace("M,N", "N,M"))),
    ("C10", with_header(GEMM_HEADER.replace("M,N", "M,M"))),
    ("C11", TEXT.replace("big,", "big,big,")),
    ("C11", TEXT + "\n"),
    ("C11", TEXT.replace("big,", '"big,')),
    ("C12", TEXT.replace("big,", ",")),
    ("C12", "\n".join(TEXT.split("\n")[:2]) + "\n"),
    ("C13", TEXT + TEXT.split("\n")[1] + "\n"),
    ("C14", TEXT.replace("big", "huge")),
    ("C14", TEXT.replace("big", " big")),
    ("C15", with_cell("Forward TFLOPS", "")),
    ("C15", with_cell("db_snr", " ")),
    ("C16", with_cell("Forward TFLOPS", "fast")),
    ("C16", with_cell("Forward TFLOPS", "1_000.0")),
    ("C16", with_cell("Forward Time (ms)", " 0.5")),
    ("C16", with_cell("Forward Time (ms)", "٣")),
    ("C16", with_cell("M", "4096.0")),
    ("C16", with_cell("out_snr", "Forward", check="FAIL")),
    ("C17", with_cell("out_snr", "nan")),
    ("C17", with_cell("Forward TFLOPS", "-NaN")),
    ("C17", with_cell("out_snr", "nan", check="FAIL")),
    ("C18", with_cell("Forward TFLOPS", "inf")),
    ("C18", with_cell("Forward TFLOPS_stddev", "1e999")),
    ("C18", with_cell("out_snr", "-inf")),
    ("C18", with_cell("out_snr", "Infinity")),
    ("C19", with_cell("Forward TFLOPS", "0.0")),
    ("C19", with_cell("Backward Time (ms)", "-1.0")),
    ("C19", with_cell("Backward TFLOPS_stddev", "-0.1")),
    ("C20", with_cell("Check", "pass")),
    ("C20", with_cell("Check", "")),
    ("C21", with_cell("M", "2048")),
    ("C23", with_cell("Forward TFLOPS", repr(ROWS[0].values["Forward TFLOPS"] * 1.02))),
    ("C23", with_cell("Backward TFLOPS", repr(ROWS[0].values["Backward TFLOPS"] * 0.98))),
]


@pytest.mark.parametrize(("code", "data"), FAULTS)
def test_defect(code: str, data: bytes | str) -> None:
    assert code_of(data) == code


def test_faster_than_the_roofline() -> None:
    total = {r.label: r.values["Forward Time (ms)"] + r.values["Backward Time (ms)"] for r in ROWS}
    assert code_of(TEXT, min_time_ms=lambda label: total[label] * 1.001) == "C22"
    assert parse_csv(GEMM, TEXT.encode(), SHAPES, min_time_ms=lambda label: total[label]) == ROWS


def test_every_defect_is_tested_and_has_its_page() -> None:
    assert {code for code, _ in FAULTS} | {"C22"} == set(DEFECTS)
    rules = Path(__file__).parents[2] / "rules"
    for code, title in DEFECTS.items():
        page = (rules / f"{code}-{title.lower().replace(' ', '-')}.md").read_text()
        heads = [line for line in page.splitlines() if line.startswith("#")]
        assert heads == [f"# {code} {title}", "## What", "## Why", "## Example", "## Mend"]


def test_messages_say_where() -> None:
    with pytest.raises(CsvError, match=r"C19: .*line 2, label 'big', column 'Forward TFLOPS': '-3'") as e:
        parse_csv(GEMM, with_cell("Forward TFLOPS", "-3").encode(), SHAPES)
    assert e.value.code == "C19"
    with pytest.raises(CsvError, match="no row for 'small'"):
        parse_csv(GEMM, "\n".join(TEXT.split("\n")[:2]).encode() + b"\n", SHAPES)


def test_only_pass_rows_need_every_number() -> None:
    shape = SHAPES[0]
    blank = unmeasured_row(shape, "FAIL", {"out_snr": -3.0, "da_snr": math.nan, "db_snr": -math.inf})
    assert blank.values == {"out_snr": -3.0}
    text = format_csv(GEMM, [blank])
    assert text.split("\n")[1].endswith(",FAIL,,,,,,,-3.0,,")
    assert parse_csv(GEMM, text.encode(), [shape]) == (blank,)


@pytest.mark.parametrize(
    ("bad", "code"),
    [
        (row().model_copy(update={"values": {}}), "C15"),
        (row().model_copy(update={"values": row().values | {"energy": 1.0}}), "C07"),
        (row().model_copy(update={"values": row().values | {"out_snr": math.nan}}), "C17"),
        (row().model_copy(update={"dims": {"B": 1}}), "C21"),
        (row("two\nlines"), "C11"),
    ],
)
def test_what_cannot_be_read_is_never_written(bad: Row, code: str) -> None:
    with pytest.raises(CsvError) as e:
        format_csv(GEMM, [bad])
    assert e.value.code == code


def test_two_rows_of_one_label_are_not_written() -> None:
    with pytest.raises(CsvError, match="C13"):
        format_csv(GEMM, [row(), row()])
