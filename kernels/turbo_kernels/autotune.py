"""Which backend is fastest on these arguments: timed once, kept in memory and on disk.

A result counts for one key (operator, precision, every tensor's dtype, shape, strides and alignment, every other argument)
in one environment (GPU, torch, triton, the packages behind external backends, this library's own sources). A file of it lies
in `$TURBO_CACHE_DIR/autotune`, else `$XDG_CACHE_HOME/turbo_kernels/autotune`, else `~/.cache/turbo_kernels/autotune`.

What is kept is a backend's name, never a result: every call computes everything. Nothing is measured while a CUDA graph is
captured or a call is traced. Shapes that change at every step are measured at every step: then name a backend instead.
"""

from __future__ import annotations

import dataclasses
import enum
import functools
import hashlib
import importlib.metadata
import json
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from turbo_kernels import check
from turbo_kernels.arch import detect, processors
from turbo_kernels.backends import MANAGER
from turbo_kernels.log import LOG

if TYPE_CHECKING:
    from turbo_kernels.dispatch import AutoKernelDispatcher, Backend

BUDGET_S = 0.05  # of timed calls a backend, when one of them is short
LEAST_CALLS, MOST_CALLS = 3, 20
SLOW_S = 1.0  # a call this long is timed once
REFERENCE = "TORCH"

# How close two right backends come to each other. Both have errors of their own, so the gates are wider than those
# against a reference; a wrong stride, scale or unwritten tile fails them by far.
AGREEMENT = {
    "fp4": check.Gate(snr_db=8.0, tile_snr_db=3.0, scale=0.05),
    "fp8": check.Gate(snr_db=20.0, tile_snr_db=15.0, scale=0.02),
}
AGREEMENT_ELSE = check.Gate(snr_db=35.0, tile_snr_db=25.0, scale=0.01)
CODES_APART = 0.02  # of uint8 codes: a scale's last bit moves values over a rounding boundary

_TENSORS = (torch.Tensor, torch.nn.Parameter)
_PLAIN = (type(None), bool, int, float, str, torch.dtype, torch.device)


class Unkeyable(TypeError):
    """An argument that says nothing about itself that two calls could be compared by."""


@dataclasses.dataclass
class Measurement:
    """What tuning found; `backend` is "" where none was right. `left_out` gives the reason by backend."""

    key: str
    backend: str = ""
    times_us: dict[str, float] = dataclasses.field(default_factory=dict)
    left_out: dict[str, str] = dataclasses.field(default_factory=dict)


def choose(
    dispatcher: AutoKernelDispatcher, precision: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> Backend | None:
    """The fastest backend for these arguments, measured now if need be; None where that can't be said now."""
    if torch.compiler.is_compiling() or not all(type(t) in _TENSORS for t in tensors((args, kwargs))):
        return None
    try:
        key = (dispatcher.op, precision, tuple(dispatcher.backends), describe(args), describe(dict(kwargs)))
    except Unkeyable as e:
        LOG.debug("autotune: %s: %s; its default runs", dispatcher.op, e)
        return None
    name = MANAGER.tuned.get(key)
    if name is None:
        found = _load(repr(key))
        if found is None:
            if torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing():
                return None
            found = tune(dispatcher, precision, args, kwargs, repr(key))
            _store(found)
        name = MANAGER.tuned[key] = found.backend
    backend = dispatcher.backends.get(name)
    return backend if backend is not None and backend.can_handle(*args, **kwargs) is None else None


def describe(value: Any) -> Any:
    """What two calls' arguments are compared by, hashable. Unkeyable names the type that can't be."""
    if isinstance(value, torch.Tensor):
        strides = value.stride()
        if 1 in value.shape:  # the stride of a single element says nothing
            strides = tuple(s if n != 1 else 0 for s, n in zip(strides, value.shape, strict=True))
        return value.dtype, (*value.shape,), strides, value.device, value.data_ptr() % 16 == 0
    if type(value) in _PLAIN:
        return type(value).__name__, value  # True isn't 1
    if isinstance(value, enum.Enum):
        return type(value).__qualname__, value.name
    if isinstance(value, tuple | list):
        return type(value).__name__, *map(describe, value)
    if isinstance(value, dict):
        return "dict", *((name, describe(value[name])) for name in sorted(value))
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = dataclasses.fields(value)
        return type(value).__qualname__, *((f.name, describe(getattr(value, f.name))) for f in fields)
    raise Unkeyable(f"an argument of type {type(value).__qualname__} can't be part of a key")


def tensors(value: Any) -> Iterator[torch.Tensor]:
    """Every tensor in arguments or results, in order."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, tuple | list):
        for item in value:
            yield from tensors(item)
    elif isinstance(value, Mapping):
        for name in sorted(value):
            yield from tensors(value[name])
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        for f in dataclasses.fields(value):
            yield from tensors(getattr(value, f.name))


@torch.no_grad()
def tune(
    dispatcher: AutoKernelDispatcher, precision: str, args: tuple[Any, ...], kwargs: Mapping[str, Any], key: str
) -> Measurement:
    """Runs every backend that can on the real arguments, compares their answers, times the right ones."""
    result, answers = Measurement(key), {}
    on_gpu = any(t.is_cuda for t in tensors((args, kwargs)))
    calls = {
        name: functools.partial(dispatcher.backends[name].run, *args, **kwargs)
        for name, why in dispatcher.reasons(*args, **kwargs).items()
        if why is None
    }
    for name, call in calls.items():
        try:
            answers[name] = _answer(call, (args, kwargs), on_gpu)
        except Exception as e:  # a backend's failure is its own: the others go on
            result.left_out[name] = f"raised {type(e).__name__}: {(str(e).splitlines() or [''])[0]}"
    right, wrong = agreeing(answers, dispatcher, precision)
    result.left_out |= wrong
    answers.clear()
    for name in right:
        try:
            result.times_us[name] = time_us(calls[name], on_gpu)
        except Exception as e:
            result.left_out[name] = f"raised {type(e).__name__} when timed: {(str(e).splitlines() or [''])[0]}"
    result.backend = min(result.times_us, key=result.times_us.__getitem__, default="")
    for name, why in result.left_out.items():
        LOG.warning("autotune: %s (%s): %s is left out: %s", dispatcher.op, precision, name, why)
    times = ", ".join(f"{name} {us:.4g} us" for name, us in result.times_us.items())
    LOG.info("autotune: %s (%s): %s of %s", dispatcher.op, precision, result.backend or "none", times or "none")
    return result


def _answer(call: Callable[[], Any], given: Any, on_gpu: bool) -> list[torch.Tensor]:
    """Copies of what a call returns, or of the tensors it was given where it returns none."""
    out = call()
    copies = [t.detach().clone() for t in (list(tensors(out)) or tensors(given))]
    if on_gpu:
        torch.cuda.synchronize()  # an asynchronous failure belongs to this backend
    return copies


def agreeing(
    answers: Mapping[str, list[torch.Tensor]], dispatcher: AutoKernelDispatcher, precision: str
) -> tuple[list[str], dict[str, str]]:
    """(the backends whose answers are taken for right, why each other one isn't).

    Right is what TORCH, the plain reference, says; without it the largest set that agrees with one of its members, of equals
    the one around the operator's default, then the first.
    """
    default = dispatcher.default if isinstance(dispatcher.default, str) else dispatcher.default.get(detect(), "")
    around = {name: _apart(answers, name, precision) for name in ([REFERENCE] if REFERENCE in answers else answers)}
    if not around:
        return [], {}
    size = {name: sum(why is None for why in others.values()) for name, others in around.items()}
    truth = max(around, key=lambda name: (size[name], name == default))
    why = around[truth]
    return [n for n in answers if why[n] is None], {n: f"disagrees with {truth}: {w}" for n, w in why.items() if w}


def _apart(answers: Mapping[str, list[torch.Tensor]], truth: str, precision: str) -> dict[str, str | None]:
    return {name: differs(answer, answers[truth], precision) for name, answer in answers.items()}


def differs(out: list[torch.Tensor], ref: list[torch.Tensor], precision: str) -> str | None:
    """What sets two backends' answers apart, or None."""
    if len(out) != len(ref):
        return f"{len(out)} tensors, not {len(ref)}"
    pairs = enumerate(zip(out, ref, strict=True))
    return next((f"tensor {i}: {why}" for i, (x, y) in pairs if (why := _differ(x, y, precision))), None)


def _differ(x: torch.Tensor, y: torch.Tensor, precision: str) -> str | None:
    if x.shape != y.shape or x.dtype != y.dtype:
        return f"{x.dtype} {tuple(x.shape)}, not {y.dtype} {tuple(y.shape)}"
    if not x.numel():
        return None
    if not x.is_floating_point():
        apart = (x != y).double().mean().item()
        allowed = CODES_APART if x.dtype == torch.uint8 else 0.0
        return f"{apart:.1%} of the elements differ" if apart > allowed else None
    x, y = x.double(), y.double()
    special = ~(torch.isfinite(x) & torch.isfinite(y))
    if not torch.equal(x[special].nan_to_num(nan=0.5), y[special].nan_to_num(nan=0.5)):
        return "other elements are infinite or no numbers"
    return check.wrong(x.masked_fill(special, 0), y.masked_fill(special, 0), AGREEMENT.get(precision, AGREEMENT_ELSE))


def time_us(call: Callable[[], Any], on_gpu: bool) -> float:
    """Median microseconds of one call that has run before."""
    timed = _gpu_times_s if on_gpu else _cpu_times_s
    first = timed(call, 1)
    count = 1 if first[0] > SLOW_S else max(LEAST_CALLS, min(MOST_CALLS, int(BUDGET_S / max(first[0], 1e-9))))
    return statistics.median(timed(call, count) if count > 1 else first) * 1e6


def _cpu_times_s(call: Callable[[], Any], count: int) -> list[float]:
    times = []
    for _ in range(count):
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    return times


def _gpu_times_s(call: Callable[[], Any], count: int) -> list[float]:
    """Each call after a write over the whole L2: a training step finds its operands in memory, not in the cache."""
    flush = torch.empty(_l2_bytes() * 2, dtype=torch.uint8, device="cuda")
    events = [[torch.cuda.Event(enable_timing=True) for _ in range(2)] for _ in range(count)]
    for start, end in events:
        flush.zero_()
        start.record()
        call()
        end.record()
    torch.cuda.synchronize()
    return [start.elapsed_time(end) * 1e-3 for start, end in events]


@functools.cache
def _l2_bytes() -> int:
    return torch.cuda.get_device_properties(torch.cuda.current_device()).L2_cache_size


# Files. One a key: processes that write at the same time lose nothing and need no lock.


@functools.cache
def environment() -> dict[str, str]:
    """What a result depends on beside the arguments."""
    from turbo_kernels.external import versions

    device = "cpu" if detect() == "cpu" else torch.cuda.get_device_name()
    return {
        "architecture": detect(), "device": device, "processors": str(processors()), "torch": torch.__version__,
        "triton": _version("triton"), "turbo_kernels": _sources(), **versions(),
    }  # fmt: skip


def _version(distribution: str) -> str:
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return "absent"


def _sources() -> str:
    """A hash of this package's sources and configurations."""
    root, digest = Path(__file__).parent, hashlib.sha256()
    for path in sorted(p for p in root.rglob("*") if p.suffix in {".py", ".json"}):
        digest.update(f"{path.relative_to(root)}\0".encode() + path.read_bytes())
    return digest.hexdigest()[:16]


def cache_dir() -> Path:
    given = os.environ.get("TURBO_CACHE_DIR") or os.environ.get("PRIMUS_TURBO_CACHE_DIR")
    base = Path(given) if given else Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache") / "turbo_kernels"
    return base.expanduser() / "autotune"


def path_of(key: str) -> Path:
    """The file of one key in this environment."""
    place = hashlib.sha256(json.dumps(environment(), sort_keys=True).encode()).hexdigest()[:16]
    return cache_dir() / place / f"{hashlib.sha256(key.encode()).hexdigest()[:32]}.json"


def _load(key: str) -> Measurement | None:
    path = path_of(key)
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        if found["key"] != key or not isinstance(found["backend"], str):
            raise ValueError("it holds another key")
        return Measurement(key, found["backend"])
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError) as e:
        LOG.warning("autotune: %s can't be used (%s: %s); it is measured again", path, type(e).__name__, e)
        return None


def _store(found: Measurement) -> None:
    """Written beside and renamed: a reader sees a whole file or none."""
    path = path_of(found.key)
    text = json.dumps(dataclasses.asdict(found) | {"environment": environment()}, indent=1)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile("w", dir=path.parent, suffix=".tmp", encoding="utf-8", delete=False) as file:
            file.write(text)
        os.replace(file.name, path)
    except OSError as e:
        LOG.warning("autotune: %s can't be written (%s); the result counts for this process alone", path, e)
