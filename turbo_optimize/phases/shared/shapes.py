"""Target shapes as a person writes them: on the command line, in a file of shapes, in a project file."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from pydantic import ValidationError

from turbo_optimize.core.errors import ConfigError, UsageError
from turbo_optimize.core.models import Shape
from turbo_optimize.projects.loader import nearest, read_yaml


def parse_shapes(text: str, dims: Sequence[str]) -> tuple[Shape, ...]:
    """`4096x4096x4096,…`, or a YAML file: a list of such strings, of integer lists, or of {M: …} mappings."""
    path = Path(text)
    if path.suffix in {".yaml", ".yml", ".json"} or path.is_file():
        return _unique(_from_file(path, dims), str(path))
    return _unique(tuple(_entry(part.strip(), dims, "--shapes") for part in text.split(",")), "--shapes")


def project_shapes(own: Sequence[Sequence[int]], dims: Sequence[str], where: str) -> tuple[Shape, ...]:
    """A project file's own shapes; `where` names the file and the key."""
    return _unique(tuple(_shape(values, dims, f"{where}[{i}]") for i, values in enumerate(own)), where)


def _from_file(path: Path, dims: Sequence[str]) -> tuple[Shape, ...]:
    data = read_yaml(path, "a mapping with the key `shapes`")
    if set(data) != {"shapes"} or not isinstance(data["shapes"], list) or not data["shapes"]:
        raise ConfigError(
            f"{path}: {', '.join(map(str, data)) or 'no key'}", "expected the one key `shapes`, a list of at least one"
        )
    return tuple(_entry(entry, dims, f"{path}: shapes[{i}]") for i, entry in enumerate(data["shapes"]))


def _unique(shapes: tuple[Shape, ...], where: str) -> tuple[Shape, ...]:
    labels = [s.label for s in shapes]
    twice = next((x for x in labels if labels.count(x) > 1), None)
    if twice:
        raise UsageError(f"{where} names {twice} twice", "a shape counts once")
    return shapes


def _form(dims: Sequence[str]) -> str:
    """How a shape is written: `MxNxK or BxMxNxK`; a leading B may be left out."""
    forms = [dims[1:], dims] if dims[0] == "B" else [dims]
    return " or ".join("x".join(f) for f in forms)


def _shape(values: Sequence[int], dims: Sequence[str], where: str) -> Shape:
    if len(values) == len(dims) - 1 and dims[0] == "B":
        values = (1, *values)  # a plain GEMM or attention without a batch
    if len(values) != len(dims):
        raise UsageError(
            f"{where}: shape {'x'.join(map(str, values))} has {len(values)} dimensions", f"expected {_form(dims)}"
        )
    named = dict(zip(dims, values, strict=True))
    label = "x".join(str(v) for k, v in named.items() if k != "B" or v != 1)
    try:
        return Shape(label=label, dims=named)
    except ValidationError as e:
        raise UsageError(f"{where}: {e.errors()[0]['msg'].removeprefix('Value error, ')}") from None


def _entry(entry: object, dims: Sequence[str], where: str) -> Shape:
    if isinstance(entry, str):
        if not re.fullmatch(r"-?\d+(x-?\d+)*", entry, re.ASCII):
            raise UsageError(f"{where}: {entry!r} is not a shape", f"write {_form(dims)}, like 4096x4096x4096")
        return _shape([int(v) for v in entry.split("x")], dims, where)
    if isinstance(entry, dict):
        unknown = set(entry) - set(dims)
        if unknown:
            name = str(sorted(unknown, key=str)[0])
            raise UsageError(f"{where}: {name}: no such dimension{nearest(name, dims)}")
        missing = [d for d in dims if d not in entry and d != "B"]
        if missing:
            raise UsageError(f"{where}: {missing[0]} is missing", f"expected {', '.join(dims)}")
        entry = [entry.get(d, 1) for d in dims]
    if isinstance(entry, list) and all(isinstance(v, int) and not isinstance(v, bool) for v in entry):
        return _shape(entry, dims, where)
    raise UsageError(f"{where}: {entry!r} is not a shape", f"expected integers for {', '.join(dims)}")
