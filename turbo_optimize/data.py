"""Where the files that travel with the product lie: beside the package in a checkout, inside it in a wheel."""

from __future__ import annotations

from pathlib import Path

_PACKAGE = Path(__file__).resolve().parent


def data_path(name: str) -> Path:
    """`rules`, `templates`, `project.yaml`, `SHAPES.yaml`: the checkout's own, else the wheel's copy."""
    packed = _PACKAGE / "_data" / name
    return packed if packed.exists() else _PACKAGE.parent / name
