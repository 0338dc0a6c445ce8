"""The nightly file: which campaigns a night runs, and what counts as a regression.

    name: triton                      # nights of one name are compared with each other
    regression_pct: 5                 # a score lower by more than this fails the night
    timeout: 12h                      # of one campaign; then it is ended and counts as failed
    defaults: {backend: TRITON, max_rounds: 20, max_duration: 1h}
    targets:
      - {op: gemm_fp8}
      - {name: gemm-half, op: gemm, dtype: fp16, shapes: "4096x4096x4096"}

A target and `defaults` take the options of `turbo-opt start` under their own names (see FLAGS); relative paths start
at the top of the repository.
"""

from __future__ import annotations

import re
from pathlib import Path

from pydantic import Field, ValidationError, field_validator

from turbo_optimize.core.errors import ConfigError, UsageError
from turbo_optimize.core.hardware import resolve_gpu
from turbo_optimize.core.models import Frozen
from turbo_optimize.phases.define import parse_duration
from turbo_optimize.projects.loader import first_problem, read_yaml

MEND = "campaigns/nightly.yaml is an example"


class Options(Frozen):
    """Options of `turbo-opt start`; None where nothing is said."""

    op: str | None = None
    backend: str | None = None
    gpu: str | None = None
    variant: str | None = None
    dtype: str | None = None
    shapes: str | None = None
    metric: str | None = None
    target: str | None = None
    max_rounds: int | None = Field(default=None, ge=1, lt=120)
    max_duration: str | None = None
    proposer: str | None = None
    patches: str | None = None
    policy: str | None = None
    seed: int | None = None
    project: str | None = None

    @field_validator("max_duration")
    @classmethod
    def _is_duration(cls, value: str | None) -> str | None:
        if value is not None:
            _seconds(value)
        return value

    @field_validator("gpu")
    @classmethod
    def _is_gpu(cls, value: str | None) -> str | None:
        if value not in (None, "auto"):
            try:
                resolve_gpu(str(value))
            except UsageError as e:
                raise ValueError(str(e)) from None
        return value


class Target(Options):
    """One campaign of a night. `name` is its name in every report; without one it is made of the target's words."""

    name: str | None = Field(default=None, pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,80}$")

    @property
    def label(self) -> str:
        words = (self.op, self.variant, self.backend, self.gpu, self.dtype)
        made = "_".join(w for w in words if w and w != "auto").lower()
        return self.name or re.sub(r"[^a-z0-9._-]+", "-", made)

    def arguments(self) -> list[str]:
        """The command line that `turbo-opt start` shall get."""
        given = [(flag, getattr(self, field)) for field, flag in FLAGS.items()]
        return [word for flag, value in given if value is not None for word in (flag, str(value))]


# option -> flag of `turbo-opt start`
FLAGS: dict[str, str] = {field: f"--{field.replace('_', '-')}" for field in Options.model_fields}


class Night(Frozen):
    """A nightly file."""

    name: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._ -]{0,80}$")
    regression_pct: float = Field(default=5.0, gt=0, lt=100)
    timeout: str = "12h"
    defaults: Options = Options()
    targets: tuple[Target, ...] = Field(min_length=1)

    @field_validator("timeout")
    @classmethod
    def _is_duration(cls, value: str) -> str:
        _seconds(value)
        return value

    @property
    def timeout_s(self) -> float:
        return parse_duration(self.timeout)


def _seconds(text: str) -> float:
    try:
        return parse_duration(text)
    except UsageError as e:
        raise ValueError(f"{text!r}: {e.hint}") from None


def load_night(path: Path) -> Night:
    """The file with `defaults` filled into every target. ConfigError names file, key and what was expected."""
    data = read_yaml(path, f"a nightly file ({MEND})")
    try:
        night = Night.model_validate(data)
    except ValidationError as e:
        key, expected = _problem(e)
        raise ConfigError(f"{path}: {key}: {expected}", MEND) from None
    defaults = night.defaults.model_dump(exclude_none=True)
    targets = tuple(Target.model_validate(defaults | t.model_dump(exclude_none=True)) for t in night.targets)
    _check_targets(path, targets)
    return night.model_copy(update={"targets": targets})


def _problem(e: ValidationError) -> tuple[str, str]:
    key, expected = first_problem(e, Night)
    return key, "at least one target" if "at least 1 item" in expected else expected


def _check_targets(path: Path, targets: tuple[Target, ...]) -> None:
    seen: dict[str, int] = {}
    for i, target in enumerate(targets):
        for field in ("op", "backend"):
            if getattr(target, field) is None:
                raise ConfigError(f"{path}: targets.{i}.{field}: required, here or under defaults, and missing", MEND)
        if target.label.lower() in seen:
            first = seen[target.label.lower()]
            raise ConfigError(
                f"{path}: targets.{i}: is called {target.label}, as targets.{first} is", "give each a `name` of its own"
            )
        seen[target.label.lower()] = i
