"""quantize and dequantize through the public API and per backend, bit by bit against plain torch."""

from __future__ import annotations

import pytest
import torch
from kernel_helpers import DEVICE, everywhere
from turbo_kernels import ops
from turbo_kernels.arch import fp8_dtype
from turbo_kernels.gemm_fp8.triton_quant import Quantized
from turbo_kernels.quantization import SPEC, backends, cases, reference
from turbo_kernels.quantization.formats import code_dtype, limits

CASES = [(v, e) for v in SPEC.variants for e in ("e4m3", "e5m2") if e == "e4m3" or v != "mxfp4"]
NAMES = [f"{v}-{e}" for v, e in CASES]
BACKENDS = ["TRITON", "TORCH"]
EVERY = pytest.mark.parametrize(("variant", "encoding"), CASES, ids=[f"quantize-{n}" for n in NAMES])
SHAPES = [(64, 64), (130, 72), (1, 300), (95, 129)]


def magnitudes(rows: int, cols: int, dtype: torch.dtype = torch.bfloat16, seed: int = 0) -> torch.Tensor:
    """30 binades, some rows zero, some tiny enough for subnormal codes and the least scales."""
    g = torch.Generator().manual_seed(seed)
    x = torch.randn(rows, cols, generator=g) * torch.exp2(torch.randint(-15, 15, (rows, cols), generator=g))
    x[::7] = 0
    x[3::11] *= 1e-30
    return x.to(dtype).to(DEVICE)


def bits(t: torch.Tensor) -> torch.Tensor:
    return t.contiguous().view(torch.uint8 if t.dtype.itemsize == 1 else torch.int32)


def assert_exact(got: Quantized | None, x: torch.Tensor, variant: str, encoding: str, turned: bool = False) -> None:
    assert got is not None
    q, scale = reference.quantize(x, variant, code_dtype(variant, encoding))
    if turned and variant == "blockwise_weight":
        scale = scale.t()
    for part, expected in ((got.q, q), (got.scale, scale)):
        assert part.dtype == expected.dtype
        assert part.shape == expected.shape
        assert torch.equal(bits(part), bits(expected))


@EVERY
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_codes_are_exact(variant: str, encoding: str, backend: str, shape: tuple[int, int]) -> None:
    x = magnitudes(*shape)
    along_k, along_m = backends.quantize.backends[backend].run(x, variant, encoding, True, True)
    assert_exact(along_k, x, variant, encoding)
    assert_exact(along_m, x.t().contiguous(), variant, encoding, turned=True)


@EVERY
def test_one_output_alone_and_other_tiles(variant: str, encoding: str) -> None:
    x = magnitudes(40, 100)
    with everywhere("quantization", BLOCK_M=32, BLOCK_K=128):
        along_k, nothing = backends.quantize.backends["TRITON"].run(x, variant, encoding, True, False)
        assert nothing is None
        assert_exact(along_k, x, variant, encoding)
        nothing, along_m = backends.quantize.backends["TRITON"].run(x, variant, encoding, False, True)
        assert nothing is None
        assert_exact(along_m, x.t().contiguous(), variant, encoding, turned=True)


@EVERY
@pytest.mark.parametrize("layout", ["transposed", "sliced", "expanded"])
@pytest.mark.parametrize("dtype", [torch.float16, torch.float32], ids=["fp16", "fp32"])
def test_any_strides_and_dtypes(variant: str, encoding: str, layout: str, dtype: torch.dtype) -> None:
    x = magnitudes(96, 96, dtype)
    x = {"transposed": x.t(), "sliced": x[1::2, 3::2], "expanded": x[:1].expand(40, 96)}[layout]
    got = ops.quantize(x, variant, encoding, transpose=True)
    assert_exact(Quantized(got.q, got.scale), x.contiguous(), variant, encoding)
    assert_exact(Quantized(got.q_t, got.scale_t), x.t().contiguous(), variant, encoding)  # type: ignore[arg-type]


@EVERY
@pytest.mark.parametrize("backend", BACKENDS)
def test_there_and_back(variant: str, encoding: str, backend: str) -> None:
    """dequantize is the product of value and scale, and near x; `transpose` gives the same of x's transpose."""
    x = magnitudes(70, 140)
    got = ops.quantize(x, variant, encoding, transpose=True)
    assert got.q_t is not None and got.scale_t is not None
    for q, scale, source in ((got.q, got.scale, x), (got.q_t, got.scale_t, x.t())):
        columns = source.shape[1]
        back = backends.dequantize.backends[backend].run(q, scale, variant, encoding, columns, torch.float32)
        assert torch.equal(back, reference.dequantize(q, scale, variant)[:, :columns])
        assert torch.equal(back, ops.dequantize(q, scale, variant, columns, torch.float32))
        noise = (back - source.float()).norm() / source.float().norm()
        assert noise < {"mxfp4": 0.2}.get(variant, 0.045 if encoding == "e4m3" else 0.08)
        for dtype in (torch.bfloat16, torch.float16):
            narrow = ops.dequantize(q, scale, variant, columns, dtype)
            assert narrow.dtype == dtype
            torch.testing.assert_close(narrow.float(), back.to(dtype).float(), rtol=2**-7, atol=1e-7)


@pytest.mark.parametrize("variant", SPEC.variants, ids=[f"quantize-{v}" for v in SPEC.variants])
def test_leading_dimensions(variant: str) -> None:
    x = magnitudes(6 * 5, 72).view(6, 5, 72)
    got, flat = ops.quantize(x, variant), ops.quantize(x.view(30, 72), variant)
    assert got.q.shape == (6, 5, flat.q.shape[1])
    assert torch.equal(bits(got.q).flatten(), bits(flat.q).flatten())
    assert torch.equal(got.scale, flat.scale)
    assert ops.dequantize(got.q, got.scale, variant, 72).shape == x.shape
    assert torch.equal(bits(ops.quantize(x[0, 0], variant).q), bits(ops.quantize(x[0, :1], variant).q[0]))


@EVERY
def test_no_gradient(variant: str, encoding: str) -> None:
    x = magnitudes(32, 64, torch.float32).requires_grad_()
    got = ops.quantize(x, variant, encoding)
    assert not got.q.requires_grad and not got.scale.requires_grad
    assert not ops.dequantize(got.q, got.scale, variant).requires_grad


@pytest.mark.parametrize("variant", SPEC.variants, ids=[f"quantize-{v}" for v in SPEC.variants])
@pytest.mark.parametrize("shape", [(0, 64), (64, 0), (0, 0)], ids=str)
def test_nothing_to_quantize(variant: str, shape: tuple[int, int]) -> None:
    x = torch.empty(shape, dtype=torch.bfloat16, device=DEVICE)
    got = ops.quantize(x, variant, transpose=True)
    assert got.q.numel() == 0
    if variant in ("tensorwise", "rowwise"):
        assert torch.equal(got.scale, reference.quantize(x, variant, fp8_dtype())[1])
    assert ops.dequantize(got.q, got.scale, variant, shape[1]).shape == shape


@EVERY
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("poison", [float("nan"), float("inf"), -float("inf")], ids=["nan", "inf", "minus_inf"])
def test_what_is_not_finite_is_carried(variant: str, encoding: str, backend: str, poison: float) -> None:
    x = magnitudes(64, 160, seed=4)
    x[5, 70] = poison
    for output in backends.quantize.backends[backend].run(x, variant, encoding, True, True):
        turned = output.q.shape[0] == 160
        scale = output.scale.t() if turned and variant == "blockwise_weight" else output.scale
        back = ops.dequantize(output.q, scale, variant, 64 if turned else 160, torch.float32)
        back = back.t() if turned else back
        assert torch.isnan(back[5, 70])
        if variant != "tensorwise":  # what shares no scale with it stays
            assert torch.isfinite(back[6, 150])


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(("variant", "encoding"), [("mxfp8", "e4m3"), ("mxfp8", "e5m2"), ("mxfp4", "e4m3")])
def test_the_largest_of_a_block_never_overflows(variant: str, encoding: str, backend: str) -> None:
    """Up to where it rounds to the format's largest value it keeps the finer scale, from there it takes the next."""
    largest, emax, overflow = limits(code_dtype(variant, encoding))
    beyond = overflow * 2.0**emax
    below = torch.nextafter(torch.tensor(beyond), torch.tensor(0.0)).item()
    x = torch.zeros(6, 32, device=DEVICE)
    x[:, 0] = torch.tensor([largest, below, -below, beyond, 2.0**emax, 2.0 ** (emax + 1)])
    got, _ = backends.quantize.backends[backend].run(x, variant, encoding, True, False)
    back = ops.dequantize(got.q, got.scale, variant, dtype=torch.float32)
    assert got.scale[:, 0].tolist() == [127, 127, 127, 128, 127, 128]
    assert back[:3, 0].tolist() == [largest, largest, -largest]
    assert back[4:, 0].tolist() == [2.0**emax, 2.0 ** (emax + 1)]
    assert largest <= back[3, 0] <= 2.0 ** (emax + 1)


@pytest.mark.parametrize(("variant", "encoding"), [("mxfp8", "e4m3"), ("mxfp8", "e5m2"), ("mxfp4", "e4m3")])
def test_the_ends_of_fp32_have_scales(variant: str, encoding: str) -> None:
    x = torch.full((2, 32), torch.finfo(torch.float32).max, device=DEVICE)
    x[1] = 2.0**-149
    got = ops.quantize(x, variant, encoding)
    assert got.scale[0, 0] == 128 + 127 - limits(code_dtype(variant, encoding)).emax
    assert got.scale[1, 0] == 0
    assert (ops.dequantize(got.q, got.scale, variant, dtype=torch.float32)[1] == 0).all()


@EVERY
@pytest.mark.deterministic
def test_two_runs_give_the_same_bits(variant: str, encoding: str) -> None:
    x = magnitudes(70, 140)
    for first, second in zip(*(ops.quantize(x, variant, encoding, transpose=True) for _ in range(2)), strict=True):
        assert torch.equal(bits(first), bits(second))


@EVERY
def test_opcheck(variant: str, encoding: str) -> None:
    x = magnitudes(8, 40)
    for transpose in (False, True):
        torch.library.opcheck(torch.ops.turbo.quantize.default, (x, variant, encoding, transpose))
    got = ops.quantize(x, variant, encoding)
    args = (got.q.view(torch.uint8), got.scale, variant, encoding, 40, torch.float32)
    torch.library.opcheck(torch.ops.turbo.dequantize.default, args)


@pytest.mark.parametrize("variant", SPEC.variants, ids=[f"quantize-{v}" for v in SPEC.variants])
def test_compiles(variant: str) -> None:
    def there_and_back(x: torch.Tensor) -> torch.Tensor:
        q, scale, q_t, scale_t = ops.quantize(x * 2, variant, transpose=True)
        return ops.dequantize(q, scale, variant, 72) + ops.dequantize(q_t, scale_t, variant, 40).t()

    x = magnitudes(40, 72)
    compiled = torch.compile(there_and_back, backend="aot_eager", fullgraph=True)
    assert torch.equal(compiled(x), there_and_back(x))


@pytest.mark.parametrize("variant", SPEC.variants, ids=[f"quantize-{v}" for v in SPEC.variants])
def test_the_adapter_judges(variant: str) -> None:
    inputs = cases.make_inputs({"rows": 64, "cols": 96}, "bf16", variant, 1, DEVICE)
    outputs, expected = cases.step(inputs), cases.reference(inputs)
    passed, metrics, detail = cases.check(outputs, expected, "bf16", variant)
    assert passed, detail
    assert set(metrics) == {"out_snr"}
    outputs["transposed"][3] = outputs["transposed"][4].clone()
    passed, _, detail = cases.check(outputs, expected, "bf16", variant)
    assert not passed and detail.startswith("transposed")


# -- errors ------------------------------------------------------------------------------------------------------------


def test_errors_of_quantize_name_what_is_wrong() -> None:
    x = torch.zeros(4, 8, device=DEVICE)
    with pytest.raises(ValueError, match="no variant 'colwise'; there are tensorwise, rowwise"):
        ops.quantize(x, "colwise")
    with pytest.raises(ValueError, match="no encoding 'e3m4'; there are e4m3, e5m2"):
        ops.quantize(x, "rowwise", "e3m4")
    with pytest.raises(TypeError, match=r"x is torch\.float64; bf16, fp16 or fp32"):
        ops.quantize(x.double(), "rowwise")
    with pytest.raises(ValueError, match="x is a scalar"):
        ops.quantize(x[0, 0], "rowwise")


def test_errors_of_dequantize_name_what_is_wrong() -> None:
    q, scale = ops.quantize(torch.zeros(4, 8, device=DEVICE), "rowwise")[:2]
    with pytest.raises(ValueError, match="no variant 'colwise'"):
        ops.dequantize(q, scale, "colwise")
    with pytest.raises(TypeError, match=r"q is torch\.uint8; rowwise has torch\.float8_e4m3"):
        ops.dequantize(q.view(torch.uint8), scale, "rowwise")
    with pytest.raises(TypeError, match=r"q is torch\.float8_e4m3\w+; mxfp4 has torch\.uint8"):
        ops.dequantize(q, scale, "mxfp4")
    with pytest.raises(TypeError, match=r"scale torch\.float64, result torch\.bfloat16"):
        ops.dequantize(q, scale.double(), "rowwise")
    with pytest.raises(TypeError, match=r"scale torch\.float32, result torch\.int32"):
        ops.dequantize(q, scale, "rowwise", dtype=torch.int32)
    with pytest.raises(ValueError, match=r"scale \(3,\), 8 columns; rowwise has a scale \(4,\)"):
        ops.dequantize(q, scale[:3], "rowwise")
    with pytest.raises(ValueError, match=r"9 columns; rowwise has .* at most 8 columns"):
        ops.dequantize(q, scale, "rowwise", 9)
