"""manifest.yaml: written plainly, read strictly. Every defect is one line: file, key, what was expected."""

from __future__ import annotations

import difflib
from typing import TypeVar

import yaml
from pydantic import BaseModel, ValidationError

from turbo_optimize.core.errors import ConfigError
from turbo_optimize.core.models import Manifest
from turbo_optimize.core.reading import StrictLoader, by_weight, fields_at, flat, kind, yaml_defect

Model = TypeVar("Model", bound=BaseModel)


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
        data = yaml.load(text, Loader=StrictLoader)  # a SafeLoader
    except yaml.YAMLError as e:
        line, problem = yaml_defect(e)
        raise ConfigError(f"{where}: {f'line {line}: ' if line else ''}{problem}", "mend the YAML") from e
    if not isinstance(data, dict):
        raise ConfigError(f"{where}: expected a mapping of keys, got {kind(data)}")
    try:
        return model.model_validate(data)
    except ValidationError as e:
        raise _config_error(model, e, where) from e


def _config_error(model: type[BaseModel], e: ValidationError, where: str) -> ConfigError:
    """The first defect; unknown keys come first, for a misspelt key is also a missing one."""
    errors = by_weight(e)
    err = errors[0]
    loc, at = err["loc"], f"{where}: {_path(err['loc'])}"
    more = f" ({len(errors) - 1} more)" if len(errors) > 1 else ""
    if err["type"] == "extra_forbidden":
        known = fields_at(model, loc[:-1])
        near = difflib.get_close_matches(str(loc[-1]), known, n=1)
        hint = f"did you mean {near[0]}?" if near else f"known: {', '.join(known)}"
        return ConfigError(f"{at}: unknown key{more}", hint)
    expected = flat(err["msg"]).removeprefix("Value error, ").removeprefix("Input should be ")
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
    text = flat(repr(value))
    return text if len(text) <= 60 else f"{text[:57]}..."
