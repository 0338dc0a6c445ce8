"""Launch configurations: committed JSON a family and architecture, `<family>/configs/<arch>.json`.

The form is {section: {param: value}}; every section and parameter of the family's SPEC must be there with a legal
value, and nothing else may.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from turbo_kernels.registry import family

Config = dict[str, dict[str, Any]]

# Process-wide and not a context variable: autograd runs the backward pass in threads of its own.
_OVERRIDES: dict[tuple[str, str], dict[str, Any]] = {}


class ConfigError(ValueError):
    """A configuration that isn't what the family declares; names file or section, key and what is legal."""


def validate(name: str, config: Mapping[str, Any], where: str) -> None:
    """ConfigError unless `config` holds exactly the family's sections and parameters with legal values."""
    sections = family(name).sections
    _same_keys(where, "section", config, sections)
    for section, params in sections.items():
        place = f"{where}: {section}"
        if not isinstance(config[section], Mapping):
            raise ConfigError(f"{place}: expected {{param: value}}, found {config[section]!r}")
        _same_keys(place, "parameter", config[section], params)
        for key, legal in params.items():
            value = config[section][key]
            if not any(type(value) is type(v) and value == v for v in legal):
                raise ConfigError(f"{place}.{key} = {value!r}: legal are {', '.join(map(str, legal))}")


def _same_keys(where: str, what: str, found: Mapping[str, Any], expected: Mapping[str, Any]) -> None:
    for key in found:
        if key not in expected:
            raise ConfigError(f"{where}: unknown {what} {key!r}; there are {', '.join(expected)}")
    for key in expected:
        if key not in found:
            raise ConfigError(f"{where}: {what} {key!r} is missing")


def path(name: str, arch: str) -> Path:
    return Path(__file__).parent / name / "configs" / f"{arch}.json"


@functools.cache
def read(name: str, arch: str) -> Config:
    """The committed configuration of one architecture, validated. ConfigError names the file."""
    file = path(name, arch)
    try:
        config = json.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ConfigError(f"{file}: no configuration of {name} for {arch}") from None
    except json.JSONDecodeError as e:
        raise ConfigError(f"{file}: not JSON: {e}") from None
    if not isinstance(config, dict):
        raise ConfigError(f"{file}: expected {{section: {{param: value}}}}")
    validate(name, config, str(file))
    return config


def load(name: str) -> Config:
    """The configuration in force here: the detected architecture's file, with what `override` put over it."""
    from turbo_kernels.arch import detect

    return {section: _merged(name, section, params) for section, params in read(name, detect()).items()}


@functools.cache
def section(name: str, section: str) -> Mapping[str, Any]:
    """One section of `load`, cached: this is what a launch reads."""
    return load(name)[section]


def _merged(name: str, section: str, params: dict[str, Any]) -> dict[str, Any]:
    return {**params, **_OVERRIDES.get((name, section), {})}


@contextmanager
def override(name: str, section_name: str, params: Mapping[str, Any]) -> Iterator[None]:
    """Inside, the section's parameters are replaced by `params` (the others stay). ConfigError as for a file."""
    config = load(name)
    where = f"override of {name}"
    validate(name, {**config, section_name: {**config.get(section_name, {}), **params}}, where)
    key = (name, section_name)
    before = _OVERRIDES.get(key)
    _OVERRIDES[key] = {**(before or {}), **params}
    section.cache_clear()
    try:
        yield
    finally:
        if before is None:
            del _OVERRIDES[key]
        else:
            _OVERRIDES[key] = before
        section.cache_clear()
