"""The insides of quantization: integer conversions value by value, which sections a launch reads."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from fp8_code_kernel import code_kernel, value_kernel
from kernel_helpers import DEVICE
from turbo_kernels import ops
from turbo_kernels.quantization import triton_quantize
from turbo_kernels.quantization.reference import e2m1_codes, scale_values, unpack

OCP = {"e4m3": torch.float8_e4m3fn, "e5m2": torch.float8_e5m2}


def difficult_values(largest: float, least: float) -> torch.Tensor:
    """Every bf16, and around a format's range: random, ties between subnormals, the edges of saturation."""
    every_bf16 = torch.arange(1 << 16, dtype=torch.int32).to(torch.uint16).view(torch.bfloat16).float()
    g = torch.Generator().manual_seed(0)
    spread = torch.randn(1 << 16, generator=g) * torch.exp2(torch.randint(-18, 16, (1 << 16,), generator=g).float())
    ties = (torch.arange(4096) + 0.5) * least
    edges = largest * torch.tensor([0.999, 1.0, 1.01, 1.03, 1.0357, 1.04, 1.0714, 1.125, 1.2, 3.4e30 / largest])
    return torch.cat([every_bf16, spread, ties, ties * (1 + 2**-20), edges, -edges])


@pytest.mark.parametrize(("name", "least"), [("e4m3", 2.0**-9), ("e5m2", 2.0**-16), ("e2m1", 0.5)])
def test_codes_are_torchs(name: str, least: float) -> None:
    dtype = OCP.get(name)
    largest = torch.finfo(dtype).max if dtype else 6.0
    x = difficult_values(largest, least).to(DEVICE)
    codes = torch.empty(x.numel(), dtype=torch.uint8, device=DEVICE)
    block = 1 << 12
    code_kernel[(-(-x.numel() // block),)](x, codes, x.numel(), FORMAT=name, BLOCK=block)
    nan = torch.isnan(x)
    expected = x.clamp(-largest, largest).to(dtype).view(torch.uint8) if dtype else e2m1_codes(x)
    assert torch.equal(codes[~nan], expected[~nan])
    assert (codes[nan] == (0x7F if dtype else 0)).all()


@pytest.mark.parametrize("name", ["e4m3", "e5m2", "e2m1", "e8m0"])
def test_values_are_torchs(name: str) -> None:
    codes = torch.arange(256, dtype=torch.int32).to(torch.uint8).to(DEVICE)
    values = torch.empty(256, device=DEVICE)
    value_kernel[(1,)](codes, values, FORMAT=name)
    expected = {
        "e8m0": lambda: scale_values(codes),
        "e2m1": lambda: unpack(codes[None] & 15)[0, ::2],
    }.get(name, lambda: codes.view(OCP[name]).float())()
    torch.testing.assert_close(values, expected, rtol=0, atol=0, equal_nan=True)


def test_the_e2m1_table_is_the_nearest_value_with_ties_to_the_even_code() -> None:
    x = torch.linspace(-7, 7, 14 * 64 + 1)
    values = unpack(torch.arange(16, dtype=torch.uint8)[None])[0, ::2]
    chosen = e2m1_codes(x).long()
    distance = (x[:, None] - values[None]).abs()
    nearest = distance.min(dim=1).values
    assert torch.equal(distance.gather(1, chosen[:, None])[:, 0], nearest)
    tied = (distance == nearest[:, None]).sum(1) > 1
    assert tied.sum() > 10
    assert (chosen[tied & (x.abs() > 0.3)] % 2 == 0).all()


@pytest.mark.parametrize(
    ("section", "kernel", "variant"),
    [("amax", "amax_kernel", "rowwise"), ("scaled", "scaled_kernel", "tensorwise"), ("mx", "mx_kernel", "mxfp4"),
     ("dequantize", "dequantize_kernel", "mxfp8")],
)  # fmt: skip
def test_every_section_is_read(section: str, kernel: str, variant: str, monkeypatch: pytest.MonkeyPatch) -> None:
    launched: list[tuple[int, int]] = []
    real = getattr(triton_quantize, kernel)

    class Spy:
        def __getitem__(self, grid: tuple[int, ...]) -> Callable[..., None]:
            def launch(*args: Any, **meta: Any) -> None:
                launched.append((grid[0], meta["BLOCK_K"]))
                real[grid](*args, **meta)

            return launch

    from turbo_kernels.config import override

    monkeypatch.setattr(triton_quantize, kernel, Spy())
    with override("quantization", section, {"BLOCK_M": 32, "BLOCK_K": 32}):
        got = ops.quantize(torch.ones(64, 96, device=DEVICE), variant)
        ops.dequantize(got.q, got.scale, variant)
    assert launched == [(6, 32)]
