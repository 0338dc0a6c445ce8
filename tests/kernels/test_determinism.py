"""The same inputs give the same bits: every operator's training step, variant by variant, through each backend."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import yaml
from kernel_helpers import DEVICE, through
from turbo_kernels import suite
from turbo_kernels.arch import detect
from turbo_kernels.registry import FAMILIES, family

SHAPES = yaml.safe_load((Path(__file__).parents[2] / "SHAPES.yaml").read_text())


def steps() -> Iterator[tuple[str, str, str]]:
    for spec in FAMILIES:
        for variant in spec.variants:
            for backend in spec.backends:
                if detect() in spec.architectures(variant, backend):
                    yield spec.name, variant, backend


def bits(x: torch.Tensor) -> torch.Tensor:
    return x.contiguous().view(-1).view(torch.uint8)


@pytest.mark.deterministic
@pytest.mark.parametrize(("op", "variant", "backend"), list(steps()))
def test_two_steps_give_the_same_bits(op: str, variant: str, backend: str) -> None:
    spec = family(op)
    cases, why = suite.adapter(spec)
    assert cases is not None, f"turbo_kernels/{op}: {why} (see bench_kit.py)"
    case = next(c for c in cases.bench_cases(SHAPES, spec.dtypes[0], variant) if c.quick)
    dims = case.dims if DEVICE == "cuda" else case.small().dims

    def step() -> dict[str, torch.Tensor]:
        """On new tensors of the same contents: another place in memory must not matter."""
        inputs = cases.make_inputs(dims, spec.dtypes[0], variant, 7, DEVICE)
        try:
            with through(backend):
                return cases.step(inputs)
        except RuntimeError as e:
            if f"{backend}: " in str(e):  # what can_handle said
                pytest.skip(str(e))
            raise

    first, second = step(), step()
    assert first.keys() == second.keys()
    for name in first:
        assert torch.equal(bits(first[name]), bits(second[name])), name
