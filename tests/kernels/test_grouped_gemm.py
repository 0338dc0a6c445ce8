"""grouped_gemm in every dtype, layout and backend, both directions, against a product a group in higher precision."""

from __future__ import annotations

import pytest
import torch
from grouped_helpers import force, inputs
from kernel_helpers import DEVICE, everywhere
from turbo_kernels import grouped_kit, ops
from turbo_kernels.grouped_gemm import backends, cases

BACKENDS = list(backends.matmul.backends)
BIG = {"BLOCK_M": 64, "BLOCK_N": 64, "BLOCK_K": 64, "GROUP_M": 4}


@pytest.fixture
def backend(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Every product through the named backend, which must say that it can."""
    force(monkeypatch, request.param)
    return request.param


every_backend = pytest.mark.parametrize("backend", BACKENDS, indirect=True)


@every_backend
@pytest.mark.parametrize("layout", grouped_kit.FILLS)
def test_step_in_every_layout(backend: str, layout: str) -> None:
    tensors = cases.make_inputs({"B": 4, "M": 21, "N": 40, "K": 24}, "bf16", "default", 0, DEVICE)
    cases.FILLS[layout](tensors, 3)
    passed, metrics, detail = cases.check(cases.step(tensors), cases.reference(tensors), "bf16", "default")
    assert passed, detail
    assert set(metrics) == {"out_snr", "da_snr", "db_snr"}


@pytest.mark.parametrize("backend", ["TRITON", "TORCH"], indirect=True)
@pytest.mark.parametrize("dtype", ["bf16", "fp16", "fp32"])
@pytest.mark.parametrize(
    ("lens", "n", "k", "rows", "params"),
    [
        ([1, 0, 70, 3], 67, 131, None, {}),
        ([0, 0, 5], 16, 16, 40, {"BLOCK_M": 16}),
        ([64, 65, 0, 63, 1], 72, 65, 200, BIG),
        ([37], 41, 31, None, BIG),
    ],
)
def test_step_in_odd_sizes(
    backend: str, dtype: str, lens: list[int], n: int, k: int, rows: int | None, params: dict[str, int]
) -> None:
    tensors = inputs(lens, n, k, dtype, rows)
    with everywhere("grouped_gemm", **params):
        outputs = cases.step(tensors)
    passed, _, detail = cases.check(outputs, cases.reference(tensors), dtype, "default")
    assert passed, detail


@pytest.mark.parametrize("backend", ["TRITON", "TORCH"], indirect=True)
def test_weights_k_major_strides_and_out_dtype(backend: str) -> None:
    t = inputs([9, 0, 30], 24, 40, rows=44)
    expected = cases.reference(t)
    a = t["a"].detach().t().contiguous().t().requires_grad_()
    b = t["b"].detach().transpose(1, 2).contiguous().requires_grad_()
    out = ops.grouped_gemm(a, b, t["group_lens"], trans_b=False, out_dtype=torch.float32)
    assert out.dtype == torch.float32
    out.backward(t["grad_out"].float())
    assert a.grad is not None
    assert b.grad is not None
    got = {"out": out.detach().bfloat16(), "da": a.grad, "db": b.grad.transpose(1, 2)}
    passed, _, detail = cases.check(got, expected, "bf16", "default")
    assert passed, detail


@every_backend
def test_nobody_reads_or_leaves_unwritten_what_is_behind_the_groups(backend: str) -> None:
    t = inputs([8, 0, 9], 16, 24, rows=40)
    with torch.no_grad():
        t["a"][17:] = torch.nan
        t["grad_out"][17:] = torch.nan
    outputs = cases.step(t)
    assert not outputs["out"][17:].any()
    assert not outputs["da"][17:].any()
    assert not outputs["db"][1].any()
    assert all(torch.isfinite(o).all() for o in outputs.values())


@pytest.mark.parametrize("lens", [[30, 30], [-5, 20], [1 << 60, 1 << 60]])
def test_lengths_that_share_out_too_much_stay_inside_TRITON(lens: list[int]) -> None:
    t = inputs([20, 20], 16, 16)
    t["group_lens"].copy_(torch.tensor(lens))
    first = max(0, min(lens[0], 40))
    meant = t | {"group_lens": torch.tensor([first, max(0, min(lens[1], 40 - first))], device=DEVICE)}
    passed, _, detail = cases.check(cases.step(t), cases.reference(meant), "bf16", "default")
    assert passed, detail


@pytest.mark.deterministic
def test_the_same_bits_twice_TRITON() -> None:
    steps = [cases.step(inputs([50, 0, 3, 31], 33, 47, rows=100)) for _ in range(2)]
    assert all(torch.equal(steps[0][name], steps[1][name]) for name in ("out", "da", "db"))


@pytest.mark.parametrize("trans_b", [False, True])
def test_opcheck(trans_b: bool) -> None:
    t = inputs([5, 0, 9], 16, 24, rows=16)
    b = (t["b"] if trans_b else t["b"].detach().transpose(1, 2).contiguous()).detach().requires_grad_()
    torch.library.opcheck(torch.ops.turbo.grouped_gemm.default, (t["a"], b, t["group_lens"], trans_b, torch.bfloat16))


def test_compiled_without_a_break_and_with_other_lengths() -> None:
    compiled = torch.compile(ops.grouped_gemm, backend="aot_eager", fullgraph=True)
    t = inputs([5, 0, 9], 16, 24, rows=16)
    for lens in ([5, 0, 9], [0, 16, 0], [1, 1, 1]):
        t["group_lens"].copy_(torch.tensor(lens))
        t["a"].grad = t["b"].grad = None
        passed, _, detail = cases.check(grouped_kit.training_step(compiled, t), cases.reference(t), "bf16", "default")
        assert passed, detail


def test_no_rows_no_contraction_and_one_wanted_gradient() -> None:
    t = inputs([0, 0], 16, 24)
    outputs = cases.step(t)
    assert outputs["out"].shape == (0, 16)
    assert not outputs["db"].any()
    nothing = inputs([3, 4], 8, 0)
    assert not cases.step(nothing)["out"].any()
    frozen = inputs([3, 4], 8, 16)
    frozen["b"].requires_grad_(False)
    assert set(cases.step(frozen)) == {"out", "da"}


def test_a_wrong_small_expert_fails_the_check() -> None:
    t = inputs([500, 2, 500], 8, 16)
    outputs = {name: ref.bfloat16() for name, ref in cases.reference(t).items()}
    assert cases.check(outputs, cases.reference(t), "bf16", "default")[0]
    outputs["db"][1] = 0
    passed, metrics, detail = cases.check(outputs, cases.reference(t), "bf16", "default")
    assert not passed
    assert "db[1]" in detail
    assert metrics["db_snr"] < 1


@pytest.mark.parametrize("seed", range(6))
def test_layouts_come_from_the_seed_and_use_every_row(seed: int) -> None:
    dims = {"B": 5, "M": 33, "N": 8, "K": 8}
    made = [cases.make_inputs(dims, "bf16", "default", s, DEVICE) for s in (seed, seed, seed + 1)]
    assert all(torch.equal(made[0][name], made[1][name]) for name in made[0])
    assert not torch.equal(made[0]["group_lens"], made[2]["group_lens"])
    assert made[0]["group_lens"].sum() == 5 * 33
    before = made[2]["group_lens"].data_ptr()
    cases.rewrite(made[2], seed)
    assert made[2]["group_lens"].data_ptr() == before
    assert all(torch.equal(made[0][name], made[2][name]) for name in made[0])


@pytest.mark.parametrize(
    ("dtype", "k", "out_dtype", "said"),
    [
        (torch.float32, 16, torch.float32, "bf16 alone"),
        (torch.bfloat16, 16, torch.float32, "bf16 alone"),
        (torch.bfloat16, 12, torch.bfloat16, "16 bytes"),
        (torch.bfloat16, 0, torch.bfloat16, "no empty operand"),
    ],
)
def test_hipblaslt_says_why_not(dtype: torch.dtype, k: int, out_dtype: torch.dtype, said: str) -> None:
    a, b = torch.zeros(4, k, dtype=dtype, device=DEVICE), torch.zeros(2, k, 16, dtype=dtype, device=DEVICE)
    lens = torch.tensor([2, 2], device=DEVICE)
    why = backends.matmul.backends["HIPBLASLT"].can_handle("forward", a, b, lens, out_dtype)
    assert why is not None
    assert said in why


A, B, LENS = torch.zeros(4, 8), torch.zeros(2, 6, 8), torch.tensor([2, 2])


@pytest.mark.parametrize(
    ("a", "b", "lens", "options", "error", "said"),
    [
        (A, torch.zeros(2, 6, 9), LENS, {}, ValueError, r"\(4, 8\) and \(2, 6, 9\) don't multiply"),
        (A, B, LENS, {"trans_b": False}, ValueError, r"b \[G, K, N\]"),
        (A, B[0], LENS, {}, ValueError, "don't multiply"),
        (A, B, torch.tensor([4]), {}, ValueError, "b has 2 groups"),
        (A, B, LENS.int(), {}, TypeError, "group_lens is torch.int32; give int64"),
        (A, B.half(), LENS, {}, TypeError, "float16"),
        (A.int(), B.int(), LENS, {}, TypeError, "int32"),
        (A, B, LENS, {"out_dtype": torch.int8}, TypeError, "int8"),
        (A, B.to("meta"), LENS, {}, ValueError, "give one device"),
    ],
)
def test_errors_name_what_is_wrong(
    a: torch.Tensor, b: torch.Tensor, lens: torch.Tensor, options: dict, error: type, said: str
) -> None:
    with pytest.raises(error, match=said):
        ops.grouped_gemm(a, b, lens, **options)
