"""Builds that must not ship, compiled: a script, because TRITON_INTERPRET must not be set in its process.

Prints JSON: what is found wrong with each, by its label, and what a second AMD architecture in one process is told.
"""

from __future__ import annotations

import dataclasses
import json
from typing import Any

from turbo_kernels import aot
from turbo_kernels.builds import Build
from turbo_kernels.gemm.builds import builds


def shipped(arch: str) -> Build:
    return next(iter(builds(arch)))


def changed(
    build: Build, label: str, num_warps: int = 4, num_stages: int = 2, matrix: str = "bf16", **tile: Any
) -> Build:
    options = {"num_warps": num_warps, "num_stages": num_stages}
    return dataclasses.replace(
        build, label=label, constants={**build.constants, **tile}, options=options, matrix=matrix
    )


def main() -> None:
    nvidia, amd = shipped("sm_90"), shipped("gfx942")
    cases = [
        ("sm_90", changed(nvidia, "spills", BLOCK_M=256, BLOCK_N=256, BLOCK_K=64)),
        ("sm_90", changed(nvidia, "shared", 8, 6, BLOCK_M=128, BLOCK_N=256, BLOCK_K=64)),
        ("sm_90", changed(nvidia, "other operands", matrix="fp8")),
        ("gfx942", changed(amd, "AMD spills", 1, BLOCK_M=256, BLOCK_N=128)),
        ("gfx942", changed(amd, "LDS", 8, 3, BLOCK_M=256, BLOCK_N=256, BLOCK_K=64)),
        ("gfx942", changed(amd, "other AMD operands", matrix="fp8")),
    ]
    found = {build.label: aot.problems(build, arch, aot.compiled(build, arch)) for arch, build in cases}
    for label, arch, build in (
        ("a second architecture", "gfx950", shipped("gfx950")),
        ("no such argument", "sm_90", dataclasses.replace(nvidia, constants={**nvidia.constants, "TURBO": 1})),
    ):
        try:
            aot.compiled(build, arch)
        except (RuntimeError, ValueError) as e:
            found[label] = [str(e)]
    print(json.dumps(found))


if __name__ == "__main__":
    main()
