"""Every rule code has a page, every page a code, and every code that the source names is one of them."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from turbo_optimize.cli.rules import page_name
from turbo_optimize.core.rules import RULES, catalog

TOP = Path(__file__).parents[1]
PAGES = TOP / "rules"
SECTIONS = ["What", "Why", "Example", "Mend"]


def test_codes_and_pages_are_the_same():
    assert {p.name for p in PAGES.glob("*")} == {page_name(code, title) for code, title in catalog().items()}


@pytest.mark.parametrize(("code", "title"), catalog().items())
def test_a_page_has_its_title_and_its_sections(code: str, title: str):
    text = (PAGES / page_name(code, title)).read_text(encoding="utf-8")
    lines = re.sub(r"```.*?```", "…", text, flags=re.DOTALL).splitlines()
    assert lines[0] == f"# {code} {title}"
    heads = [i for i, line in enumerate(lines) if line.startswith("#")]
    assert [lines[i] for i in heads[1:]] == [f"## {s}" for s in SECTIONS]
    for start, end in zip(heads[1:], [*heads[2:], len(lines)], strict=True):
        assert any(x.strip() for x in lines[start + 1 : end]), f"{lines[start]} is empty"
    assert text.endswith("\n")


def test_codes_in_the_source_are_rules():
    """Strings that look like a code of RULES' kinds, wherever the source has one."""
    named: dict[str, Path] = {}
    for path in (TOP / "turbo_optimize").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Constant) and re.fullmatch(r"[GD]\d\d|[TS]\d", str(node.value)):
                named[str(node.value)] = path
    unknown = {c: str(p) for c, p in named.items() if c not in RULES}
    assert not unknown
    assert set(RULES) <= set(named)
