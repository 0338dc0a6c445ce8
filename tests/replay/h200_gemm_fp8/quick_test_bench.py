#!/usr/bin/env python3
"""Quick test and benchmark of gemm_fp8 (blockwise, bf16, sm_90). Stands alone: torch and the measured tree.

    python quick_test_bench.py --summary-csv FILE [--repeats N] [--iters-per-repeat M] [--shapes all|representative] [--tree DIR]

checks every shape against a higher-precision reference, times it and writes one CSV row each; exit 0 all PASS, 1 a FAIL,
2 no device. The campaign runner starts the same file as `--worker` (times and returns raw outputs) and as `--checker`
(judges them, in another process, from the base commit); both answer one JSON line a request on `--reply-fd`.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import importlib.util
import json
import math
import os
import platform
import re
import signal
import statistics
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import Path
from typing import Any

OP = "gemm_fp8"
VARIANT = "blockwise"
DTYPE = "bf16"
GPU = "sm_90"
TRAINING = "training" == "training"
ADAPTER = "kernels/turbo_kernels/gemm_fp8/cases.py"
IMPORT_ROOTS = ["kernels"]
IMPORT_NAME = "turbo_kernels.gemm_fp8.ops"
SHAPES: list[dict[str, Any]] = [{"dims": {"B": 1, "K": 4096, "M": 4096, "N": 4096}, "label": "4096x4096x4096"}, {"dims": {"B": 1, "K": 4096, "M": 4096, "N": 28672}, "label": "4096x28672x4096"}, {"dims": {"B": 1, "K": 14336, "M": 4096, "N": 4096}, "label": "4096x4096x14336"}, {"dims": {"B": 1, "K": 4096, "M": 8192, "N": 6144}, "label": "8192x6144x4096"}, {"dims": {"B": 1, "K": 4096, "M": 2048, "N": 6144}, "label": "2048x6144x4096"}]
REPRESENTATIVE: list[str] = ["4096x4096x4096", "4096x28672x4096", "2048x6144x4096"]
SCHEMA_CLASS = "gemm"
COLUMNS: list[str] = ["label", "B", "M", "N", "K", "Check", "Forward TFLOPS", "Forward TFLOPS_stddev", "Backward TFLOPS", "Backward TFLOPS_stddev", "Forward Time (ms)", "Backward Time (ms)", "out_snr", "da_snr", "db_snr"]
UNIT = "TFLOPS"
TREE = "/tmp/repo/campaigns/h200_gemm_fp8/worktree"


Dims = dict[str, int]
Work = Callable[[Dims], float]

# By op class: the work of one forward and of one backward. GEMM: 2·M·N·K a product, the backward has two. Memory: bytes of
# 2-byte elements, forward x → out, backward x, dout → dx. Attention: two products, five in the backward.
WORK: dict[str, tuple[Work, Work]] = {
    "gemm": (lambda d: 2.0 * d["B"] * d["M"] * d["N"] * d["K"], lambda d: 4.0 * d["B"] * d["M"] * d["N"] * d["K"]),
    "memory": (lambda d: 4.0 * d["rows"] * d["cols"], lambda d: 6.0 * d["rows"] * d["cols"]),
    "attention": (lambda d: 4.0 * d["B"] * d["H"] * d["S"] ** 2 * d["D"], lambda d: 10.0 * d["B"] * d["H"] * d["S"] ** 2 * d["D"]),
}
UNITS = {"TFLOPS": 1e12, "GB/s": 1e9}

sys.dont_write_bytecode = True  # nothing is left behind in the measured tree
if GPU == "cpu":
    os.environ.setdefault("TRITON_INTERPRET", "1")  # Triton reads it when it is imported

import torch  # noqa: E402

DEVICE = "cpu" if GPU == "cpu" else "cuda"
REPEATS, ITERS_PER_REPEAT = (3, 1) if DEVICE == "cpu" else (5, 50)  # for people; the runner says how many itself
LAST_LEVEL_CACHE = {"gfx942": 256 << 20, "gfx950": 256 << 20}  # bytes; torch reports the L2 before it
WARMUP_CALLS = 0 if DEVICE == "cpu" else 2

Tensors = dict[str, torch.Tensor]
Reply = dict[str, Any]


class NoDevice(Exception):
    """The target needs a GPU and there is none."""


class Refused(Exception):
    """The measured code did what a training step must not."""


@dataclass
class Bench:
    """One process's state: the adapter of `tree`, and a ring of inputs per prepared shape."""

    tree: Path
    adapter: Any = None
    rings: dict[str, list[Tensors]] = field(default_factory=dict)
    turn: int = 0

    def load(self) -> Any:
        """The tree's adapter, imported once; the tree goes first on sys.path."""
        if self.adapter is None:
            if DEVICE == "cuda" and not torch.cuda.is_available():
                raise NoDevice(f"no GPU here; the target is {GPU}")
            if DEVICE == "cpu":
                torch.set_num_threads(1)
            roots = [str(self.tree / root) for root in IMPORT_ROOTS]
            sys.path[:0] = [root for root in roots if root not in sys.path[: len(roots)]]
            spec = importlib.util.spec_from_file_location("quick_adapter", self.tree / ADAPTER)
            if spec is None or spec.loader is None:
                raise ImportError(f"{self.tree / ADAPTER} can't be imported")
            module = importlib.util.module_from_spec(spec)
            spec.loader.exec_module(module)
            self.adapter = module
        return self.adapter

    def call(self, what: str) -> Callable[[Tensors], Tensors]:
        adapter = self.load()
        return adapter.step if TRAINING and what == "step" else adapter.forward

    def inputs(self, shape: dict[str, Any], seed: int) -> Tensors:
        return self.load().make_inputs(dict(shape["dims"]), DTYPE, VARIANT, seed, DEVICE)

    def ring(self, label: str) -> list[Tensors]:
        if label not in self.rings:
            raise KeyError(f"shape {label} isn't prepared")
        return self.rings[label]


# -- timing ---------------------------------------------------------------------------------------------------------


def synchronize() -> None:
    if DEVICE == "cuda":
        torch.cuda.synchronize()


def cache_bytes() -> int:
    props = torch.cuda.get_device_properties(0)
    arch = getattr(props, "gcnArchName", "").split(":")[0]
    return max(props.L2_cache_size, LAST_LEVEL_CACHE.get(arch, 0))


def ring_size(inputs: Tensors) -> int:
    """Entries that together exceed twice the last-level cache, so that no call finds its inputs there."""
    if DEVICE == "cpu":
        return 2
    size = sum(t.numel() * t.element_size() for t in inputs.values())
    return max(2, math.ceil(2 * cache_bytes() / size))


def fresh(entry: Tensors) -> Tensors:
    """New tensor objects over the same memory: leaves without a gradient. They share the memory's version counter."""
    return {name: t.detach().requires_grad_(t.requires_grad) for name, t in entry.items()}


def timed(bench: Bench, label: str, what: str, calls: int) -> float:
    """Milliseconds a call, by the wall clock around a synchronized loop; every call gets the ring's next entry."""
    ring, call = bench.ring(label), bench.call(what)
    queue = [fresh(ring[(bench.turn + i) % len(ring)]) for i in range(WARMUP_CALLS + calls)]
    bench.turn += len(queue)
    queue.reverse()
    wanted = [name for name, t in ring[0].items() if t.requires_grad]

    def run(n: int) -> None:
        for _ in range(n):
            inputs = queue.pop()
            for name in wanted:  # the optimizer's in-place update, as a cache keyed on a version sees it
                torch.autograd.graph.increment_version(inputs[name])
            call(inputs)

    run(WARMUP_CALLS)
    synchronize()
    start = time.perf_counter()
    run(calls)
    synchronize()
    return (time.perf_counter() - start) * 1e3 / calls


def rewrite(bench: Bench, label: str, seed: int) -> None:
    with torch.no_grad():
        for i, entry in enumerate(bench.ring(label)):
            bench.load().rewrite(entry, seed + i)


# -- outputs --------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def unwritten_is_nan(inputs: Tensors) -> Iterator[None]:
    """Memory that nobody wrote reads as NaN: what `torch.empty` returns, and freed blocks of the outputs' likely sizes."""
    for t in inputs.values():
        blocks = [torch.full_like(t, math.nan, requires_grad=False) for _ in range(2) if t.is_floating_point()]
        del blocks
    deterministic = torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()
    fill = torch.utils.deterministic.fill_uninitialized_memory  # type: ignore[attr-defined]
    torch.use_deterministic_algorithms(True, warn_only=True)
    torch.utils.deterministic.fill_uninitialized_memory = True  # type: ignore[attr-defined]
    try:
        yield
    finally:
        torch.utils.deterministic.fill_uninitialized_memory = fill  # type: ignore[attr-defined]
        torch.use_deterministic_algorithms(deterministic[0], warn_only=deterministic[1])


def raw(t: torch.Tensor) -> torch.Tensor:
    return t.detach().contiguous().reshape(-1).view(torch.uint8).cpu()


def run_once(bench: Bench, shape: dict[str, Any], seed: int) -> Tensors:
    """One step on fresh inputs. Refused: an input changed, an output that isn't a plain tensor or that a later call rewrites."""
    inputs, call = bench.inputs(shape, seed), bench.call("step")
    before = {name: t.detach().clone() for name, t in inputs.items()}
    with unwritten_is_nan(inputs):
        outputs = call(inputs)
        synchronize()
    for name, t in outputs.items():
        if type(t) is not torch.Tensor:
            raise Refused(f"output {name} is a {type(t).__name__}, not a plain tensor")
    for name, t in before.items():
        if not torch.equal(raw(t), raw(inputs[name])):
            raise Refused(f"the step changed its input {name}")
    held = {name: t.detach().clone() for name, t in outputs.items()}
    call(bench.inputs(shape, seed + 1))
    synchronize()
    for name, t in held.items():
        if not torch.equal(raw(t), raw(outputs[name])):
            raise Refused(f"a later call overwrote output {name}")
    return held


DTYPES = {
    name: getattr(torch, name)
    for name in ("bfloat16", "float16", "float32", "float64", "float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2",
                 "float8_e5m2fnuz", "uint8", "int8", "int16", "int32", "int64", "bool")
}  # fmt: skip


def write_raw(outputs: Tensors, folder: Path) -> dict[str, Reply]:
    described = {}
    for name, t in outputs.items():
        file = f"{name}.bin"
        raw(t).numpy().tofile(folder / file)
        described[name] = {"file": file, "dtype": str(t.dtype).removeprefix("torch."), "shape": list(t.shape)}
    return described


def read_raw(described: dict[str, Reply], folder: Path) -> Tensors:
    """Plain bytes back to tensors; ValueError where the description and the file differ. Nothing is unpickled."""
    import numpy as np

    tensors = {}
    for name, d in described.items():
        dtype, shape, file = DTYPES.get(d["dtype"]), [int(n) for n in d["shape"]], folder / Path(d["file"]).name
        if dtype is None or any(n < 0 for n in shape) or file.is_symlink():
            raise ValueError(f"output {name}: {d['dtype']} {shape} in {d['file']} isn't readable")
        size = math.prod(shape) * dtype.itemsize
        if file.stat().st_size != size:
            raise ValueError(f"output {name}: {file.stat().st_size} bytes, its shape says {size}")
        data = torch.from_numpy(np.fromfile(file, dtype=np.uint8)) if size else torch.empty(0, dtype=torch.uint8)
        tensors[name] = data.view(dtype).reshape(shape).to(DEVICE)
    return tensors


def judge(bench: Bench, shape: dict[str, Any], seed: int, outputs: Tensors) -> tuple[bool, dict[str, float], str]:
    """(passed, the class's correctness columns, what is wrong), against a reference computed here from the seed."""
    adapter = bench.load()
    expected = adapter.reference(bench.inputs(shape, seed))
    if not TRAINING:
        expected = {name: t for name, t in expected.items() if name in outputs}
    for name, t in outputs.items():
        if t.is_floating_point() and not torch.isfinite(t.float()).all():
            return False, {}, f"{name}: unwritten or non-finite elements"
    passed, metrics, detail = adapter.check(outputs, expected, DTYPE, VARIANT)
    return bool(passed), {k: float(v) for k, v in metrics.items()}, detail


# -- the protocol ---------------------------------------------------------------------------------------------------


def hello(bench: Bench, request: Reply) -> Reply:
    bench.load()
    module = importlib.import_module(IMPORT_NAME)
    triton = importlib.util.find_spec("triton") and importlib.import_module("triton").__version__
    versions = {"python": platform.python_version(), "torch": torch.__version__, "triton": triton or ""}
    name = torch.cuda.get_device_name(0) if DEVICE == "cuda" else f"CPU ({platform.machine()})"
    return {"device": DEVICE, "device_name": name, "imported": module.__file__, "versions": versions}


def hello_checker(bench: Bench, request: Reply) -> Reply:
    """The checker runs no kernel, so it says where the module would come from without importing it."""
    bench.load()
    spec = importlib.util.find_spec(IMPORT_NAME)
    return {"device": DEVICE, "imported": spec.origin if spec else None, "versions": {"torch": torch.__version__}}


def prepare(bench: Bench, request: Reply) -> Reply:
    shape, seed = request["shape"], int(request["seed"])
    label = shape["label"]
    first = bench.inputs(shape, seed)
    bench.rings[label] = [first, *(bench.inputs(shape, seed + i) for i in range(1, ring_size(first)))]
    timed(bench, label, "step", 1)  # compiles
    return {"step_ms": timed(bench, label, "step", 1), "ring": len(bench.rings[label])}


def outputs(bench: Bench, request: Reply) -> Reply:
    return {"tensors": write_raw(run_once(bench, request["shape"], int(request["seed"])), Path(request["dir"]))}


def block(bench: Bench, request: Reply) -> Reply:
    label = request["label"]
    rewrite(bench, label, int(request["seed"]))
    return {"ms": timed(bench, label, request["what"], int(request["calls"]))}


def try_config(bench: Bench, request: Reply) -> Reply:
    """The least of several short blocks within the budget: a hint for a search, no measurement."""
    label, budget_ms = request["label"], float(request["ms"])
    with bench.load().try_config(request["section"], request["config"]):
        timed(bench, label, "step", 1)
        best = timed(bench, label, "step", 1)
        calls = max(1, int(budget_ms / 3 / best))
        spent = best
        while spent < budget_ms:
            ms = timed(bench, label, "step", calls)
            spent += ms * calls
            best = min(best, ms)
    return {"ms": best}


def release(bench: Bench, request: Reply) -> Reply:
    bench.rings.pop(request["label"], None)
    if DEVICE == "cuda":
        torch.cuda.empty_cache()
    return {}


def check(bench: Bench, request: Reply) -> Reply:
    try:
        tensors = read_raw(request["tensors"], Path(request["dir"]))
    except (ValueError, OSError, KeyError, TypeError) as e:  # the worker's fault, not the checker's
        return {"check": "FAIL", "metrics": {}, "detail": one_line(e)}
    passed, metrics, detail = judge(bench, request["shape"], int(request["seed"]), tensors)
    return {"check": "PASS" if passed else "FAIL", "metrics": metrics, "detail": detail}


Commands = dict[str, Callable[[Bench, Reply], Reply]]
WORKER: Commands = {"hello": hello, "prepare": prepare, "outputs": outputs, "block": block, "try": try_config, "release": release}
CHECKER: Commands = {"hello": hello_checker, "check": check}


def one_line(e: BaseException) -> str:
    """The exception in one line: the last that names an error (a compiler prints its command after it), else the last."""
    lines = [line.strip() for line in str(e).splitlines() if line.strip()]
    named = [line for line in lines if re.search(r"\b(error|fatal)\b", line, re.IGNORECASE)]
    return f"{type(e).__name__}: {(named or lines or [''])[-1]}"[:500]


def kind(e: BaseException) -> str:
    """`build` for what stops code from being imported or compiled, `run` for the rest."""
    compiler = type(e).__module__.split(".")[0] == "triton"
    return "build" if compiler or isinstance(e, ImportError | SyntaxError) or type(e).__name__ == "ConfigError" else "run"


def serve(bench: Bench, commands: Commands, reply_fd: int) -> int:
    """Answers requests until stdin ends. A failure is an answer; the process goes on."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # ^C is the runner's to handle
    with os.fdopen(reply_fd, "w", encoding="utf-8") as out:
        for line in sys.stdin:
            try:
                request = json.loads(line)
                if request.get("cmd") not in commands:
                    raise ValueError(f"no command {request.get('cmd')!r}; there are {', '.join(commands)}")
                reply = {"ok": True, **commands[request["cmd"]](bench, request)}
            except BaseException as e:  # SystemExit too: measured code must not end the process without an answer
                traceback.print_exc()
                reply = {"ok": False, "kind": kind(e), "error": one_line(e)}
            out.write(json.dumps(reply) + "\n")
            out.flush()
    return 0


# -- for people -----------------------------------------------------------------------------------------------------


def chosen_shapes(which: str) -> list[dict[str, Any]]:
    shapes, representative = SHAPES, REPRESENTATIVE
    manifest = Path(__file__).with_name("manifest.yaml")
    if not shapes and manifest.exists():
        import yaml

        content = yaml.safe_load(manifest.read_text(encoding="utf-8"))
        shapes, representative = content["target_shapes"], content.get("representative_shapes") or []
    if which == "representative" and representative:
        shapes = [s for s in shapes if s["label"] in representative]
    if not shapes:
        raise SystemExit(f"quick_test_bench: no shapes: SHAPES is empty and {manifest} names none")
    return shapes


def plain(x: float) -> str:
    """Six significant digits, never an exponent."""
    return format(Decimal(f"{x:.6g}"), "f") if math.isfinite(x) else str(x)


def rates(work: float, times_ms: list[float]) -> tuple[float, float]:
    """(rate at the mean time, standard deviation of the samples' rates) in UNIT."""
    values = [work / (ms * 1e-3) / UNITS[UNIT] for ms in times_ms]
    return work / (statistics.mean(times_ms) * 1e-3) / UNITS[UNIT], statistics.stdev(values) if len(values) > 1 else 0.0


def measure_row(bench: Bench, shape: dict[str, Any], repeats: int, iters: int) -> tuple[dict[str, Any], str]:
    """One CSV row by column name, and what is wrong with the outputs ('' where nothing is)."""
    seed, label, dims = int.from_bytes(os.urandom(4)), shape["label"], shape["dims"]
    passed, metrics, detail = judge(bench, shape, seed, run_once(bench, shape, seed))
    prepare(bench, {"shape": shape, "seed": seed + 2})
    forward_ms, step_ms = [], []
    for i in range(repeats):
        rewrite(bench, label, seed + 1000 * (i + 1))
        forward_ms.append(timed(bench, label, "forward", iters))
        step_ms.append(timed(bench, label, "step", iters) if TRAINING else forward_ms[-1])
    release(bench, {"label": label})
    forward_work, backward_work = WORK[SCHEMA_CLASS]
    row = {"label": label, **dims, "Check": "PASS" if passed else "FAIL", **metrics}
    row[f"Forward {UNIT}"], row[f"Forward {UNIT}_stddev"] = rates(forward_work(dims), forward_ms)
    row["Forward Time (ms)"] = statistics.mean(forward_ms)
    if TRAINING:
        usual_ms = statistics.median(forward_ms)  # one interrupted forward must not turn a difference around
        backward_ms = [ms - usual_ms for ms in step_ms if ms > usual_ms]
        if not backward_ms:
            raise ValueError(f"{label}: the forward took longer than the whole step; raise --iters-per-repeat")
        row[f"Backward {UNIT}"], row[f"Backward {UNIT}_stddev"] = rates(backward_work(dims), backward_ms)
        row["Backward Time (ms)"] = statistics.mean(backward_ms)
    return row, detail


def cell(row: dict[str, Any], column: str) -> str:
    value = row.get(column, math.nan)
    return plain(value) if isinstance(value, float) else str(value)


def people(args: argparse.Namespace) -> int:
    bench, shapes = Bench(args.tree.resolve()), chosen_shapes(args.shapes)
    try:
        print(f"{OP} {VARIANT} {DTYPE} on {hello(bench, {})['device_name']}, tree {bench.tree}")
    except NoDevice as e:
        print(f"quick_test_bench: {e}", file=sys.stderr)
        return 2
    lines, failed = [",".join(COLUMNS)], False
    for shape in shapes:
        try:
            row, detail = measure_row(bench, shape, args.repeats, args.iters_per_repeat)
        except Exception as e:
            traceback.print_exc()
            row, detail = {"label": shape["label"], **shape["dims"], "Check": "FAIL"}, one_line(e)
        failed |= row["Check"] != "PASS"
        lines.append(",".join(cell(row, column) for column in COLUMNS))
        speed = cell(row, f"Forward {UNIT}"), cell(row, f"Backward {UNIT}")
        print(f"{row['Check']} {shape['label']}: forward {speed[0]}, backward {speed[1]} {UNIT} {detail}", flush=True)
    args.summary_csv.write_bytes(("\n".join(lines) + "\n").encode())
    return 1 if failed else 0


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--summary-csv", type=Path, help="where the rows go")
    parser.add_argument("--repeats", type=int, default=REPEATS)
    parser.add_argument("--iters-per-repeat", type=int, default=ITERS_PER_REPEAT)
    parser.add_argument("--shapes", choices=["all", "representative"], default="all")
    parser.add_argument("--tree", type=Path, default=Path(TREE), help="the tree to measure; the campaign's, by default")
    parser.add_argument("--worker", action="store_true", help="answer the runner's requests")
    parser.add_argument("--checker", action="store_true", help="judge outputs for the runner")
    parser.add_argument("--reply-fd", type=int, help="the descriptor that answers go to")
    args = parser.parse_args()
    if args.worker or args.checker:
        if args.reply_fd is None:
            parser.error("--worker and --checker need --reply-fd")
        return serve(Bench(args.tree.resolve()), WORKER if args.worker else CHECKER, args.reply_fd)
    if args.summary_csv is None:
        parser.error("--summary-csv FILE is needed")
    return people(args)


if __name__ == "__main__":
    sys.exit(main())
