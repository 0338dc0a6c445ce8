"""What a family tells the suite (`turbo_kernels.suite`) in its cases.py, both names optional:

    bench_cases(shapes, dtype, variant) -> Iterator[BenchCase]    what to run, from the public models of SHAPES.yaml
    baselines(inputs, variant) -> {name: Baseline}                what torch offers for the same, on these very tensors

`dense_cases`, `moe_cases` and what `row_cases` returns serve as `bench_cases` as they are. It imports no kernel.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

Shapes = Mapping[str, Mapping[str, Any]]  # SHAPES.yaml: group -> model -> its published sizes
Cases = Callable[[Shapes, str, str], Iterator["BenchCase"]]

ITEM_BYTES = {"bf16": 2, "fp16": 2, "fp32": 4}
MICRO_BATCHES = (1, 2, 4)
EXPERT_PARALLEL = (32, 16, 8)
EXPERT_TOKENS = (512, 1024, 2048, 4096, 8192, 16384)
QUICK_MODELS = ("Llama-3.1-8B", "Llama-2-70B", "DeepSeek-V3", "Mixtral-8x7B")
QUICK_PARTS = ("qkv", "down", "gate_up")
# The largest dimensions where Triton interprets: more than a tile, multiples of what a scale's block needs.
SMALL = {"B": 3, "M": 64, "N": 96, "K": 64, "rows": 24, "cols": 256}
SMALL_OTHER = 32


@dataclass(frozen=True)
class Work:
    """Of one call: floating-point operations, and the bytes that it must read and write at least."""

    flops: float
    least_bytes: float


@dataclass(frozen=True)
class BenchCase:
    """One shape: `dims` as the family's make_inputs takes them; `step` is None where nothing is differentiable."""

    group: str
    label: str
    dims: dict[str, int]
    forward: Work
    step: Work | None = None
    quick: bool = False

    def small(self) -> BenchCase:
        """The same in miniature, for the interpreter. Its times mean nothing, so it has no work."""
        dims = {name: min(size, SMALL.get(name, SMALL_OTHER)) for name, size in self.dims.items()}
        none = Work(0.0, 0.0)
        return replace(self, label=f"{self.label} (miniature)", dims=dims, forward=none, step=self.step and none)


@dataclass(frozen=True)
class Baseline:
    """What torch does for the same tensors; None where it has no such phase. A call that raises is reported."""

    forward: Callable[[], Any] | None = None
    step: Callable[[], Any] | None = None


def differentiable(call: Callable[..., Any], inputs: Mapping[str, Any], names: Sequence[str]) -> Baseline:
    """Of a torch function of `inputs`' tensors `names`: the function, and with its gradients."""
    leaves = [inputs[name] for name in names]

    def step() -> None:
        for leaf in leaves:
            leaf.grad = None
        call(*leaves).backward(inputs["grad_out"])

    return Baseline(lambda: call(*leaves), step)


def compiled(function: Callable[..., Any], device: str) -> Callable[..., Any]:
    """torch.compile with static shapes (dynamic ones are several times slower); as it is where there is no GPU."""
    if device == "cpu":
        return function
    import torch

    return torch.compile(function, dynamic=False)


def _gemm_work(b: int, m: int, n: int, k: int, dtype: str) -> tuple[Work, Work]:
    """(forward, step) of B products: 2·M·N·K each; three of them a step, each reading two operands, writing one."""
    flops, moved = 2.0 * b * m * n * k, float(b) * (m * k + n * k + m * n) * ITEM_BYTES[dtype]
    return Work(flops, moved), Work(3 * flops, 3 * moved)


def _batches(models: Mapping[str, Any]) -> Iterator[tuple[int, str, Any]]:
    """(micro-batch, model, its sizes): a shape that two models share is thus the one's with the smaller batch."""
    for batch in MICRO_BATCHES:
        for model, sizes in models.items():
            yield batch, model, sizes


def dense_cases(shapes: Shapes, dtype: str, variant: str) -> Iterator[BenchCase]:
    """The linear layers of dense transformers: M = tokens of a micro-batch."""
    seen: set[tuple[int, ...]] = set()
    for batch, model, c in _batches(shapes["dense"]):
        layers = {
            "qkv": ((c["heads"] + 2 * c["kv_heads"]) * c["head_dim"], c["hidden"]),
            "out": (c["hidden"], c["hidden"]),
            "gate_up": (2 * c["ffn"], c["hidden"]),
            "down": (c["hidden"], c["ffn"]),
            "lm_head": (c["vocab"], c["hidden"]),
        }
        m = c["seqlen"] * batch
        for part, (n, k) in layers.items():
            if (m, n, k) in seen:
                continue
            seen.add((m, n, k))
            quick = batch == 1 and model in QUICK_MODELS and part in QUICK_PARTS
            dims = {"B": 1, "M": m, "N": n, "K": k}
            yield BenchCase("dense", f"{model} {part} x{batch}", dims, *_gemm_work(1, m, n, k, dtype), quick=quick)


def moe_cases(shapes: Shapes, dtype: str, variant: str) -> Iterator[BenchCase]:
    """The experts that one rank of a mixture holds: B of them, M tokens each on average."""
    seen: set[tuple[int, ...]] = set()
    for model, c in shapes["moe"].items():
        for parallel in EXPERT_PARALLEL:
            b = c["experts"] // parallel
            for part, (n, k) in {"gate_up": (2 * c["ffn"], c["hidden"]), "down": (c["hidden"], c["ffn"])}.items():
                for m in EXPERT_TOKENS:
                    if not b or (b, m, n, k) in seen:
                        continue
                    seen.add((b, m, n, k))
                    quick = model in QUICK_MODELS and parallel == EXPERT_PARALLEL[-1] and m == 2048
                    dims = {"B": b, "M": m, "N": n, "K": k}
                    work = _gemm_work(b, m, n, k, dtype)
                    yield BenchCase("moe", f"{model} {part} ep{parallel} m{m}", dims, *work, quick=quick)


def row_cases(column: str, forward: float, step: float | None = None, code_bytes: Mapping[str, float] | None = None,
              group: str = "dense") -> Cases:  # fmt: skip
    """For operators over rows: a row a token, `cols` the model's `hidden` or `ffn`.

    `forward` and `step` are what must be read and written for every element of rows × cols, in elements of the dtype;
    `code_bytes` what a variant's forward writes beside that, in bytes.
    """

    def cases(shapes: Shapes, dtype: str, variant: str) -> Iterator[BenchCase]:
        seen: set[tuple[int, int]] = set()
        for batch, model, c in _batches(shapes[group]):
            rows, cols = c["seqlen"] * batch, c[column]
            if (rows, cols) in seen:
                continue
            seen.add((rows, cols))
            size = float(rows) * cols * ITEM_BYTES[dtype]
            codes = rows * cols * (code_bytes or {}).get(variant, 0.0)
            yield BenchCase(
                group, f"{model} {column} x{batch}", {"rows": rows, "cols": cols}, Work(0.0, forward * size + codes),
                None if step is None else Work(0.0, step * size), quick=batch == 1 and model in QUICK_MODELS,
            )  # fmt: skip

    return cases
