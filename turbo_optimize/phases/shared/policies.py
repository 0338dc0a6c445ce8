"""Which policy a campaign decides by: a shipped one, the project's overrides on it, a file's overrides on those."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from turbo_optimize.core.errors import ConfigError, UsageError
from turbo_optimize.core.models import POLICIES, Policy
from turbo_optimize.projects.loader import nearest, read_yaml, validated


def choose_policy(given: str | None, gpu: str, own: dict[str, Any], where: str) -> Policy:
    """The policy that `--policy` names (a shipped one, or a file), else the GPU's default. `own` are the overrides of
    the project file, at `where`; they lie below a flag's."""
    if given is not None and given not in POLICIES and not Path(given).is_file():
        hint = nearest(given, POLICIES).removeprefix("; ")
        raise UsageError(f"unknown policy {given!r}", f"{hint} (a YAML file of overrides is a policy too)")
    name = given if given in POLICIES else "cpu" if gpu == "cpu" else "standard"
    base = validated(Policy, POLICIES[name].model_dump() | own, where)
    return base if given in (None, name) else load_policy(Path(str(given)), base)


def load_policy(path: Path, base: Policy) -> Policy:
    """Overrides from a file on a policy; `base: NAME` starts from a shipped one."""
    data = dict(read_yaml(path, "a mapping of policy fields"))
    if "base" in data:
        name = str(data.pop("base"))
        if name not in POLICIES:
            raise ConfigError(f"{path}: base: no policy {name!r}{nearest(name, POLICIES)}")
        base = POLICIES[name]
    return validated(Policy, base.model_dump() | {"name": path.stem} | data, str(path))
