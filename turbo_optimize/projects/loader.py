"""Project files: what may be optimized here. The in-tree library is `project.yaml` like any other repository."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from pathlib import Path
from typing import TypeVar

import yaml
from pydantic import BaseModel, ValidationError

from turbo_optimize.core.errors import ConfigError, UsageError
from turbo_optimize.core.models import Backend, Op, Project
from turbo_optimize.core.reading import StrictLoader, by_weight, fields_at, kind, yaml_defect

Model = TypeVar("Model", bound=BaseModel)
NAMES = ("project.yaml", "turbo-opt.yaml")


def read_yaml(path: Path, expected: str) -> dict[object, object]:
    """A mapping from a YAML file. ConfigError names file, line and what was expected."""
    try:
        data = yaml.load(path.read_text(encoding="utf-8"), Loader=StrictLoader)  # a SafeLoader
    except FileNotFoundError:
        raise ConfigError(f"{path}: no such file", f"expected {expected}") from None
    except (OSError, UnicodeDecodeError) as e:
        raise ConfigError(f"{path}: can't be read ({e})", f"expected {expected}") from None
    except yaml.YAMLError as e:
        line, problem = yaml_defect(e)
        where = f"{path} line {line}" if line else str(path)
        what = problem if isinstance(e, yaml.constructor.ConstructorError) else f"not YAML ({problem})"
        raise ConfigError(f"{where}: {what}", f"expected {expected}") from None
    if not isinstance(data, dict):
        found = "nothing in it" if data is None else f"a {kind(data)} at the top"
        raise ConfigError(f"{path}: {found}", f"expected {expected}")
    return data


def validated(model: type[Model], data: object, where: str, hint: str = "") -> Model:
    """The data as a model. ConfigError names `where`, the key and what was expected."""
    try:
        return model.model_validate(data)
    except ValidationError as e:
        key, expected = first_problem(e, model)
        raise ConfigError(f"{where}: {key}: {expected}", hint) from None


def first_problem(e: ValidationError, model: type[BaseModel]) -> tuple[str, str]:
    """(key, what was expected) of a validation error's weightiest entry; an unknown key gets its nearest name."""
    error = by_weight(e)[0]
    key = ".".join(str(x) for x in error["loc"]) or "the file"
    if error["type"] == "extra_forbidden":
        return key, f"no such key{nearest(str(error['loc'][-1]), fields_at(model, error['loc'][:-1]))}"
    if error["type"] == "missing":
        return key, "required, and missing"
    message = error["msg"].removeprefix("Value error, ")
    message = message[0].lower() + message[1:]
    return key, message.replace("tuple", "list").replace("dictionary", "mapping")  # YAML's words


def nearest(name: str, known: Iterable[str]) -> str:
    """`; did you mean …?` or the list of what there is."""
    known = list(known)
    lower = {k.lower(): k for k in known}
    found = difflib.get_close_matches(name.lower(), lower, n=2, cutoff=0.5)
    return f"; did you mean {' or '.join(lower[f] for f in found)}?" if found else f"; there is {', '.join(known)}"


def load_project(path: Path) -> Project:
    data = read_yaml(path, "a project file (docs/projects.md)")
    return validated(Project, data, str(path), "docs/projects.md has every key")


def find_project(top: Path, given: Path | None) -> Path:
    """The project file: the one given, else the repository's own."""
    if given:
        return given
    for name in NAMES:
        if (top / name).is_file():
            return top / name
    raise ConfigError(
        f"{top} has no project.yaml",
        "write one (docs/projects.md) or name it with --project; it tells what may be edited",
    )


def pick_op(project: Project, name: str) -> Op:
    if name not in project.ops:
        raise UsageError(f"unknown op {name!r}", nearest(name, project.ops).removeprefix("; "))
    return project.ops[name]


def pick_backend(op: Op, op_name: str, name: str, gpu: str) -> tuple[str, Backend]:
    """The backend by name, any case; UsageError where it isn't, or why it isn't here."""
    by_upper = {b.upper(): b for b in op.backends}
    if name.upper() not in by_upper:
        raise UsageError(f"unknown backend {name!r} for {op_name}", nearest(name, op.backends).removeprefix("; "))
    key = by_upper[name.upper()]
    backend = op.backends[key]
    if reason := unavailable(backend, gpu):
        raise UsageError(
            f"backend {key} of {op_name} is not available on {gpu}: {reason}", "`turbo-opt ops` shows what is"
        )
    return key, backend


def unavailable(backend: Backend, gpu: str) -> str | None:
    """Why a backend can't run here, or None."""
    if backend.unavailable:
        return backend.unavailable
    return None if gpu in backend.gpus else f"it is for {', '.join(backend.gpus)}"


def pick_one(kind: str, given: str | None, known: tuple[str, ...], op_name: str) -> str:
    """A variant or dtype: the given one, else the op's first."""
    if given is None:
        return known[0]
    if given not in known:
        raise UsageError(f"unknown {kind} {given!r} for {op_name}", nearest(given, known).removeprefix("; "))
    return given
