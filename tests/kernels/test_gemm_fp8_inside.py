"""The insides of gemm_fp8: quantization bit by bit against plain torch, what a launch reads, what is kept; its other
backends, opcheck and compile."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from fp8_code_kernel import encode_kernel
from kernel_helpers import DEVICE, everywhere, inputs, through
from turbo_kernels import FP8Config, ops
from turbo_kernels.arch import INTERPRET, fp8_dtype
from turbo_kernels.config import override
from turbo_kernels.gemm_fp8 import cases, reference, triton_gemm_fp8, triton_gemm_scaled
from turbo_kernels.gemm_fp8.backends import MULTIPLY
from turbo_kernels.gemm_fp8.fp8 import VARIANTS
from turbo_kernels.gemm_fp8.ops import SCHEMES
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


@pytest.mark.parametrize(
    ("section", "kernel", "variant"),
    [("scaled", "scaled_gemm_kernel", "tensorwise"), ("scaled", "scaled_gemm_kernel", "rowwise"),
     ("mx", "mx_gemm_kernel", "mxfp8")],
)  # fmt: skip
def test_a_variants_section_is_read_by_all_three_launches(
    section: str, kernel: str, variant: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    launched: list[int] = []
    real = getattr(triton_gemm_scaled, kernel)

    class Spy:
        def __getitem__(self, grid: tuple[int, ...]) -> Callable[..., None]:
            def launch(*args: Any, **meta: Any) -> None:
                launched.append(meta["BLOCK_N"])
                real[grid](*args, **meta)

            return launch

    monkeypatch.setattr(triton_gemm_scaled, kernel, Spy())
    with override("gemm_fp8", section, {"BLOCK_N": 128}):
        cases.step(cases.make_inputs({"B": 1, "M": 32, "N": 32, "K": 32}, "bf16", variant, 0, DEVICE))
    assert launched == [128, 128, 128]


@pytest.mark.parametrize("variant", VARIANTS)
def test_backward_keeps_only_fp8_and_scales(variant: str) -> None:
    tensors = inputs(40, 48, 72)
    kept: list[torch.Tensor] = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: kept.append(t) or t, lambda t: t):
        ops.gemm_fp8(tensors["a"], tensors["b"], variant=variant)
    assert len(kept) == 4
    codes, scales = kept[::2], kept[1::2]
    assert {t.dtype for t in codes} == {fp8_dtype()}
    assert {t.dtype for t in scales} == {torch.uint8 if variant == "mxfp8" else torch.float32}
    assert all(s.numel() * s.element_size() * 8 <= q.numel() for q, s in zip(codes, scales, strict=True))


# -- backends ----------------------------------------------------------------------------------------------------------


def made(variant: str, m: int, n: int, k: int) -> dict[str, torch.Tensor]:
    return cases.make_inputs({"B": 1, "M": m, "N": n, "K": k}, "bf16", variant, 0, DEVICE)


@pytest.mark.parametrize("variant", ["blockwise", "tensorwise_e5m2", "rowwise_hybrid", "mxfp8_hybrid"])
@pytest.mark.parametrize("size", [(17, 40, 72), (130, 24, 136)], ids=str)
def test_ours_is_plain_torchs_product_of_the_same_codes_TRITON_TORCH(variant: str, size: tuple[int, int, int]) -> None:
    results = []
    for backend in ("TRITON", "TORCH"):
        with through(backend):
            results.append(cases.step(made(variant, *size)))
    for ours, plain in zip(results[0].values(), results[1].values(), strict=True):
        assert (ours.float() - plain.float()).abs().max() <= 2**-7 * plain.float().abs().max()


@pytest.mark.parametrize("variant", ["tensorwise", "rowwise", "tensorwise_hybrid"])
def test_the_librarys_product_HIPBLASLT(variant: str) -> None:
    tensors = made(variant, 32, 48, 64)
    with through("HIPBLASLT"):
        outputs = cases.step(tensors)
    passed, _, detail = cases.check(outputs, cases.reference(tensors), "bf16", variant)
    assert passed, detail


def test_the_library_says_what_it_cannot_do() -> None:
    def refuses(variant: str, m: int, n: int, k: int) -> str:
        x, y = (torch.ones(s, k, dtype=torch.bfloat16, device=DEVICE) for s in (m, n))
        a, b = SCHEMES[variant].activation(x, True, False, "e4m3")[0], SCHEMES[variant].weight(y, False, "e4m3")[0]
        return str(MULTIPLY[variant].backends["HIPBLASLT"].can_handle("forward", a, b, torch.bfloat16))

    assert "multiples of 16, got K=24, N=32" in refuses("rowwise", 8, 32, 24)
    assert "multiples of 16, got K=32, N=40" in refuses("tensorwise", 8, 40, 32)
    assert "no empty operand" in refuses("tensorwise", 0, 16, 16)
    assert refuses("rowwise", 8, 32, 64) == "None"
    assert "HIPBLASLT" not in MULTIPLY["mxfp8"].backends
    if not torch.cuda.is_available():
        assert "sm_90 alone, this is cpu" in refuses("blockwise", 128, 128, 128)


# -- torch's machinery -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("variant", VARIANTS)
def test_opcheck(variant: str) -> None:
    a, b = (torch.randn(s, 24, device=DEVICE).bfloat16().requires_grad_() for s in (8, 40))
    turned = b.detach().t().contiguous().requires_grad_()
    for args in ((a, b, True, torch.bfloat16, variant, "hybrid", True, True),
                 (a, turned, False, torch.float32, variant, "e4m3", False, True)):  # fmt: skip
        torch.library.opcheck(torch.ops.turbo.gemm_fp8.default, args,
                              test_utils=("test_schema", "test_faketensor", "test_autograd_registration"))  # fmt: skip
    _, *kept = torch.ops.turbo.gemm_fp8(a.detach(), b.detach(), True, torch.bfloat16, variant, "e4m3", True, True)
    arguments = (True, torch.bfloat16, torch.float16, variant, "e4m3", True, True)
    torch.library.opcheck(
        torch.ops.turbo.gemm_fp8_gradients.default, (torch.ones(8, 40, device=DEVICE), *kept, *arguments)
    )


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("wanted", ["ab", "a", "b"])
def test_compiled_step_is_the_eager_one(variant: str, wanted: str) -> None:
    t = inputs(20, 24, 40)
    leaves = [t[name].detach().requires_grad_(name in wanted) for name in ("a", "b")]
    needed = [x for x in leaves if x.requires_grad]

    def step(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return ops.gemm_fp8(a, b, config=FP8Config(variant, "hybrid"))

    torch._dynamo.reset()  # one code object serves every case here, and dynamo limits its recompilations
    results = []
    for function in (step, torch.compile(step, backend="aot_eager", fullgraph=True)):
        out = function(*leaves)
        results.append((out, *torch.autograd.grad(out, needed, t["grad_out"])))
    assert all(map(torch.equal, *results))


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


@pytest.mark.parametrize("whole", [False, True], ids=["activation", "weight"])
def test_e5m2_quantization_is_bitwise_torchs(whole: bool) -> None:
    x = magnitudes(130, 72, 9)
    quantized = quantize_weight(x, encoding="e5m2") if whole else quantize(x, encoding="e5m2")
    for got, source in zip(quantized, (x, x.t().contiguous()), strict=True):
        q, _ = reference.quantize(source, fp8_dtype("e5m2"), whole)
        assert torch.equal(bits(got.q), bits(q))


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
    encode_kernel[(-(-x.numel() // block),)](x, codes, x.numel(), BLOCK=block)  # type: ignore[arg-type]
    expected = x.clamp(-448, 448).to(torch.float8_e4m3fn).view(torch.uint8)  # clamp keeps NaN
    nan = torch.isnan(x)
    assert torch.equal(codes[~nan], expected[~nan])
    assert ((codes[nan] & 0x7F) == 0x7F).all()
