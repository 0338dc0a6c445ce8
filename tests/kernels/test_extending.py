"""A new operator is a folder and a line, a new backend a file and a line: both are added to a copy of the library here.

And docs/dispatch.md, which shows how an operator is wired, runs.
"""

from __future__ import annotations

import filecmp
import importlib.util
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from turbo_kernels import backends

ROOT = Path(__file__).resolve().parents[2]
DOC = (ROOT / "docs" / "dispatch.md").read_text(encoding="utf-8")

TOYS = Path(__file__).parent / "extending"


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """The library and what its tests share, as they stand."""
    ignore = shutil.ignore_patterns("__pycache__")
    shutil.copytree(ROOT / "kernels", tmp_path / "kernels", ignore=ignore)
    (tmp_path / "tests").mkdir()
    for name in ("conftest.py", "fp8_code_kernel.py", "gpu_pinning.py", "kernel_helpers.py"):
        shutil.copy(ROOT / "tests" / "kernels" / name, tmp_path / "tests")
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    return tmp_path


def add_line(path: Path, after: str, line: str) -> None:
    """Puts a line behind the last one that matches, indented like it."""
    lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
    at = max(i for i, text in enumerate(lines) if re.match(rf"\s+{after}", text))
    indent = lines[at][: len(lines[at]) - len(lines[at].lstrip())]
    path.write_text("".join([*lines[: at + 1], f"{indent}{line}\n", *lines[at + 1 :]]), encoding="utf-8")


def touched(copy: Path) -> tuple[set[str], dict[str, int]]:
    """(the new files, the lines by which each changed file has grown) beside what the repository has."""
    new, changed = set(), {}
    for path in sorted(p for p in (copy / "kernels").rglob("*") if p.is_file()):
        name = str(path.relative_to(copy / "kernels" / "turbo_kernels"))
        mine = ROOT / "kernels" / "turbo_kernels" / name
        if not mine.exists():
            new.add(name)
        elif not filecmp.cmp(path, mine, shallow=False):
            old, now = (p.read_text(encoding="utf-8").splitlines() for p in (mine, path))
            assert [line for line in now if line in old] == old, f"{name} has lost lines"
            changed[name] = len(now) - len(old)
    return new, changed


def run_tests(copy: Path, tests: str) -> None:
    shutil.copy(TOYS / tests, copy / "tests" / "test_toy.py")
    environment = {**os.environ, "PYTHONPATH": str(copy / "kernels"), "PYTHONDONTWRITEBYTECODE": "1"}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(copy / "tests")]
    done = subprocess.run(command, cwd=copy, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_new_operator_is_a_folder_and_a_line(copy: Path) -> None:
    library = copy / "kernels" / "turbo_kernels"
    shutil.copytree(TOYS / "toy_square", library / "toy_square", ignore=shutil.ignore_patterns("__pycache__"))
    add_line(library / "registry.py", '"[a-z0-9_]+",$', '"toy_square",')
    files = {f"toy_square/{path.name}" for path in (TOYS / "toy_square").glob("*.py")}
    assert touched(copy) == (files, {"registry.py": 1})
    run_tests(copy, "check_toy_square.py")


def test_a_new_backend_is_a_file_and_a_line(copy: Path) -> None:
    family = copy / "kernels" / "turbo_kernels" / "gemm"
    shutil.copy(TOYS / "toy_backend.py", family)
    add_line(family / "backends.py", r'Backend\("TORCH", ', 'Backend.lazy("TOY", "turbo_kernels.gemm.toy_backend"),')
    assert touched(copy) == ({"gemm/toy_backend.py"}, {"gemm/backends.py": 1})
    run_tests(copy, "check_toy_backend.py")


# What docs/dispatch.md shows

SNIPPETS = re.findall(r"^```python\n(.*?)^```", DOC, re.M | re.S)
(CPP,) = re.findall(r"^```cpp\n(.*?)^```", DOC, re.M | re.S)
NAMES = ["choosing", "dispatcher", "cpp", "triton"]
MARKED = [pytest.param(name, marks=[pytest.mark.slow] if name == "cpp" else []) for name in NAMES]


@pytest.mark.parametrize("name", MARKED)
def test_dispatch_docs(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert len(SNIPPETS) == len(NAMES)
    if name == "cpp":
        missing = [tool for tool in ("c++", "ninja") if shutil.which(tool) is None]
        if missing:
            pytest.skip(f"the C++ example is compiled, and there is no {' and no '.join(missing)}")
        (tmp_path / "scale_rows.cpp").write_text(CPP)
        monkeypatch.setenv("TORCH_EXTENSIONS_DIR", str(tmp_path / "built"))
    backends.reset()
    path = tmp_path / f"dispatch_docs_{name}.py"
    path.write_text(SNIPPETS[NAMES.index(name)])
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None and spec.loader is not None
    spec.loader.exec_module(importlib.util.module_from_spec(spec))
    assert not backends.MANAGER._backends.get(("", "")), "the example leaves a setting behind"


def test_the_docs_name_every_variable_and_backend() -> None:
    for name in (*(f"TURBO_{group}_BACKEND" for group in backends.GROUPS), "TURBO_AUTO_TUNE", "TURBO_CACHE_DIR",
                 "TURBO_LOG_LEVEL", *backends.BACKENDS, *backends.PRECISIONS):  # fmt: skip
        assert name in DOC, name
