"""One GPU a pytest-xdist worker: which, before torch looks."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

VARIABLES = ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES")


def found() -> list[str]:
    """The numbers of the GPUs whose drivers show them as devices."""
    nvidia = sorted(int(p.name.removeprefix("nvidia")) for p in Path("/dev").glob("nvidia[0-9]*"))
    amd = [p for p in Path("/sys/class/kfd/kfd/topology/nodes").glob("*/gpu_id") if p.read_text().strip() != "0"]
    return [str(i) for i in nvidia or range(len(amd))]


def pinned(environ: Mapping[str, str], gpus: list[str]) -> dict[str, str]:
    """The variables for this worker; {} without xdist, without GPUs, or where the user hides them all."""
    worker = environ.get("PYTEST_XDIST_WORKER", "")
    if not worker.startswith("gw"):
        return {}
    own = next(({v: environ[v]} for v in VARIABLES if v in environ), {})
    names = next(([x.strip() for x in value.split(",") if x.strip()] for value in own.values()), gpus)
    if not names:
        return {}
    return dict.fromkeys(own or VARIABLES[:1], names[int(worker[2:]) % len(names)])


def pin() -> None:
    os.environ.update(pinned(os.environ, found()))
