"""The insides of gemm_fp8: quantization bit by bit against plain torch, what a launch reads, what is kept."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from fp8_code_kernel import encode_kernel
from kernel_helpers import DEVICE, everywhere, inputs
from turbo_kernels import ops
from turbo_kernels.arch import INTERPRET, fp8_dtype
from turbo_kernels.config import override
from turbo_kernels.gemm_fp8 import cases, reference, triton_gemm_fp8
from turbo_kernels.gemm_fp8.triton_quant import quantize, quantize_weight


@pytest.mark.parametrize("section", ["forward", "dgrad", "wgrad"])
def test_every_section_is_read(section: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A section that no launch reads would make a search's sweep over it pure noise."""
    launched: list[int] = []
    real = triton_gemm_fp8.gemm_kernel

    class Spy:
        def __getitem__(self, grid: tuple[int, ...]) -> Callable[..., None]:
            def launch(*args: Any, **meta: Any) -> None:
                launched.append(meta["BLOCK_N"])
                real[grid](*args, **meta)

            return launch

    monkeypatch.setattr(triton_gemm_fp8, "gemm_kernel", Spy())
    params = {"BLOCK_M": 64, "BLOCK_N": 128, "BLOCK_K": 128}
    with everywhere("gemm_fp8", BLOCK_N=32, PERSISTENT_TMA=False), override("gemm_fp8", section, params):
        cases.step(inputs(32, 32, 32))
    assert [n == 128 for n in launched] == [section == s for s in ("forward", "dgrad", "wgrad")]


def test_backward_keeps_only_fp8_and_scales() -> None:
    tensors = inputs(40, 48, 72)
    kept: list[torch.Tensor] = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: kept.append(t) or t, lambda t: t):
        ops.gemm_fp8(tensors["a"], tensors["b"])
    wide = [t for t in kept if t.dtype != fp8_dtype()]
    assert len(kept) == 4
    assert all(t.dtype == torch.float32 and t.numel() * 40 <= kept[0].numel() * 4 for t in wide)


# -- quantization ----------------------------------------------------------------------------------------------------


def magnitudes(rows: int, cols: int, seed: int) -> torch.Tensor:
    """bf16 over 30 binades, some rows zero, some tiny enough for FP8's subnormals."""
    g = torch.Generator().manual_seed(seed)
    x = torch.randn(rows, cols, generator=g) * torch.exp2(torch.randint(-15, 15, (rows, cols), generator=g))
    x[::7] = 0
    x[3::11] *= 1e-30
    return x.bfloat16().to(DEVICE)


def bits(t: torch.Tensor) -> torch.Tensor:
    return t.contiguous().view(torch.uint8 if t.dtype.itemsize == 1 else torch.int32)


@pytest.mark.parametrize(("m", "k"), [(128, 128), (130, 72), (1, 300), (257, 129)])
def test_quantization_is_bitwise_torchs(m: int, k: int) -> None:
    x = magnitudes(m, k, m + k)
    along_k, along_m = quantize(x)
    for got, source in ((along_k, x), (along_m, x.t().contiguous())):
        q, scale = reference.quantize(source, fp8_dtype(), whole=False)
        assert got.q.shape == q.shape
        assert torch.equal(bits(got.q), bits(q))
        assert torch.equal(bits(got.scale), bits(scale[:, ::128].T.contiguous()))


@pytest.mark.parametrize(("n", "k"), [(128, 256), (130, 72), (40, 300)])
def test_weight_quantization_is_bitwise_torchs(n: int, k: int) -> None:
    x = magnitudes(n, k, n + k)
    along_k, along_n = quantize_weight(x)
    q, scale = reference.quantize(x, fp8_dtype(), whole=True)
    assert torch.equal(bits(along_k.q), bits(q))
    assert torch.equal(bits(along_k.scale), bits(scale[::128, ::128].contiguous()))
    qt, _ = reference.quantize(x.t().contiguous(), fp8_dtype(), whole=True)
    assert torch.equal(bits(along_n.q), bits(qt))
    assert along_n.scale is along_k.scale


@pytest.mark.skipif(not INTERPRET, reason="the hardware's own conversion runs on a GPU")
def test_interpreters_rounding_is_torchs() -> None:
    every_bf16 = torch.arange(1 << 16, dtype=torch.int32).to(torch.uint16).view(torch.bfloat16).float()
    g = torch.Generator().manual_seed(0)
    spread = torch.randn(1 << 16, generator=g) * torch.exp2(torch.randint(-14, 10, (1 << 16,), generator=g).float())
    subnormal = torch.rand(1 << 14, generator=g) * 2**-6
    ties = (torch.arange(4096) + 0.5) * 2**-10
    edges = torch.tensor([447.9, 448.0, 456.0, 463.9, 464.0, 464.1, 480.0, 1e30, float("inf"), 2**-10, 2**-9, 2**-6])
    x = torch.cat([every_bf16, spread, subnormal, ties, edges, -edges])
    codes = torch.empty(x.numel(), dtype=torch.uint8)
    block = 1 << 15
    encode_kernel[(-(-x.numel() // block),)](x, codes, x.numel(), BLOCK=block)
    expected = x.clamp(-448, 448).to(torch.float8_e4m3fn).view(torch.uint8)  # clamp keeps NaN
    nan = torch.isnan(x)
    assert torch.equal(codes[~nan], expected[~nan])
    assert ((codes[nan] & 0x7F) == 0x7F).all()
