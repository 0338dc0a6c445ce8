"""Imports point one way, and the two packages never meet."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
# Room -> rooms it may import (beside itself). Order of ARCHITECTURE: core, effects, {…}, campaign, phases, engine, {…}.
MAY: dict[str, set[str]] = {
    "core": set(),
    "data": set(),
    "effects": {"core"},
    "proposers": {"core", "effects"},
    "projects": {"core", "effects"},
    "reports": {"core", "effects", "data"},
    "campaign": {"core", "effects", "projects", "reports"},
    "phases": {"core", "effects", "proposers", "projects", "reports", "campaign", "data"},
    "engine": {"core", "effects", "proposers", "projects", "reports", "campaign", "phases", "data"},
    "verify": {"core", "effects", "proposers", "projects", "reports", "campaign", "phases", "engine", "data"},
}
TOP = {"core", "effects", "proposers", "projects", "reports", "campaign", "phases", "engine", "verify", "data"}
MAY |= {"simulation": {"core"}, "doctor": TOP, "fleet": TOP, "cli": TOP | {"fleet", "doctor"}}
IMPURE = {"os", "subprocess", "time", "pathlib", "shutil", "socket", "tempfile", "datetime", "secrets", "git", "torch"}


def imports(path: Path) -> list[tuple[str, bool]]:
    """Every imported module of a file, and whether at module level."""
    tree = ast.parse(path.read_text())
    top = set(
        ast.walk(ast.Module(body=[n for n in tree.body if isinstance(n, ast.Import | ast.ImportFrom)], type_ignores=[]))
    )
    out = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            out += [(a.name, node in top) for a in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            out.append((node.module, node in top))
    return out


def modules() -> list[Path]:
    return sorted((ROOT / "turbo_optimize").rglob("*.py"))


def room(module: str) -> str:
    return module.split(".")[1] if "." in module else ""


@pytest.mark.parametrize("path", modules(), ids=lambda p: str(p.relative_to(ROOT)))
def test_imports_point_one_way(path: Path) -> None:
    own = path.relative_to(ROOT / "turbo_optimize").parts[0].removesuffix(".py")
    if own == "__init__":
        return
    for module, _ in imports(path):
        assert module.split(".")[0] != "turbo_kernels", f"{path} imports the operator library"
        if module.startswith("turbo_optimize."):
            assert room(module) == own or room(module) in MAY[own], f"{path}: {own} must not import {module}"


@pytest.mark.parametrize("path", sorted((ROOT / "turbo_optimize/core").glob("*.py")), ids=lambda p: p.name)
def test_core_is_pure(path: Path) -> None:
    found = {m.split(".")[0] for m, _ in imports(path)} & IMPURE
    assert not found, f"{path} reaches outside: {found}"


def test_runner_never_imports_torch() -> None:
    for path in modules():
        heavy = [m for m, _ in imports(path) if m.split(".")[0] in {"torch", "triton"}]
        assert not heavy, f"{path} imports {heavy}"


def test_heavy_modules_are_imported_late() -> None:
    for path in modules():
        early = [m for m, at_top in imports(path) if at_top and m.split(".")[0] in {"pandas", "git"}]
        assert not early, f"{path} imports {early} at the top"


def test_library_never_imports_the_runner() -> None:
    for path in (ROOT / "kernels").rglob("*.py"):
        assert not [m for m, _ in imports(path) if m.startswith("turbo_optimize")], path


def test_phases_never_import_each_other() -> None:
    phases = {p.stem for p in (ROOT / "turbo_optimize/phases").glob("*.py")} - {"__init__"}
    for path in (ROOT / "turbo_optimize/phases").rglob("*.py"):
        if path.name == "__init__.py":
            continue
        others = {f"turbo_optimize.phases.{p}" for p in phases if p != path.stem}
        assert not [m for m, _ in imports(path) if m in others], path
