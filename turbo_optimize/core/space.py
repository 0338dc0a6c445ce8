"""A kernel's declared search space over its JSON file {section: {param: value}}: what is near, what fits.

Pure: text in, values and text out; randomness only from the generator that is passed in. Below, a *config* is the
parameters of one section.
"""

from __future__ import annotations

import itertools
import json
import random
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from turbo_optimize.core.errors import ConfigError, UsageError
from turbo_optimize.core.hardware import ARCHS, Arch
from turbo_optimize.core.models import Direction, Space

Config = dict[str, int | bool | str]


def current(space: Space, text: str) -> dict[str, Config]:
    """Every declared section's config, as the JSON file has it. ConfigError where it isn't what the space declares."""
    data = _load(space, text)
    for section in space.sections:
        config = data.get(section)
        if not isinstance(config, dict):
            raise ConfigError(f"{space.file}: no section {section!r}", "an object {param: value} under each section")
        moved = {p for d in space.directions if _applies(d, section) for p in d.params}
        missing = sorted(p for p in moved if p not in config)
        if missing:
            raise ConfigError(f"{space.file}: section {section!r} lacks {', '.join(missing)}", "give it a value there")
        wrong = [k for k, v in config.items() if not isinstance(v, int | bool | str)]
        if wrong:
            raise ConfigError(f"{space.file}: {section}.{wrong[0]} is {config[wrong[0]]!r}", "an int, bool or string")
    return {section: dict(data[section]) for section in space.sections}


def _load(space: Space, text: str) -> dict[str, Any]:
    try:
        data = json.loads(text, object_pairs_hook=_unique)
    except ValueError as e:
        raise ConfigError(f"{space.file}: not JSON: {e}", "an object {section: {param: value}}") from e
    if not isinstance(data, dict):
        raise ConfigError(f"{space.file}: not an object", "an object {section: {param: value}}")
    return data


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    if len(dict(pairs)) < len(pairs):
        raise ValueError(f"a key stands twice among {[k for k, _ in pairs]}")
    return dict(pairs)


def _applies(direction: Direction, section: str) -> bool:
    return not direction.sections or section in direction.sections


def steps(space: Space, param: str, old: int | bool | str, new: int | bool | str) -> int:
    """How many declared values lie between two values of a parameter. A value outside the list is one step from its
    neighbours in size, or from every value where sizes don't compare."""
    values = list(space.params[param].values)
    if old == new:
        return 0
    if old in values:
        return abs(values.index(new) - values.index(old))
    if isinstance(old, str) or not all(isinstance(v, int) for v in values):
        return 1
    return 1 + sum(1 for v in values if min(old, new) < v < max(old, new))  # type: ignore[operator]


def distance(space: Space, a: Mapping[str, int | bool | str], b: Mapping[str, int | bool | str]) -> int:
    """Steps between two configs, summed over the space's parameters that both have."""
    return sum(steps(space, p, a[p], b[p]) for p in space.params if p in a and p in b)


def product(space: Space, config: Config, params: Iterable[str]) -> list[Config]:
    """Every config over `params`, the rest held, without the present one; in declared order."""
    names = list(params)
    combos = itertools.product(*(space.params[p].values for p in names))
    configs = [config | dict(zip(names, values, strict=True)) for values in combos]
    return [c for c in configs if c != config]


def neighbours(space: Space, config: Config, params: Iterable[str]) -> list[Config]:
    """Configs one step away: one of `params`, one declared value further or back."""
    return [c for p in params for c in product(space, config, [p]) if distance(space, config, c) == 1]


def candidates(
    space: Space,
    config: Config,
    direction: Direction,
    section: str,
    arch: str,
    rng: random.Random,
    *,
    limit: int,
) -> list[Config]:
    """At most `limit` configs of a direction that fit the architecture, nearest first; the same for the same seed.

    The direction's parameters move jointly, the others are held. Half of the places go to configs one step away, the
    rest is drawn evenly from the farther ones (a good tile may be several steps off); places that one kind can't fill
    go to the other.
    """
    if not _applies(direction, section):
        raise UsageError(f"direction {direction.name} doesn't apply to section {section}", "see the space's `sections`")
    fitting = [c for c in product(space, config, direction.params) if fits(space, c, arch) is None]
    rng.shuffle(fitting)
    near = [c for c in fitting if distance(space, config, c) == 1]
    far = [c for c in fitting if distance(space, config, c) != 1]
    take_near = max((limit + 1) // 2, limit - len(far))
    chosen = near[:take_near] + far[: limit - min(len(near), take_near)]
    return sorted(chosen, key=lambda c: distance(space, config, c))


# -- what fits -------------------------------------------------------------------------------------------------------


_TILE = {"BLOCK_M", "BLOCK_N", "BLOCK_K"}


def _gemm_tile(space: Space, config: Mapping[str, Any], arch: Arch) -> str | None:
    """A tiled matrix product: operand tiles in shared memory, an fp32 accumulator in registers."""
    warps = config.get("num_warps", 1)
    if warps > arch.max_warps:
        return f"{warps} warps of {arch.wave_size} lanes, a block has at most {arch.max_warps}"
    if not _TILE & config.keys():  # a section of another kernel: no tile, nothing more to say
        return None
    lacking = sorted((_TILE | {"num_warps", "num_stages"}) - config.keys())
    if lacking:
        raise ConfigError(f"{space.file}: fits 'gemm_tile' needs {', '.join(lacking)}", "or declare `fits: none`")
    m, n, k, stages = (config[p] for p in ("BLOCK_M", "BLOCK_N", "BLOCK_K", "num_stages"))
    held = max(1, stages - 1) if arch.copies_in_registers else stages
    shared = held * (m + n) * k * space.operand_bytes
    if shared > arch.shared_bytes:
        return f"{shared} B of shared memory, {arch.name} has {arch.shared_bytes} B a block"
    registers = m * n / (warps * arch.wave_size)
    if registers > arch.accumulator_registers:
        return f"{registers:g} accumulator registers a thread, {arch.name} has room for {arch.accumulator_registers}"
    if arch.name == "sm_90" and warps >= 4 and m < 64:
        return f"BLOCK_M {m} with {warps} warps: wgmma needs 64 rows for each group of 4 warps"
    return None


FITS: dict[str, Callable[[Space, Mapping[str, Any], Arch], str | None]] = {
    "none": lambda space, config, arch: None,
    "gemm_tile": _gemm_tile,
}


def fits(space: Space, config: Mapping[str, Any], arch: str) -> str | None:
    """Why a config can't run on `arch`, from static resources alone; None where it may. The CPU takes every config."""
    model = FITS.get(space.fits)
    if model is None:
        raise ConfigError(f"space {space.file}: fits {space.fits!r} is unknown", f"one of {', '.join(FITS)}")
    if arch not in ARCHS:
        raise UsageError(f"no architecture {arch!r}", f"one of {', '.join(ARCHS)}")
    return None if arch == "cpu" else model(space, config, ARCHS[arch])


# -- the file --------------------------------------------------------------------------------------------------------


_NEXT = re.compile(r"[\s,:]*")  # what stands between two values


def edit(space: Space, text: str, section: str, config: Mapping[str, Any]) -> str:
    """The file's new text: `config`'s parameters set in `section`, every other byte as it was, a final newline.

    The section keeps its form: one line, or one parameter a line.
    """
    data = _load(space, text)
    if section not in space.sections or not isinstance(data.get(section), dict):
        raise ConfigError(f"{space.file}: no section {section!r}", f"one of {', '.join(space.sections)}")
    unknown = [p for p in config if p not in space.params and p not in data[section]]
    if unknown:
        raise ConfigError(f"{space.file}: parameter {unknown[0]!r} isn't declared", f"one of {', '.join(space.params)}")
    start, end = _span(text, section)
    spread = "\n" in text[start:end]
    value = json.dumps(data[section] | dict(config), indent=2 if spread else None, ensure_ascii=False)
    return (text[:start] + value.replace("\n", "\n  ") + text[end:]).rstrip() + "\n"


def _span(text: str, section: str) -> tuple[int, int]:
    """Where a top-level key's value stands in the text of a JSON object that has it."""
    decoder, at, key = json.JSONDecoder(), text.index("{") + 1, None
    while key != section:
        key, at = decoder.raw_decode(text, _NEXT.match(text, at).end())  # type: ignore[union-attr]
        start = _NEXT.match(text, at).end()  # type: ignore[union-attr]
        _, at = decoder.raw_decode(text, start)
    return start, at


def diff_config(a: Mapping[str, Any], b: Mapping[str, Any]) -> str:
    """`BLOCK_M 64→128, num_warps 4→8`; a parameter that one side lacks shows as `—`."""
    names = [*a, *(k for k in b if k not in a)]
    old, new = ({n: side.get(n, "—") for n in names} for side in (a, b))
    return ", ".join(f"{n} {old[n]}→{new[n]}" for n in names if old[n] != new[n])


# -- directions ------------------------------------------------------------------------------------------------------


def identity(section: str, direction: Direction) -> str:
    """What `Proposal.direction` holds, so that a round can be recognised as tried."""
    return f"{section}/{direction.name}"


def directions_left(space: Space, tried: set[str]) -> list[tuple[str, Direction]]:
    """(section, direction) pairs not tried yet, directions in declared order, each over its sections."""
    pairs: Sequence[tuple[str, Direction]] = [
        (s, d) for d in space.directions for s in space.sections if _applies(d, s)
    ]
    return [(s, d) for s, d in pairs if identity(s, d) not in tried]
