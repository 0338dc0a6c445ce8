"""Are both operators right on this GPU, and roughly how fast? A script for a GPU machine; about a minute.

    python3 tests/kernels/gpu_correctness.py [--quick]

Every configuration runs on every shape, odd ones included, and is judged as in a campaign; then a training step is
timed beside torch's bf16 one. Exits 1 on any failure, 2 without a GPU.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F

sys.path.insert(0, str(Path(__file__).parents[2] / "kernels"))

from turbo_kernels import arch, case_kit, ops
from turbo_kernels.config import load, override
from turbo_kernels.gemm import cases as gemm_cases
from turbo_kernels.gemm_fp8 import cases as fp8_cases

Config = dict[str, Any]


def tile(m: int, n: int, k: int, warps: int, stages: int, tma: bool | None = None) -> Config:
    config: Config = {"BLOCK_M": m, "BLOCK_N": n, "BLOCK_K": k, "num_warps": warps, "num_stages": stages, "GROUP_M": 8}
    return config if tma is None else config | {"PERSISTENT_TMA": tma}


# AMD's stages are one buffer fewer, and gfx942 has 64 KiB of LDS.
FP8_CONFIGS: dict[str, list[Config]] = {
    "sm_90": [
        {}, tile(128, 128, 128, 8, 3, False), tile(128, 128, 128, 8, 4, False), tile(128, 256, 128, 8, 3, False),
        tile(128, 128, 128, 8, 4, True), tile(128, 256, 128, 8, 3, True), tile(64, 128, 128, 4, 4, True),
    ],
    "gfx942": [{}, tile(128, 128, 128, 8, 2, False), tile(256, 128, 64, 8, 2, False), tile(128, 128, 128, 8, 2, True)],
    "gfx950": [{}, tile(128, 128, 128, 8, 3, False), tile(128, 256, 128, 8, 2, False), tile(128, 128, 128, 8, 2, True)],
}  # fmt: skip
GEMM_CONFIGS: dict[str, list[Config]] = {
    "sm_90": [{}, tile(128, 128, 64, 8, 3), tile(128, 256, 64, 8, 3)],
    "gfx942": [{}, tile(128, 128, 64, 8, 2)],
    "gfx950": [{}, tile(256, 256, 64, 8, 2)],
}
BIG = (4096, 4096, 4096)
ODD = [(130, 72, 200), (1, 127, 129), (1000, 1001, 777)]
WIDE = (2048, 6144, 4096)


def using(op: str, config: Config) -> ExitStack:
    stack = ExitStack()
    for section, present in load(op).items():
        stack.enter_context(
            override(op, section, {k: v for k, v in config.items() if k in present and section != "quant"})
        )
    return stack


def judged(name: str, cases: Any, shape: tuple[int, int, int], dtype: str, seed: int = 0) -> bool:
    """One step on one shape, judged; prints what it found."""
    m, n, k = shape
    inputs = cases.make_inputs({"B": 1, "M": m, "N": n, "K": k}, dtype, "", seed, "cuda")
    try:
        passed, metrics, detail = cases.check(cases.step(inputs), cases.reference(inputs), dtype, "")
    except Exception as e:  # a configuration that doesn't compile is a failure of this run, not its end
        passed, metrics, detail = False, {}, f"{type(e).__name__}: {(str(e).splitlines() or [''])[0]}"
    numbers = " ".join(f"{key} {value:.1f}" for key, value in metrics.items())
    print(f"  {'PASS' if passed else 'FAIL'} {name} {dtype} {m}x{n}x{k}: {numbers} {detail}", flush=True)
    return passed


def step_tflops(step: Callable[[dict[str, torch.Tensor]], Any], shape: tuple[int, int, int], calls: int = 20) -> float:
    """6·M·N·K over the wall time of a training step, launched eagerly, inputs in a ring of three."""
    m, n, k = shape
    ring = [case_kit.gemm_inputs({"B": 1, "M": m, "N": n, "K": k}, "bf16", seed, "cuda") for seed in range(3)]

    def run(count: int) -> None:
        for i in range(count):
            step({name: t.detach().requires_grad_(t.requires_grad) for name, t in ring[i % 3].items()})

    run(calls)
    torch.cuda.synchronize()
    start = time.perf_counter()
    run(calls)
    torch.cuda.synchronize()
    return 6 * m * n * k * calls / (time.perf_counter() - start) / 1e12


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--quick", action="store_true", help="correctness alone, the plain and the last configuration")
    args = parser.parse_args()
    if not torch.cuda.is_available():
        print("gpu_correctness: no GPU here", file=sys.stderr)
        return 2
    name, start, good = arch.detect(), time.perf_counter(), []
    print(f"{torch.cuda.get_device_name(0)} ({name}), torch {torch.__version__}")
    for op, cases, configs in (("gemm_fp8", fp8_cases, FP8_CONFIGS[name]), ("gemm", gemm_cases, GEMM_CONFIGS[name])):
        for config in [configs[0], configs[-1]] if args.quick else configs:
            print(f"{op} {config or 'as committed'}")
            with using(op, config):
                good += [judged(op, cases, shape, "bf16") for shape in (BIG, *ODD)]
                if not args.quick and good[-len(ODD) - 1]:
                    speeds = {s: step_tflops(cases.step, s) for s in (BIG, WIDE)}
                    print("  step " + ", ".join(f"{'x'.join(map(str, s))}: {v:.0f} TFLOPS" for s, v in speeds.items()))
    for dtype in ("fp16", "fp32"):
        good += [judged("gemm", gemm_cases, shape, dtype) for shape in ODD]
    good.append(repeatable())
    if not args.quick:
        linear = {s: step_tflops(lambda i: case_kit.training_step(F.linear, i), s) for s in (BIG, WIDE)}
        print("torch bf16 step " + ", ".join(f"{'x'.join(map(str, s))}: {v:.0f} TFLOPS" for s, v in linear.items()))
    print(f"{sum(good)} of {len(good)} right, {time.perf_counter() - start:.0f} s")
    return 0 if all(good) else 1


def repeatable() -> bool:
    """The same inputs give the same bits, twice, in every output."""
    inputs = fp8_cases.make_inputs({"B": 1, "M": 1000, "N": 1001, "K": 777}, "bf16", "", 5, "cuda")
    first = {k: t.clone() for k, t in fp8_cases.step(inputs).items()}
    inputs["a"].grad = inputs["b"].grad = None
    same = all(torch.equal(first[k], t) for k, t in fp8_cases.step(inputs).items())
    same &= torch.equal(ops.gemm_fp8(inputs["a"], inputs["b"]), first["out"])
    print(f"  {'PASS' if same else 'FAIL'} gemm_fp8 is bitwise repeatable")
    return same


if __name__ == "__main__":
    sys.exit(main())
