"""What the device said of itself while a round was timed: clock, temperature, power, what slowed it down.

It stands in samples.csv alone, not in the journal: where that file isn't, nothing is told.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from turbo_optimize.core.errors import TurboOptError
from turbo_optimize.core.models import Sample
from turbo_optimize.core.state import Round
from turbo_optimize.effects.layout import Layout, key_of
from turbo_optimize.effects.replay import parse_samples

UNITS = {"clock_mhz": "MHz", "temp_c": "°C", "power_w": "W"}
WORDS = {"clock_mhz": "clock", "temp_c": "temperature", "power_w": "power"}


def device_facts(samples: Sequence[Sample]) -> dict[str, Any]:
    """{blocks, clock_mhz: {mean, low, high}, temp_c, power_w, throttle: {reason: blocks}}; empty where nothing was read."""
    found: dict[str, Any] = {}
    for name in UNITS:
        if values := [v for s in samples if (v := getattr(s, name)) is not None]:
            found[name] = {"mean": fmean(values), "low": min(values), "high": max(values)}
    slowed: dict[str, int] = {}
    for reason in (r for s in samples if s.throttle for r in s.throttle.split(", ")):
        slowed[reason] = slowed.get(reason, 0) + 1
    if slowed:
        found["throttle"] = slowed
    return {"blocks": len(samples), **found} if found else {}


def read_device(root: Path, r: Round) -> dict[str, Any]:
    """`device_facts` of a round's journaled sessions; {"problem": text} where samples.csv is there but can't be read."""
    path = Layout(root).samples(key_of(r.number))
    try:
        samples = parse_samples(path.read_text(encoding="utf-8"), path.name)
    except FileNotFoundError:
        return {}
    except TurboOptError as e:
        return {"problem": e.message}
    except (OSError, UnicodeDecodeError) as e:
        return {"problem": f"{path.name} can't be read ({getattr(e, 'strerror', None) or 'it is no text'})"}
    sessions = {(s.level, s.index) for s in r.sessions}
    return device_facts([s for s in samples if r.number == 1 or (s.level, s.session) in sessions])


def device_lines(facts: Mapping[str, Any]) -> Iterable[str]:
    """The facts in words; nothing where there are none."""
    if "problem" in facts:
        yield f"Clock, temperature and power are not known: {facts['problem']}"
        return
    told = [
        f"{WORDS[k]} {facts[k]['mean']:.0f} {unit} ({facts[k]['low']:.0f} … {facts[k]['high']:.0f})"
        for k, unit in UNITS.items() if k in facts
    ]  # fmt: skip
    if told:
        yield f"Device over {facts['blocks']} blocks, mean and range: {', '.join(told)}"
    if slowed := facts.get("throttle"):
        reasons = ", ".join(f"{reason} in {n}" for reason, n in slowed.items())
        yield f"The driver says: {reasons} of {facts['blocks']} blocks"
