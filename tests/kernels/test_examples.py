"""docs/examples.md: every block runs, and every public operator has one. docs/operators.md: its table is the registry's."""

from __future__ import annotations

import ast
import csv
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from turbo_kernels import operators_doc, ops
from turbo_kernels.registry import FAMILIES

PAGE = Path(__file__).parents[2] / "docs" / "examples.md"


def blocks() -> Iterator[tuple[int, str]]:
    """(line of the page, code) of every python block."""
    text = PAGE.read_text()
    for found in re.finditer(r"^```python\n(.*?)^```$", text, re.MULTILINE | re.DOTALL):
        yield text.count("\n", 0, found.start(1)) + 1, found[1]


def called(code: str) -> set[str]:
    """The names that are called on `ops`."""
    calls = (node.func for node in ast.walk(ast.parse(code)) if isinstance(node, ast.Call))
    return {
        f.attr for f in calls if isinstance(f, ast.Attribute) and isinstance(f.value, ast.Name) and f.value.id == "ops"
    }


SETUP, *EXAMPLES = blocks()


@pytest.mark.parametrize(
    ("line", "code"), EXAMPLES, ids=[f"line {n}: {', '.join(sorted(called(c)))}" for n, c in EXAMPLES]
)
def test_example(line: int, code: str) -> None:
    namespace: dict[str, object] = {}
    exec(compile(SETUP[1], str(PAGE), "exec"), namespace)
    exec(compile("\n" * (line - 1) + code, str(PAGE), "exec"), namespace)


def test_every_operator_is_shown() -> None:
    shown = {name for _, code in EXAMPLES for name in called(code)}
    missing = [name for name in ops.__all__ if name not in shown]
    assert not missing, f"docs/examples.md has no example of {', '.join(missing)}"


def test_the_table_is_the_registrys() -> None:
    assert operators_doc.main(["--check"]) == 0, "run `python -m turbo_kernels.operators_doc`"
    rows = [r for r in operators_doc.table(set()) if r.startswith("| `")]
    assert len(rows) == sum(bool(f.architectures(v, b)) for f in FAMILIES for v in f.variants for b in f.backends)


def test_a_table_that_is_out_of_date_is_found(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = tmp_path / "page.md"
    page.write_text("\n".join(["before", *operators_doc.MARKS, "after"]))
    assert operators_doc.main([str(page), "--check"]) == 1
    assert "run `python -m" in capsys.readouterr().err
    assert operators_doc.main([str(page)]) == 0
    assert operators_doc.main([str(page), "--check"]) == 0
    text = page.read_text()
    assert text.startswith("before\n") and text.endswith("\nafter") and "| `gemm` | `gemm` | default |" in text
    page.write_text("no marks")
    assert operators_doc.main([str(page)]) == 2


def test_measured_is_what_the_suite_found_right(tmp_path: Path) -> None:
    fields = ["op", "variant", "backend", "arch", "check", "time_ms"]
    with (tmp_path / "h200.csv").open("w", newline="") as f:
        writer = csv.writer(f)
        writer.writerows([fields, ["gemm", "default", "TRITON", "sm_90", "PASS", "1.5"],
                          ["gemm", "default", "TORCH", "sm_90", "FAIL", ""]])  # fmt: skip
    known = operators_doc.measured(tmp_path)
    gemm = FAMILIES[0]
    assert operators_doc.status(gemm, "default", "TRITON", "sm_90", known) == "measured"
    assert operators_doc.status(gemm, "default", "TORCH", "sm_90", known) == "torch"
    assert operators_doc.status(gemm, "default", "TRITON", "gfx942", known) == "compiles"
    assert operators_doc.status(gemm, "default", "TRITON", "cpu", known) == "tested"
