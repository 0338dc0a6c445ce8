"""manifest.yaml: written plainly, read strictly. Every defect is one line: file, key, what was expected."""

from __future__ import annotations

import difflib
from collections.abc import Hashable
from typing import Any, TypeVar, get_args

import yaml
from pydantic import BaseModel, ValidationError

from turbo_optimize.core.errors import ConfigError
from turbo_optimize.core.models import Manifest

Model = TypeVar("Model", bound=BaseModel)


class _Loader(yaml.SafeLoader):
    """SafeLoader that refuses a key given twice, where YAML's last one would win unseen."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        seen: set[Hashable] = set()
        for key_node, _ in node.value:
            key = self.construct_object(key_node, deep=True)
            if not isinstance(key, Hashable):
                raise yaml.constructor.ConstructorError(None, None, "a key must be a word", key_node.start_mark)
            if key in seen:
                raise yaml.constructor.ConstructorError(None, None, f"key {key!r} stands twice", key_node.start_mark)
            seen.add(key)
        return super().construct_mapping(node, deep)


def manifest_yaml(manifest: Manifest) -> str:
    """The manifest in the model's key order, `sources` last."""
    data = manifest.model_dump(mode="json")
    data["sources"] = data.pop("sources")
    plain = "\x85" not in manifest.model_dump_json()  # PyYAML writes this one line end unescaped and reads a space
    return yaml.safe_dump(data, sort_keys=False, allow_unicode=plain, width=120)


def load_manifest(text: str, where: str) -> Manifest:
    """The inverse of `manifest_yaml`; `where` is the file's name for the error."""
    return load_model(Manifest, text, where)


def load_model(model: type[Model], text: str, where: str) -> Model:
    """YAML text as a model. Raises ConfigError of one line: `where: key: expected …`."""
    try:
        data = yaml.load(text, Loader=_Loader)  # a SafeLoader
    except yaml.YAMLError as e:
        raise ConfigError(f"{where}: {_yaml_defect(e)}", "mend the YAML") from e
    if not isinstance(data, dict):
        raise ConfigError(f"{where}: expected a mapping of keys, got {_kind(data)}")
    try:
        return model.model_validate(data)
    except ValidationError as e:
        raise _config_error(model, e, where) from e


def _yaml_defect(e: yaml.YAMLError) -> str:
    mark = getattr(e, "problem_mark", None) or getattr(e, "context_mark", None)
    problem = getattr(e, "problem", None) or str(e)
    return f"line {mark.line + 1}: {_flat(problem)}" if mark else _flat(problem)


def _flat(text: str) -> str:
    return " ".join(text.split())


def _kind(value: object) -> str:
    return "nothing" if value is None else type(value).__name__


def _config_error(model: type[BaseModel], e: ValidationError, where: str) -> ConfigError:
    """The first defect; unknown keys come first, for a misspelt key is also a missing one."""
    errors = sorted(e.errors(include_url=False), key=lambda err: err["type"] != "extra_forbidden")
    err = errors[0]
    loc, at = err["loc"], f"{where}: {_path(err['loc'])}"
    more = f" ({len(errors) - 1} more)" if len(errors) > 1 else ""
    if err["type"] == "extra_forbidden":
        known = _fields(model, loc[:-1])
        near = difflib.get_close_matches(str(loc[-1]), known, n=1)
        hint = f"did you mean {near[0]}?" if near else f"known: {', '.join(known)}"
        return ConfigError(f"{at}: unknown key{more}", hint)
    expected = _flat(err["msg"]).removeprefix("Value error, ").removeprefix("Input should be ")
    if err["type"] == "missing":
        return ConfigError(f"{at}: expected a value, the key is missing{more}")
    if err["type"] == "value_error":
        return ConfigError(f"{at}: {expected}{more}")
    return ConfigError(f"{at}: expected {expected}, got {_shown(err['input'])}{more}")


def _path(loc: tuple[int | str, ...]) -> str:
    """("target_shapes", 0, "dims") -> target_shapes[0].dims"""
    out = ""
    for part in loc:
        out += f"[{part}]" if isinstance(part, int) else f".{part}" if out else part
    return out


def _shown(value: object) -> str:
    text = _flat(repr(value))
    return text if len(text) <= 60 else f"{text[:57]}..."


def _fields(model: type[BaseModel], loc: tuple[int | str, ...]) -> list[str]:
    """The known keys at `loc`: walks from the model through the fields' own models."""
    here: type[BaseModel] | None = model
    for part in loc:
        field = here.model_fields.get(part) if here and isinstance(part, str) else None
        if field is not None:
            here = _model_in(field.annotation)
    return list(here.model_fields) if here else []


def _model_in(annotation: Any) -> type[BaseModel] | None:
    """The model within an annotation such as `tuple[Shape, ...]` or `dict[str, Op]`."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return next((m for a in get_args(annotation) if (m := _model_in(a))), None)
