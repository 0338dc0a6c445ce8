"""gemm_fp8 through its public API: both directions against the unquantized product.

The focused test of a campaign: it knows nothing of the kernels' insides, which a candidate may change.
test_gemm_fp8_inside.py has those, the other backends and torch's machinery.
"""

from __future__ import annotations

import pytest
import torch
from kernel_helpers import DEVICE, everywhere, inputs
from turbo_kernels import FP8Config, ops
from turbo_kernels.case_kit import training_step
from turbo_kernels.check import GATES, judge
from turbo_kernels.gemm_fp8 import cases, reference

SMALL = {"BLOCK_M": 32, "BLOCK_N": 32, "BLOCK_K": 32}
BIG = {"BLOCK_M": 64, "BLOCK_N": 128, "BLOCK_K": 128}
WIDE = {"BLOCK_M": 64, "BLOCK_N": 256, "BLOCK_K": 64, "GROUP_M": 4}
TMA = {"BLOCK_M": 64, "BLOCK_N": 64, "BLOCK_K": 128, "PERSISTENT_TMA": True}
TMA_WIDE = {"BLOCK_M": 64, "BLOCK_N": 256, "BLOCK_K": 128, "PERSISTENT_TMA": True}


def assert_right(outputs: dict[str, torch.Tensor], tensors: dict[str, torch.Tensor]) -> None:
    passed, metrics, detail = cases.check(outputs, cases.reference(tensors), "bf16", "blockwise")
    assert passed, detail
    assert set(metrics) == {"out_snr", "da_snr", "db_snr"}


@pytest.mark.parametrize(
    ("m", "n", "k", "params"),
    [
        (64, 64, 64, {}),  # the committed configuration
        (33, 40, 72, SMALL),
        (130, 72, 200, BIG),
        (130, 72, 200, TMA),
        (1, 131, 127, SMALL),
        (7, 300, 129, WIDE),
        (127, 257, 64, TMA_WIDE),
        (31, 37, 41, TMA),
        (40, 24, 136, BIG | {"GROUP_M": 8}),
    ],
)
def test_step(m: int, n: int, k: int, params: dict[str, int]) -> None:
    tensors = inputs(m, n, k)
    with everywhere("gemm_fp8", **params):
        assert_right(cases.step(tensors), tensors)


VARIANTS = [f"{config.variant}_{config.format}" for config in cases.CONFIGS]
SIZES = {"even": (64, 64, 64), "odd": (33, 41, 71)}


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("variant", VARIANTS, ids=[f"TRITON-{v}" for v in VARIANTS])
def test_variant(variant: str, size: str) -> None:
    m, n, k = SIZES[size]
    tensors = cases.make_inputs({"B": 1, "M": m, "N": n, "K": k}, "bf16", variant, 0, DEVICE)
    passed, metrics, detail = cases.check(cases.step(tensors), cases.reference(tensors), "bf16", variant)
    assert passed, detail
    assert set(metrics) == {"out_snr", "da_snr", "db_snr"}


@pytest.mark.parametrize("variant", ["tensorwise", "rowwise", "mxfp8"], ids=lambda v: f"TRITON-{v}")
def test_variant_by_one_keyword_or_the_other(variant: str) -> None:
    t = inputs(20, 24, 40)
    short = ops.gemm_fp8(t["a"], t["b"], variant=variant)
    assert torch.equal(short, ops.gemm_fp8(t["a"], t["b"], config=FP8Config(variant)))
    assert not torch.equal(short, ops.gemm_fp8(t["a"], t["b"]))


@pytest.mark.parametrize("variant", ["blockwise", "tensorwise", "rowwise", "mxfp8"], ids=lambda v: f"TRITON-{v}")
@pytest.mark.parametrize("trans_b", [False, True], ids=["xN", "xT"])
def test_activation_stored_transposed(variant: str, trans_b: bool) -> None:
    t = inputs(24, 40, 72)
    b = t["b"] if trans_b else t["b"].detach().t().contiguous().requires_grad_()
    turned = t["a"].detach().t().contiguous().requires_grad_()
    straight = ops.gemm_fp8(t["a"], b, trans_b, variant)
    out = ops.gemm_fp8(turned, b, trans_b, variant, trans_a=True)
    expected = torch.autograd.grad(straight, (t["a"], b), t["grad_out"])
    got = torch.autograd.grad(out, (turned, b), t["grad_out"])
    assert torch.equal(out, straight)
    assert torch.equal(got[0].t(), expected[0])
    assert torch.equal(got[1], expected[1])


def test_weight_stored_transposed() -> None:
    tensors = inputs(48, 56, 136)
    with everywhere("gemm_fp8", **BIG):
        straight = cases.step(tensors)
        turned = tensors["b"].detach().t().contiguous().requires_grad_()
        a = tensors["a"].detach().requires_grad_()
        out = training_step(
            lambda a, b: ops.gemm_fp8(a, b, trans_b=False), {"a": a, "b": turned, "grad_out": tensors["grad_out"]}
        )
    assert torch.equal(out["out"], straight["out"])
    assert torch.equal(out["da"], straight["da"])
    assert torch.equal(out["db"].t(), straight["db"])


def test_strided_inputs_and_expanded_gradient() -> None:
    """A transposed activation, and the gradient of `sum`, whose strides are zero."""
    tensors = inputs(40, 48, 72)
    a = tensors["a"].detach().t().contiguous().t().requires_grad_()
    with everywhere("gemm_fp8", **BIG):
        out = ops.gemm_fp8(a, tensors["b"])
        out.sum().backward()
    expected = reference.step(a, tensors["b"], torch.ones_like(tensors["grad_out"]))
    got = {"out": out.detach(), "da": a.grad, "db": tensors["b"].grad}
    passed, _, detail = judge(got, expected, GATES["fp8_e4m3"], torch.bfloat16)  # type: ignore[arg-type]
    assert passed, detail


@pytest.mark.parametrize("wanted", ["a", "b"])
def test_only_the_wanted_gradient(wanted: str) -> None:
    tensors = inputs(40, 48, 72)
    with everywhere("gemm_fp8", **BIG):
        both = cases.step(tensors)
        leaves = {n: t.detach().requires_grad_(n == wanted) for n, t in tensors.items()}
        out = ops.gemm_fp8(leaves["a"], leaves["b"])
        out.backward(tensors["grad_out"])
    assert torch.equal(out, both["out"])
    for name in ("a", "b"):
        grad = leaves[name].grad
        assert torch.equal(grad, both[f"d{name}"]) if name == wanted else grad is None  # type: ignore[arg-type]


@pytest.mark.parametrize("out_dtype", [torch.float16, torch.float32])
def test_out_dtype(out_dtype: torch.dtype) -> None:
    tensors = inputs(40, 48, 72)
    with everywhere("gemm_fp8", **BIG):
        out = ops.gemm_fp8(tensors["a"], tensors["b"], out_dtype=out_dtype)
    expected = {"out": cases.reference(tensors)["out"]}
    passed, _, detail = judge({"out": out.detach()}, expected, GATES["fp8_e4m3"], out_dtype)
    assert passed, detail


@pytest.mark.parametrize("variant", ["blockwise", "tensorwise", "rowwise", "mxfp8"], ids=lambda v: f"TRITON-{v}")
def test_no_tokens(variant: str) -> None:
    a = torch.empty(0, 64, dtype=torch.bfloat16, device=DEVICE, requires_grad=True)
    b = torch.randn(40, 64, device=DEVICE).bfloat16().requires_grad_()
    out = ops.gemm_fp8(a, b, variant=variant)
    out.backward(torch.empty_like(out))
    assert out.shape == (0, 40)
    assert a.grad is not None
    assert a.grad.shape == a.shape
    assert b.grad is not None
    assert not b.grad.any()


@pytest.mark.parametrize("variant", ["blockwise", "tensorwise", "rowwise", "mxfp8"], ids=lambda v: f"TRITON-{v}")
def test_small_integers_are_near_exact(variant: str) -> None:
    """Inputs in {-1, 0, 1} quantize without error: a single dropped element of K would be off by 1."""
    g = torch.Generator().manual_seed(3)
    a, b = (torch.randint(-1, 2, s, generator=g).bfloat16().to(DEVICE) for s in ((20, 260), (24, 260)))
    for params in (BIG, TMA) if variant == "blockwise" else (BIG,):
        with everywhere("gemm_fp8", **params):
            out = ops.gemm_fp8(a, b, variant=variant)
        assert (out.float() - a.float() @ b.float().T).abs().max() < 0.25


@pytest.mark.parametrize("variant", ["blockwise", "tensorwise", "rowwise", "mxfp8"], ids=lambda v: f"TRITON-{v}")
def test_nan_reaches_the_output(variant: str) -> None:
    tensors = inputs(16, 24, 32)
    a = tensors["a"].detach().clone()
    a[3, 5] = float("nan")
    out = ops.gemm_fp8(a, tensors["b"].detach(), variant=variant)
    assert torch.isnan(out[3]).all()
    if variant != "tensorwise":  # there one scale serves all
        assert torch.isfinite(out[:3]).all()


@pytest.mark.deterministic
@pytest.mark.parametrize("variant", ["blockwise", "tensorwise", "rowwise", "mxfp8"], ids=lambda v: f"TRITON-{v}")
def test_the_same_bits_twice(variant: str) -> None:
    one, two = (cases.step(cases.make_inputs({"B": 1, "M": 70, "N": 40, "K": 100}, "bf16", variant, 5, DEVICE))
                for _ in range(2))  # fmt: skip
    assert all(torch.equal(one[name], two[name]) for name in one)


# -- errors ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("a", "b", "options", "error", "said"),
    [
        (
            (4, 8),
            (4, 8),
            {"variant": "rowise"},
            ValueError,
            "no variant 'rowise'; there are blockwise, tensorwise, row",
        ),
        ((4, 8), (4, 8), {"variant": "rowwise", "config": FP8Config()}, ValueError, "give one of them"),
        ((4, 8), (4, 8), {"trans_a": True}, ValueError, "trans_a=True"),
        ((4, 8), (4, 9), {}, ValueError, "don't multiply"),
        ((4, 8), (4, 8), {"trans_b": False}, ValueError, "don't multiply"),
        ((2, 4, 8), (4, 8), {}, ValueError, "don't multiply"),
        ((4, 8), (4, 8), {"out_dtype": torch.int32}, TypeError, "torch.int32"),
    ],
)
def test_errors_name_what_is_wrong(
    a: tuple[int, ...], b: tuple[int, ...], options: dict, error: type, said: str
) -> None:
    x, y = (torch.zeros(s, dtype=torch.bfloat16, device=DEVICE) for s in (a, b))
    with pytest.raises(error, match=said):
        ops.gemm_fp8(x, y, **options)


def test_a_wrong_config_says_what_there_is() -> None:
    with pytest.raises(ValueError, match="no variant 'mxfp4'; there are blockwise, tensorwise, rowwise, mxfp8"):
        FP8Config("mxfp4")
    with pytest.raises(ValueError, match="no format 'e3m4'; there are e4m3, e5m2, hybrid"):
        FP8Config(format="e3m4")


def test_inputs_of_another_dtype_are_refused() -> None:
    x = torch.zeros(4, 8, device=DEVICE)
    with pytest.raises(TypeError, match=r"torch\.float32"):
        ops.gemm_fp8(x, x)
