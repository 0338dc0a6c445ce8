"""What the adapters of grouped GEMMs share: inputs whose tokens per expert are made from the seed too, and judgement
of every expert's weight gradient by itself. Imports no kernel: the checker loads it too.

Dimensions: B experts, M tokens per expert on average (T = B·M rows), each [M, K] by [N, K].
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch

from turbo_kernels import check as checks
from turbo_kernels.bench_kit import Baseline, differentiable
from turbo_kernels.case_kit import Tensors, torch_dtype

LENS = "group_lens"


def make_inputs(dims: dict[str, int], dtype: str, seed: int, device: str) -> Tensors:
    """a[B·M, K] and b[B, N, K], which want gradients, grad_out[B·M, N], all standard normal, and group_lens[B]."""
    groups, m, n, k = (dims[d] for d in "BMNK")
    sizes = {"a": (groups * m, k), "b": (groups, n, k), "grad_out": (groups * m, n)}
    tensors = {name: torch.empty(size, dtype=torch_dtype(dtype), device=device) for name, size in sizes.items()}
    tensors[LENS] = torch.empty(groups, dtype=torch.int64, device=device)
    rewrite(tensors, seed)
    return {name: t.requires_grad_(name in ("a", "b")) for name, t in tensors.items()}


@torch.no_grad()
def rewrite(inputs: Tensors, seed: int) -> None:
    """New contents in place; a seed chooses one of LAYOUTS, all of which use every row."""
    _fill(inputs, seed, list(LAYOUTS.values())[seed % len(LAYOUTS)])


def _fill(inputs: Tensors, seed: int, layout: Callable[[int, torch.Generator], torch.Tensor]) -> None:
    generator = torch.Generator(inputs["a"].device).manual_seed(seed)
    for name in sorted(inputs):
        if inputs[name].is_floating_point():
            inputs[name].normal_(generator=generator)
    weights = layout(inputs[LENS].numel(), torch.Generator().manual_seed(seed))
    inputs[LENS].copy_(share(inputs["a"].shape[0], weights))


def share(rows: int, weights: torch.Tensor) -> torch.Tensor:
    """`rows` in proportion to `weights` (of sum ≤ 1), int64; what rounding leaves goes to the largest."""
    lens = (weights.double() * rows).floor().long()
    used = round(weights.double().sum().item() * rows)
    lens[lens.argmax()] += used - lens.sum()
    return lens


def _balanced(groups: int, generator: torch.Generator) -> torch.Tensor:
    return torch.full((groups,), 1 / groups)


def _skewed(groups: int, generator: torch.Generator) -> torch.Tensor:
    """Proportional to the cubes of uniform numbers: a few experts take most of the tokens."""
    weights = torch.rand(groups, generator=generator).double() ** 3 + 1e-6
    return weights / weights.sum()


def _half_empty(groups: int, generator: torch.Generator) -> torch.Tensor:
    """Half of the experts, the first and the last among them where there are three, get nothing."""
    weights = torch.rand(groups, generator=generator).double() + 0.1
    order = torch.randperm(groups, generator=generator)
    weights[order[: groups // 2]] = 0
    if groups > 2:
        weights[0] = weights[-1] = 0
    if not weights.any():
        weights[groups // 2] = 1
    return weights / weights.sum()


def _one_expert(groups: int, generator: torch.Generator) -> torch.Tensor:
    """One expert has six tenths of the tokens."""
    weights = torch.full((groups,), 0.4 / groups)
    weights[torch.randint(groups, (1,), generator=generator)] += 0.6
    return weights


def _dropped(groups: int, generator: torch.Generator) -> torch.Tensor:
    """A quarter of the rows belongs to nobody."""
    return 0.75 * _skewed(groups, generator)


LAYOUTS = {"balanced": _balanced, "skewed": _skewed, "half_empty": _half_empty}


def _filling(layout: Callable[[int, torch.Generator], torch.Tensor]) -> Callable[[Tensors, int], None]:
    @torch.no_grad()
    def fill(inputs: Tensors, seed: int) -> None:
        _fill(inputs, seed, layout)

    return fill


# Each layout by name, whatever the seed, and two that a benchmark shouldn't time.
FILLS = {
    name: _filling(layout) for name, layout in (LAYOUTS | {"one_expert": _one_expert, "dropped": _dropped}).items()
}


def training_step(op: Callable[..., torch.Tensor], inputs: Tensors) -> Tensors:
    """Forward and backward; the gradients are those of `inputs`' own a and b, which start without any."""
    out = op(inputs["a"], inputs["b"], inputs[LENS])
    out.backward(inputs["grad_out"])
    grads = {"da": inputs["a"].grad, "db": inputs["b"].grad}
    return {"out": out.detach(), **{name: g for name, g in grads.items() if g is not None}}


def judge(
    outputs: Tensors, expected: Tensors, gate: checks.Gate, dtype: torch.dtype
) -> tuple[bool, dict[str, float], str]:
    """`check.judge` with every expert's weight gradient an output of its own, so that a wrong small one can't hide
    among the others; `db_snr` is the worst expert's. (out and da are judged by tiles of rows, which do the same.)"""
    shapes = {t["db"].shape for t in (outputs, expected) if "db" in t}
    if len(shapes) > 1:
        return checks.judge(outputs, expected, gate, dtype)
    passed, metrics, detail = checks.judge(_experts(outputs), _experts(expected), gate, dtype)
    worst = [metrics.pop(name) for name in list(metrics) if name.startswith("db[")]
    if worst:
        metrics["db_snr"] = min(worst, key=lambda db: -math.inf if math.isnan(db) else db)
    return passed, metrics, detail


def _experts(tensors: Tensors) -> Tensors:
    rest = {name: t for name, t in tensors.items() if name != "db"}
    return rest | ({f"db[{g}]": t for g, t in enumerate(tensors["db"])} if "db" in tensors else {})


def baselines(inputs: Tensors, variant: str) -> dict[str, Baseline]:
    """torch's grouped product, and a loop over the experts that knows their rows beforehand; in the inputs' dtype."""
    lens = inputs[LENS].tolist()
    ends = inputs[LENS].cumsum(0, dtype=torch.int32)

    def loop(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return torch.cat([x @ w.t() for x, w in zip(a.split(lens), b, strict=True)])

    def grouped(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        product = torch._grouped_mm  # pyright: ignore[reportPrivateImportUsage]
        return product(a, b.transpose(-2, -1), offs=ends)

    return {
        "torch._grouped_mm": differentiable(grouped, inputs, ("a", "b")),
        "loop of mm": differentiable(loop, inputs, ("a", "b")),
    }
