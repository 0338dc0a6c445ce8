"""gemm_fp4 through its public API: both directions against the unquantized product, and against the quantized one."""

from __future__ import annotations

import pytest
import torch
from kernel_helpers import DEVICE, everywhere, inputs
from turbo_kernels import ops
from turbo_kernels.case_kit import training_step
from turbo_kernels.check import GATES, judge, snr_db
from turbo_kernels.gemm_fp4 import backends, cases, reference
from turbo_kernels.gemm_fp8.triton_quant import Quantized
from turbo_kernels.quantization.reference import quantize

SMALL = {"BLOCK_M": 32, "BLOCK_N": 32, "BLOCK_K": 64}
BIG = {"BLOCK_M": 64, "BLOCK_N": 128, "BLOCK_K": 128}
WIDE = {"BLOCK_M": 32, "BLOCK_N": 64, "BLOCK_K": 256, "GROUP_M": 4}
# The output's own rounding (bf16) is all that may be lost beyond the operands' quantization.
EXACT_DB = {torch.bfloat16: 48.0, torch.float16: 64.0, torch.float32: 120.0}


def assert_exact(outputs: dict[str, torch.Tensor], tensors: dict[str, torch.Tensor]) -> None:
    expected = reference.quantized_step(tensors["a"], tensors["b"], tensors["grad_out"])
    for name, ref in expected.items():
        assert outputs[name].shape == ref.shape
        assert snr_db(outputs[name], ref) > EXACT_DB[outputs[name].dtype], name


@pytest.mark.parametrize("dtype", ["bf16", "fp16"])
@pytest.mark.parametrize(
    ("m", "n", "k", "params"),
    [
        (64, 64, 64, {}),  # the committed configuration
        (33, 40, 72, SMALL),
        (130, 72, 200, BIG),
        (40, 300, 129, WIDE),
        (96, 64, 136, BIG | {"GROUP_M": 8}),
    ],
    ids=["gemm_fp4-mxfp4-TRITON-committed", *(f"gemm_fp4-mxfp4-TRITON-{s}" for s in ("small", "big", "wide", "group"))],
)
def test_step(dtype: str, m: int, n: int, k: int, params: dict[str, int]) -> None:
    tensors = inputs(m, n, k, dtype)
    with everywhere("gemm_fp4", **params):
        outputs = cases.step(tensors)
    passed, metrics, detail = cases.check(outputs, cases.reference(tensors), dtype, "mxfp4")
    assert passed, detail
    assert set(metrics) == {"out_snr", "da_snr", "db_snr"}
    assert min(metrics.values()) > 14
    assert_exact(outputs, tensors)


@pytest.mark.parametrize(("m", "n", "k"), [(1, 131, 127), (17, 1, 33), (31, 37, 1)], ids=str)
def test_thin_shapes_lose_nothing_but_fp4s_rounding_mxfp4_TRITON(m: int, n: int, k: int) -> None:
    tensors = inputs(m, n, k)
    with everywhere("gemm_fp4", **SMALL):
        assert_exact(cases.step(tensors), tensors)


@pytest.mark.parametrize("backend", ["TRITON", "TORCH"], ids=lambda b: f"mxfp4-{b}")
@pytest.mark.parametrize("out_dtype", list(EXACT_DB), ids=str)
def test_backends_give_the_quantized_product(backend: str, out_dtype: torch.dtype) -> None:
    tensors = inputs(40, 48, 72)
    a, b = (Quantized(*quantize(tensors[n].detach(), "mxfp4", None)) for n in "ab")
    run = backends.matmul.backends[backend]
    assert run.can_handle("forward", a, b, out_dtype) is None
    out = run.run("forward", a, b, out_dtype)
    assert out.dtype == out_dtype
    expected = reference.quantized_step(tensors["a"], tensors["b"], tensors["grad_out"])["out"]
    assert snr_db(out, expected) > EXACT_DB[out_dtype]


@pytest.mark.parametrize("section", ["forward", "dgrad", "wgrad"])
def test_every_section_is_read(section: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from turbo_kernels.config import override
    from turbo_kernels.gemm_fp4 import triton_gemm_fp4

    launched: list[int] = []
    real = triton_gemm_fp4.gemm_kernel

    class Spy:
        def __getitem__(self, grid: tuple[int, ...]):
            return lambda *args, **meta: (launched.append(meta["BLOCK_K"]), real[grid](*args, **meta))

    monkeypatch.setattr(triton_gemm_fp4, "gemm_kernel", Spy())
    with everywhere("gemm_fp4", BLOCK_K=64), override("gemm_fp4", section, {"BLOCK_K": 128}):
        cases.step(inputs(32, 32, 32))
    assert [k == 128 for k in launched] == [section == s for s in ("forward", "dgrad", "wgrad")]


def test_weight_stored_transposed_mxfp4() -> None:
    tensors = inputs(48, 56, 136)
    straight = cases.step(tensors)
    turned = tensors["b"].detach().t().contiguous().requires_grad_()
    leaves = {"a": tensors["a"].detach().requires_grad_(), "b": turned, "grad_out": tensors["grad_out"]}
    out = training_step(lambda a, b: ops.gemm_fp4(a, b, trans_b=False), leaves)
    assert torch.equal(out["out"], straight["out"])
    assert torch.equal(out["da"], straight["da"])
    assert torch.equal(out["db"].t(), straight["db"])


def test_strided_inputs_and_expanded_gradient_mxfp4() -> None:
    """A transposed activation, a sliced weight, and the gradient of `sum`, whose strides are zero."""
    tensors = inputs(40, 96, 72)
    a = tensors["a"].detach().t().contiguous().t().requires_grad_()
    b = tensors["b"].detach()[::2].requires_grad_()
    out = ops.gemm_fp4(a, b)
    out.sum().backward()
    assert a.grad is not None and b.grad is not None
    ones = torch.ones_like(out)
    assert_exact({"out": out.detach(), "da": a.grad, "db": b.grad}, {"a": a, "b": b, "grad_out": ones})


@pytest.mark.parametrize("wanted", ["a", "b"])
def test_only_the_wanted_gradient_mxfp4(wanted: str) -> None:
    tensors = inputs(40, 48, 72)
    both = cases.step(tensors)
    leaves = {n: t.detach().requires_grad_(n == wanted) for n, t in tensors.items()}
    out = ops.gemm_fp4(leaves["a"], leaves["b"])
    out.backward(tensors["grad_out"])
    assert torch.equal(out, both["out"])
    for name in ("a", "b"):
        grad = leaves[name].grad
        assert torch.equal(grad, both[f"d{name}"]) if name == wanted else grad is None  # type: ignore[arg-type]


def test_backward_keeps_only_fp4_mxfp4() -> None:
    tensors = inputs(64, 96, 128)
    kept: list[torch.Tensor] = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: kept.append(t) or t, lambda t: t):
        ops.gemm_fp4(tensors["a"], tensors["b"])
    assert {t.dtype for t in kept} == {torch.uint8}
    assert sum(t.numel() for t in kept) == (64 + 96) * 128 * 17 // 32  # half a byte a code, a byte a block of 32
    with torch.no_grad():
        assert not ops.gemm_fp4(tensors["a"], tensors["b"]).requires_grad


@pytest.mark.parametrize(("m", "n", "k"), [(0, 40, 64), (24, 0, 64), (24, 40, 0)], ids=str)
def test_empty_sizes_mxfp4(m: int, n: int, k: int) -> None:
    tensors = inputs(m, n, k)
    outputs = cases.step(tensors)
    for name, ref in cases.reference(tensors).items():
        assert outputs[name].shape == ref.shape
        assert not outputs[name].any()


def test_small_integers_are_exact_mxfp4() -> None:
    """Inputs in {-1, 0, 1} quantize without error: a single dropped element of K would be off by 1."""
    g = torch.Generator().manual_seed(3)
    a, b = (torch.randint(-1, 2, s, generator=g).bfloat16().to(DEVICE) for s in ((20, 260), (24, 260)))
    for params in (SMALL, BIG, WIDE):
        with everywhere("gemm_fp4", **params):
            out = ops.gemm_fp4(a, b, out_dtype=torch.float32)
        assert torch.equal(out, a.float() @ b.float().T)


@pytest.mark.parametrize("poison", [float("nan"), float("inf")], ids=str)
def test_what_is_not_finite_reaches_the_output_mxfp4(poison: float) -> None:
    tensors = inputs(16, 24, 64)
    a = tensors["a"].detach().clone()
    a[3, 5] = poison
    out = ops.gemm_fp4(a, tensors["b"].detach())
    assert torch.isnan(out[3]).all()
    assert torch.isfinite(out[:3]).all()


def test_the_ends_of_the_scales_range_mxfp4() -> None:
    """Tiny operands beside huge ones: scales far apart multiply without over- or underflow on the way."""
    tensors = inputs(32, 32, 64)
    a, b = tensors["a"].detach() * 2.0**-120, tensors["b"].detach() * 2.0**110
    out = ops.gemm_fp4(a, b, out_dtype=torch.float32)
    same = ops.gemm_fp4(tensors["a"].detach(), tensors["b"].detach(), out_dtype=torch.float32)
    torch.testing.assert_close(out * 2.0**10, same, rtol=1e-6, atol=1e-5)


@pytest.mark.deterministic
def test_two_steps_give_the_same_bits_mxfp4_TRITON() -> None:
    tensors = inputs(40, 48, 72)
    first = {k: t.clone() for k, t in cases.step(tensors).items()}
    tensors["a"].grad = tensors["b"].grad = None
    for name, t in cases.step(tensors).items():
        assert torch.equal(t, first[name])


@pytest.mark.parametrize("trans_b", [True, False])
def test_opcheck_mxfp4(trans_b: bool) -> None:
    tensors = inputs(8, 16, 24)
    a, b = tensors["a"], tensors["b"] if trans_b else tensors["b"].detach().t().contiguous().requires_grad_()
    torch.library.opcheck(torch.ops.turbo.gemm_fp4.default, (a, b, trans_b, torch.bfloat16, True, True))
    saved = torch.ops.turbo.gemm_fp4(a.detach(), b.detach(), trans_b, torch.bfloat16, True, True)[1:]
    args = (tensors["grad_out"], *saved, trans_b, torch.bfloat16, torch.bfloat16)
    torch.library.opcheck(torch.ops.turbo.gemm_fp4_backward.default, (*args, True, True))


@pytest.mark.parametrize("need", [(False, True), (True, False), (False, False)], ids=str)
def test_opcheck_of_one_gradient_mxfp4(need: tuple[bool, bool]) -> None:
    tensors = inputs(8, 16, 24)
    plain = (tensors["a"].detach(), tensors["b"].detach(), True, torch.float32, *need)
    torch.library.opcheck(torch.ops.turbo.gemm_fp4.default, plain, test_utils=("test_schema", "test_faketensor"))
    saved = torch.ops.turbo.gemm_fp4(*plain)[1:]
    if any(need):
        args = (tensors["grad_out"], *saved, True, torch.bfloat16, torch.bfloat16, *need)
        torch.library.opcheck(
            torch.ops.turbo.gemm_fp4_backward.default, args, test_utils=("test_schema", "test_faketensor")
        )


def test_compiles_mxfp4() -> None:
    tensors = inputs(40, 48, 72)
    eager = cases.step(tensors)
    leaves = {n: t.detach().requires_grad_(n != "grad_out") for n, t in tensors.items()}
    compiled = torch.compile(ops.gemm_fp4, backend="aot_eager", fullgraph=True)
    for name, t in training_step(compiled, leaves).items():
        assert torch.equal(t, eager[name])


def test_an_fp4_gate_holds_for_wide_outputs_mxfp4() -> None:
    tensors = inputs(40, 48, 72)
    out = ops.gemm_fp4(tensors["a"], tensors["b"], out_dtype=torch.float32)
    expected = {"out": cases.reference(tensors)["out"]}
    passed, _, detail = judge({"out": out.detach()}, expected, GATES["fp4"], torch.float32)
    assert passed, detail


# -- errors ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("a", "b", "options", "error", "said"),
    [
        ((4, 8), (4, 8), {"variant": "nvfp4"}, ValueError, "no variant 'nvfp4'; there are mxfp4"),
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
        ops.gemm_fp4(x, y, **options)


def test_inputs_of_another_dtype_are_refused() -> None:
    x = torch.zeros(4, 8, device=DEVICE)
    with pytest.raises(TypeError, match=r"a torch\.float32.* inputs are bf16 or fp16"):
        ops.gemm_fp4(x, x)
