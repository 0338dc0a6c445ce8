"""rmsnorm in every dtype and backend, both directions, against torch's own formula in higher precision."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from kernel_helpers import DEVICE, everywhere, through
from turbo_kernels import ops
from turbo_kernels.case_kit import DTYPES, Tensors
from turbo_kernels.check import GATES, wrong
from turbo_kernels.normalization import backends, cases, reference

BACKENDS = ["TRITON", "TORCH"]
EPS = 1e-6


def made(*size: int, dtype: torch.dtype = torch.bfloat16, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator(DEVICE).manual_seed(seed)
    return torch.randn(size, generator=generator, device=DEVICE).to(dtype)


def step(x: torch.Tensor, weight: torch.Tensor, grad_out: torch.Tensor, op: Callable[..., torch.Tensor] | None = None
         ) -> Tensors:  # fmt: skip
    """Forward and backward with the strides of all three as they are."""
    x, weight = (t.detach().requires_grad_() for t in (x, weight))
    out = (op or ops.rmsnorm)(x, weight, EPS)
    dx, dweight = torch.autograd.grad(out, (x, weight), grad_out)
    return {"out": out.detach(), "dx": dx, "dweight": dweight}


def assert_right(got: Tensors, expected: Tensors, dtype: str, weight_dtype: str | None = None) -> None:
    for name, ref in expected.items():
        own = weight_dtype if weight_dtype and name == "dweight" else dtype
        assert got[name].dtype == DTYPES[own], name
        assert wrong(got[name], ref, GATES[own]) is None, name


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("rows", "cols", "params"),
    [
        (37, 150, {}), (1, 16, {}), (1, 4096, {"TILE": 512}), (5, 5000, {"TILE": 8192}),
        (301, 33, {"TILE": 512, "PROGRAMS": 2, "BLOCK_ROWS": 8}), (64, 128, {"TILE": 512, "PROGRAMS": 8}),
    ],
)  # fmt: skip
@pytest.mark.parametrize("backend", BACKENDS)
def test_step(backend: str, rows: int, cols: int, params: dict[str, int], dtype: str) -> None:
    x, dy = made(rows, cols, dtype=DTYPES[dtype]), made(rows, cols, dtype=DTYPES[dtype], seed=1)
    weight = made(cols, dtype=DTYPES[dtype], seed=2)
    with through(backend), everywhere("normalization", **params):
        got = step(x, weight, dy)
    assert_right(got, reference.step(x, weight, dy, EPS), dtype)


@pytest.mark.parametrize(("dtype", "cols"), [("bf16", 16384), ("fp32", 12288)])
@pytest.mark.parametrize("backend", BACKENDS)
def test_the_widest_row_and_one_wider(backend: str, dtype: str, cols: int) -> None:
    x, dy = (made(3, cols, dtype=DTYPES[dtype], seed=seed) for seed in (0, 1))
    weight, wider = made(cols, dtype=DTYPES[dtype], seed=2), made(1, cols + 1, dtype=DTYPES[dtype])
    with through(backend):
        assert_right(step(x, weight, dy), reference.step(x, weight, dy, EPS), dtype)
    why = backends.forward.backends["TRITON"].can_handle(wider, weight, EPS)
    assert why == f"a program holds a whole row: at most {cols} elements of {x.dtype}, got {cols + 1}"


@pytest.mark.parametrize("backend", BACKENDS)
def test_fp32_weight_of_a_bf16_input(backend: str) -> None:
    x, weight, dy = made(2, 7, 96), made(96, dtype=torch.float32, seed=2), made(2, 7, 96, seed=1)
    with through(backend):
        got = step(x, weight, dy)
    assert got["out"].shape == x.shape
    assert_right(got, reference.step(x, weight, dy, EPS), "bf16", "fp32")


STRIDES: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "padded rows": lambda x: torch.nn.functional.pad(x, (0, 6))[..., : x.shape[-1]],
    "transposed": lambda x: x.mT.contiguous().mT,
    "every second": lambda x: x.repeat_interleave(2, -1)[..., ::2],
    "one row": lambda x: x[:1].expand_as(x),
}


@pytest.mark.parametrize("layout", STRIDES)
@pytest.mark.parametrize("backend", BACKENDS)
def test_any_strides(backend: str, layout: str) -> None:
    change = STRIDES[layout]
    x, dy, weight = change(made(12, 80)), change(made(12, 80, seed=1)), made(80, 2, seed=2)[:, 0]
    with through(backend):
        got = step(x, weight, dy)
    assert_right(got, reference.step(x, weight, dy, EPS), "bf16")


@pytest.mark.parametrize("backend", BACKENDS)
def test_only_the_gradients_that_are_asked_for(backend: str) -> None:
    x, weight, dy = made(9, 40), made(40, seed=2), made(9, 40, seed=1)
    expected = reference.step(x, weight, dy, EPS)
    with through(backend):
        for wanted in ("x", "weight"):
            given = {"x": x.clone(), "weight": weight.clone()}
            given[wanted].requires_grad_()
            ops.rmsnorm(given["x"], given["weight"], EPS).backward(dy)
            grad = given[wanted].grad
            assert grad is not None
            assert wrong(grad, expected[f"d{wanted}"], GATES["bf16"]) is None


@pytest.mark.parametrize("backend", BACKENDS)
def test_no_rows_and_rows_of_zeros(backend: str) -> None:
    weight = made(16, seed=2)
    with through(backend):
        empty = step(made(0, 3, 16), weight, made(0, 3, 16))
        zeros = step(torch.zeros_like(made(4, 16)), weight, made(4, 16))
    assert (empty["out"].shape, empty["dx"].shape) == ((0, 3, 16), (0, 3, 16))
    assert torch.equal(empty["dweight"], torch.zeros_like(weight))
    assert not zeros["out"].any()
    assert torch.isfinite(zeros["dx"]).all()


@pytest.mark.parametrize("backend", BACKENDS)
def test_rows_of_one_element_are_signs(backend: str) -> None:
    x, weight = torch.tensor([[3.0], [-0.5]], device=DEVICE), torch.tensor([2.0], device=DEVICE)
    with through(backend):
        got = step(x, weight, torch.ones_like(x))
    torch.testing.assert_close(got["out"], 2 * x.sign())
    torch.testing.assert_close(got["dx"], torch.zeros_like(x), atol=1e-4, rtol=0)
    torch.testing.assert_close(got["dweight"], torch.zeros_like(weight), atol=1e-4, rtol=0)


@pytest.mark.parametrize("backend", BACKENDS)
def test_eps_counts(backend: str) -> None:
    x, weight = torch.full((2, 8), 1e-3, device=DEVICE), torch.ones(8, device=DEVICE)
    with through(backend):
        torch.testing.assert_close(ops.rmsnorm(x, weight, eps=3e-6), torch.full_like(x, 0.5))


@pytest.mark.deterministic
@pytest.mark.parametrize("backend", BACKENDS)
def test_two_runs_give_the_same_bits(backend: str) -> None:
    x, weight, dy = made(33, 520), made(520, seed=2), made(33, 520, seed=1)
    with through(backend):
        first, second = step(x, weight, dy), step(x, weight, dy)
    assert all(torch.equal(first[name], second[name]) for name in first)


def test_opcheck() -> None:
    x, weight, dy = made(5, 2, 24).requires_grad_(), made(24, seed=2).requires_grad_(), made(5, 2, 24, seed=1)
    torch.library.opcheck(torch.ops.turbo.rmsnorm.default, (x, weight, EPS))
    rstd = reference.rstd_of(x.detach().float().view(10, 24), EPS).squeeze(-1)
    for need_dweight in (False, True):
        torch.library.opcheck(
            torch.ops.turbo.rmsnorm_backward.default, (dy, x.detach(), weight.detach(), rstd, need_dweight)
        )


def test_compiled() -> None:
    x, weight, dy = made(6, 48), made(48, seed=2), made(6, 48, seed=1)
    compiled = torch.compile(lambda x, w, eps: ops.rmsnorm(x, w, eps) * 2, backend="aot_eager", fullgraph=True)
    got, want = step(x, weight, dy, compiled), step(x, weight, dy, lambda x, w, eps: ops.rmsnorm(x, w, eps) * 2)
    assert all(torch.equal(got[name], want[name]) for name in want)


def test_the_adapter_judges_its_own_step() -> None:
    inputs = cases.make_inputs({"rows": 20, "cols": 70}, "bf16", "rmsnorm", 3, DEVICE)
    outputs, expected = cases.step(inputs), cases.reference(inputs)
    passed, metrics, detail = cases.check(outputs, expected, "bf16", "rmsnorm")
    assert passed, detail
    assert set(metrics) == {"out_snr", "dx_snr"}
    for name, output in outputs.items():
        spoilt = output.clone()
        spoilt[3] = 0
        assert not cases.check({**outputs, name: spoilt}, expected, "bf16", "rmsnorm")[0], name


X, W = torch.zeros(4, 8), torch.ones(8)
WRONG: list[tuple[Callable[[], Any], type[Exception], str]] = [
    (
        lambda: ops.rmsnorm(X, torch.ones(7)),
        ValueError,
        r"rmsnorm: x \(4, 8\), weight \(7,\); give \[..., H\] and \[H\]",
    ),
    (lambda: ops.rmsnorm(X, torch.ones(4, 8)), ValueError, r"weight \(4, 8\)"),
    (lambda: ops.rmsnorm(torch.zeros(4, 0), torch.ones(0)), ValueError, "H at least 1"),
    (lambda: ops.rmsnorm(X.double(), W.double()), TypeError, "x torch.float64"),
    (lambda: ops.rmsnorm(X, W.half()), TypeError, "weight torch.float16"),
    (lambda: ops.rmsnorm(X, W.to("meta")), ValueError, "x is on cpu, weight on meta"),
]


@pytest.mark.parametrize(("call", "error", "said"), WRONG)
def test_errors_name_what_is_wrong(call: Callable[[], Any], error: type[Exception], said: str) -> None:
    with pytest.raises(error, match=said):
        call()
