"""grouped_gemm_fp8 in every variant, format, layout and backend, against the unquantized product a group."""

from __future__ import annotations

import pytest
import torch
from grouped_helpers import force, inputs
from kernel_helpers import DEVICE, everywhere
from turbo_kernels import grouped_kit, ops
from turbo_kernels.case_kit import Tensors
from turbo_kernels.check import GATES
from turbo_kernels.dispatch import AutoKernelDispatcher
from turbo_kernels.gemm_fp8.fp8 import FP8Config
from turbo_kernels.grouped_gemm_fp8 import SPEC, backends, cases

GATE = {"e4m3": "fp8_e4m3", "e5m2": "fp8_e5m2", "hybrid": "fp8_e5m2"}  # a hybrid's gradients are E5M2


@pytest.fixture
def backend(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    force(monkeypatch, request.param)
    return request.param


each_backend = pytest.mark.parametrize("backend", ["TRITON", "TORCH"], indirect=True)
each_variant = pytest.mark.parametrize("variant", SPEC.variants)


def step(t: Tensors, config: FP8Config, **options: object) -> Tensors:
    return grouped_kit.training_step(lambda a, b, lens: ops.grouped_gemm_fp8(a, b, lens, config=config, **options), t)


@each_backend
@each_variant
@pytest.mark.parametrize("layout", grouped_kit.FILLS)
def test_step_in_every_layout(backend: str, variant: str, layout: str) -> None:
    tensors = cases.make_inputs({"B": 4, "M": 36, "N": 48, "K": 40}, "bf16", variant, 0, DEVICE)
    cases.FILLS[layout](tensors, 3)
    passed, metrics, detail = cases.check(cases.step(tensors), cases.reference(tensors), "bf16", variant)
    assert passed, detail
    assert set(metrics) == {"out_snr", "da_snr", "db_snr"}


@each_backend
@each_variant
@pytest.mark.parametrize("format", ["e5m2", "hybrid"])
def test_formats(backend: str, variant: str, format: str) -> None:
    t = inputs([70, 0, 9], 64, 72, rows=96)
    outputs = step(t, FP8Config(variant, format))
    passed, metrics, detail = grouped_kit.judge(outputs, cases.reference(t), GATES[GATE[format]], torch.bfloat16)
    assert passed, detail
    assert (metrics["out_snr"] > 25) == (format == "hybrid"), "whose forward alone is E4M3"


@each_variant
@pytest.mark.parametrize(
    ("lens", "n", "k", "rows", "params"),
    [
        ([1, 0, 130, 3], 67, 131, None, {"BLOCK_M": 64, "BLOCK_N": 64, "BLOCK_K": 64}),
        ([128, 129, 0, 127], 136, 65, 400, {"BLOCK_M": 128, "BLOCK_N": 256, "BLOCK_K": 128, "GROUP_M": 2}),
        ([0, 0, 5], 16, 16, 40, {"BLOCK_M": 16, "BLOCK_N": 32, "BLOCK_K": 32}),
    ],
)
def test_kernels_equal_the_loop_in_odd_sizes_TRITON(
    variant: str, lens: list[int], n: int, k: int, rows: int | None, params: dict[str, int],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """Of the same codes: whatever the quantization costs, the products differ by rounding alone."""
    found = []
    for name in ("TRITON", "TORCH"):
        force(monkeypatch, name)
        with everywhere("grouped_gemm_fp8", **params):
            t = inputs(lens, n, k, "fp16", rows)
            t["b"] = t["b"].detach().transpose(1, 2).contiguous().requires_grad_()
            found.append(step(t, FP8Config(variant), trans_b=False, out_dtype=torch.float16))
    passed, metrics, detail = grouped_kit.judge(found[0], found[1], GATES["fp16"], torch.float16)
    assert passed, detail
    assert min(metrics.values()) > 55


@each_variant
def test_transposed_weights_and_strides_TRITON(variant: str) -> None:
    t = inputs([9, 0, 150], 24, 140, rows=170)
    expected = step(t, FP8Config(variant), out_dtype=torch.float32)
    a = t["a"].detach().t().contiguous().t().requires_grad_()
    b = t["b"].detach().transpose(1, 2).contiguous().requires_grad_()
    other = {**t, "a": a, "b": b, "grad_out": t["grad_out"].float()}
    got = step(other, FP8Config(variant), trans_b=False, out_dtype=torch.float32)
    assert torch.equal(got["out"], expected["out"])
    assert torch.equal(got["da"], expected["da"])
    assert torch.equal(got["db"].transpose(1, 2), expected["db"])


@each_backend
@each_variant
def test_nobody_reads_or_leaves_unwritten_what_is_behind_the_groups(backend: str, variant: str) -> None:
    t = inputs([8, 0, 9], 16, 24, rows=40)
    clean = step(t, FP8Config(variant))
    with torch.no_grad():
        t["a"][17:] = torch.nan
        t["grad_out"][17:] = torch.inf
    t["a"].grad = t["b"].grad = None
    outputs = step(t, FP8Config(variant))
    assert all(torch.equal(outputs[name], clean[name]) for name in clean)
    assert not outputs["out"][17:].any()
    assert not outputs["da"][17:].any()
    assert not outputs["db"][1].any()


@pytest.mark.parametrize("variant", ["blockwise", "rowwise"])
def test_one_groups_outlier_leaves_the_others_gradients_alone_TRITON(variant: str) -> None:
    """Along the tokens a scale belongs to one group: rows next to each other may be of two."""
    t, spoiled = inputs([30, 30], 32, 32), inputs([30, 30], 32, 32)
    with torch.no_grad():
        spoiled["a"][29] *= 1e4
    found = [step(x, FP8Config(variant)) for x in (t, spoiled)]
    assert torch.equal(found[0]["db"][1], found[1]["db"][1])
    assert not torch.equal(found[0]["db"][0], found[1]["db"][0])


@each_variant
def test_nan_is_not_lost_TRITON(variant: str) -> None:
    t = inputs([20, 12], 32, 32)
    with torch.no_grad():
        t["a"][3, 5] = torch.nan
    outputs = step(t, FP8Config(variant))
    assert outputs["out"][3].isnan().all()
    assert outputs["db"][0, :, 5].isnan().all()
    if variant != "tensorwise":
        assert torch.isfinite(outputs["out"][4:]).all()
        assert torch.isfinite(outputs["db"][1]).all()


@each_variant
@pytest.mark.deterministic
def test_the_same_bits_twice_TRITON(variant: str) -> None:
    steps = [step(inputs([50, 0, 3, 131], 33, 47, rows=200), FP8Config(variant)) for _ in range(2)]
    assert all(torch.equal(steps[0][name], steps[1][name]) for name in ("out", "da", "db"))


@each_variant
def test_backward_keeps_only_fp8_and_scales(variant: str) -> None:
    t = inputs([140, 0, 30], 128, 256)
    kept: list[torch.Tensor] = []
    with torch.autograd.graph.saved_tensors_hooks(lambda x: kept.append(x) or x, lambda x: x):
        ops.grouped_gemm_fp8(t["a"], t["b"], t["group_lens"], config=FP8Config(variant))
    codes = [x for x in kept if x.dtype == torch.uint8]
    assert len(codes) == 2
    assert all(x.numel() * 40 < codes[0].numel() * 4 for x in kept if x.dtype != torch.uint8)


@pytest.mark.parametrize("wanted", ["a", "b", ""])
def test_only_the_gradients_that_are_wanted(wanted: str) -> None:
    t = inputs([9, 11], 16, 24)
    for name in ("a", "b"):
        t[name].requires_grad_(name == wanted)
    out = ops.grouped_gemm_fp8(t["a"], t["b"], t["group_lens"])
    assert out.requires_grad == bool(wanted)
    if wanted:
        out.backward(t["grad_out"])
        full = cases.reference(t)[f"d{wanted}"]
        passed, _, detail = grouped_kit.judge({"d": t[wanted].grad}, {"d": full}, GATES["fp8_e4m3"], torch.bfloat16)  # type: ignore[dict-item]
        assert passed, detail


def test_no_rows() -> None:
    outputs = step(inputs([0, 0], 16, 24), FP8Config())
    assert outputs["out"].shape == (0, 16)
    assert not outputs["db"].any()


@pytest.mark.parametrize(("variant", "trans_b"), [("blockwise", True), ("rowwise", False), ("tensorwise", True)])
def test_opcheck(variant: str, trans_b: bool) -> None:
    t = inputs([5, 0, 9], 16, 24, rows=16)
    b = (t["b"] if trans_b else t["b"].detach().transpose(1, 2).contiguous()).detach().requires_grad_()
    arguments = (t["a"], b, t["group_lens"], trans_b, variant, "hybrid", torch.bfloat16, True, True)
    torch.library.opcheck(torch.ops.turbo.grouped_gemm_fp8.default, arguments)


@each_variant
def test_compiled_without_a_break_and_with_other_lengths(variant: str) -> None:
    def op(a: torch.Tensor, b: torch.Tensor, lens: torch.Tensor) -> torch.Tensor:
        return ops.grouped_gemm_fp8(a, b, lens, config=FP8Config(variant))

    compiled = torch.compile(op, backend="aot_eager", fullgraph=True)
    t = inputs([5, 0, 9], 16, 24, rows=16)
    for lens in ([5, 0, 9], [0, 16, 0]):
        t["group_lens"].copy_(torch.tensor(lens))
        t["a"].grad = t["b"].grad = None
        passed, _, detail = cases.check(grouped_kit.training_step(compiled, t), cases.reference(t), "bf16", variant)
        assert passed, detail


def operands(variant: str, format: str = "e4m3") -> tuple:
    from turbo_kernels.grouped_gemm_fp8.triton_grouped_quant import quantize, quantize_weight
    from turbo_kernels.triton_groups import cut

    t = inputs([5, 0, 9], 16, 24)
    tiles = cut(t["group_lens"], 14, 128)
    rows, weight = quantize(t["a"], tiles, variant, format)[0], quantize_weight(t["b"], variant, format)[0]
    return rows, weight, t["group_lens"], tiles, 16, variant


@pytest.mark.parametrize(
    ("variant", "format", "out_dtype", "said"),
    [
        ("blockwise", "e4m3", torch.bfloat16, "no scales per block"),
        ("rowwise", "e5m2", torch.bfloat16, "E4M3"),
        ("tensorwise", "e4m3", torch.float32, "bf16 alone"),
    ],
)
def test_hipblaslt_says_why_not(variant: str, format: str, out_dtype: torch.dtype, said: str) -> None:
    why = backends.matmul.backends["HIPBLASLT"].can_handle("forward", *operands(variant, format), out_dtype)
    assert why is not None
    assert said in why


@pytest.mark.parametrize("variant", ["rowwise", "tensorwise"])
def test_step_HIPBLASLT(variant: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where there is no such GPU, what it would be called with has at least the shapes and layouts that torch demands."""
    why = backends.matmul.backends["HIPBLASLT"].can_handle("forward", *operands(variant), torch.bfloat16)
    if why is not None:
        assert "capability 9" in why
        real = torch.ops.aten._scaled_grouped_mm

        def on_meta(*args: torch.Tensor, offs: torch.Tensor, out_dtype: torch.dtype) -> torch.Tensor:
            made = real(*(x.to("meta") for x in args), offs=offs.to("meta"), out_dtype=out_dtype)
            return torch.zeros(made.shape, dtype=made.dtype, device=DEVICE)

        monkeypatch.setattr(torch.ops.aten, "_scaled_grouped_mm", on_meta)
        monkeypatch.setattr(AutoKernelDispatcher, "select", lambda self, *args: self.backends["HIPBLASLT"])
        outputs = step(inputs([5, 0, 9], 16, 24, rows=20), FP8Config(variant))
        assert [outputs[name].shape for name in ("out", "da", "db")] == [(20, 16), (20, 24), (3, 16, 24)]
        return
    force(monkeypatch, "HIPBLASLT")
    t = inputs([50, 0, 300], 64, 128, rows=400)
    passed, _, detail = cases.check(step(t, FP8Config(variant)), cases.reference(t), "bf16", variant)
    assert passed, detail


A, B, LENS = torch.zeros(4, 8).bfloat16(), torch.zeros(2, 6, 8).bfloat16(), torch.tensor([2, 2])


@pytest.mark.parametrize(
    ("a", "b", "lens", "options", "error", "said"),
    [
        (A, B, LENS, {"config": FP8Config("mxfp8")}, ValueError, "grouped_gemm_fp8: no variant 'mxfp8'"),
        (A, B, LENS, {"trans_b": False}, ValueError, "grouped_gemm_fp8: shapes"),
        (A, B, torch.tensor([4]), {}, ValueError, "b has 2 groups"),
        (A, B, LENS.int(), {}, TypeError, "grouped_gemm_fp8: group_lens is torch.int32; give int64"),
        (A.float(), B, LENS, {}, TypeError, "float32"),
        (A, B, LENS, {"out_dtype": torch.int8}, TypeError, "int8"),
    ],
)
def test_errors_name_what_is_wrong(
    a: torch.Tensor, b: torch.Tensor, lens: torch.Tensor, options: dict, error: type, said: str
) -> None:
    with pytest.raises(error, match=said):
        ops.grouped_gemm_fp8(a, b, lens, **options)
