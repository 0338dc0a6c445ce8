"""swiglu and geglu in every dtype and backend, both directions, against torch's own formula in higher precision."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from kernel_helpers import DEVICE, everywhere, through
from turbo_kernels import ops
from turbo_kernels.activation import cases, reference
from turbo_kernels.case_kit import DTYPES, Tensors
from turbo_kernels.check import GATES, wrong

BACKENDS = ["TRITON", "TORCH"]
KINDS: dict[str, Callable[..., torch.Tensor]] = {
    "silu": ops.swiglu,
    "gelu": ops.geglu,
    "gelu_tanh": lambda x, probs=None: ops.geglu(x, probs, approximate="tanh"),
}


def made(*size: int, dtype: torch.dtype = torch.bfloat16, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator(DEVICE).manual_seed(seed)
    return torch.randn(size, generator=generator, device=DEVICE).to(dtype)


def step(op: Callable[..., torch.Tensor], x: torch.Tensor, grad_out: torch.Tensor,
         probs: torch.Tensor | None = None) -> Tensors:  # fmt: skip
    """Forward and backward with the strides of x, probs and grad_out as they are."""
    given = {"x": x, "probs": probs}
    leaves = {name: t.detach().requires_grad_() for name, t in given.items() if t is not None}
    out = op(leaves["x"], leaves.get("probs"))
    grads = torch.autograd.grad(out, list(leaves.values()), grad_out)
    return {"out": out.detach(), **{f"d{name}": g for name, g in zip(leaves, grads, strict=True)}}


def assert_right(got: Tensors, expected: Tensors, dtypes: dict[str, str]) -> None:
    assert set(got) == set(expected)
    for name, ref in expected.items():
        assert got[name].dtype == DTYPES[dtypes[name]], name
        assert wrong(got[name], ref, GATES[dtypes[name]]) is None, name


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("backend", BACKENDS)
def test_step(backend: str, kind: str, dtype: str) -> None:
    x, dy = made(37, 150, dtype=DTYPES[dtype]), made(37, 75, dtype=DTYPES[dtype], seed=1)
    with through(backend):
        got = step(KINDS[kind], x, dy)
    assert_right(got, reference.step(x, dy, kind), dict.fromkeys(got, dtype))


@pytest.mark.parametrize("probs_dtype", ["bf16", "fp32"])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("backend", BACKENDS)
def test_step_with_a_weight_per_token(backend: str, kind: str, probs_dtype: str) -> None:
    x, dy = made(3, 11, 300), made(3, 11, 150, seed=1)
    probs = made(3, 11, dtype=DTYPES[probs_dtype], seed=2).sigmoid()
    with through(backend):
        got = step(KINDS[kind], x, dy, probs)
    assert_right(got, reference.step(x, dy, kind, probs), dict.fromkeys(got, "bf16") | {"dprobs": probs_dtype})


@pytest.mark.parametrize("shape", [(2,), (5, 2), (1, 258), (2, 3, 4, 64), (19, 514)], ids=str)
@pytest.mark.parametrize("backend", BACKENDS)
def test_any_leading_dimensions_and_odd_widths(backend: str, shape: tuple[int, ...]) -> None:
    x, dy = made(*shape), made(*shape[:-1], shape[-1] // 2, seed=1)
    with through(backend), everywhere("activation", BLOCK_ROWS=4, BLOCK_COLS=64):
        got = step(ops.swiglu, x, dy)
    assert got["dx"].shape == shape
    assert_right(got, reference.step(x, dy, "silu"), dict.fromkeys(got, "bf16"))


def _padded_rows(x: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.pad(x, (0, 6))[..., : x.shape[-1]]


def _transposed(x: torch.Tensor) -> torch.Tensor:
    return x.mT.contiguous().mT


STRIDES = {
    "padded rows": _padded_rows,
    "transposed": _transposed,
    "every second": lambda x: x.repeat_interleave(2, -1)[..., ::2],
    "one row": lambda x: x[:1].expand_as(x),
    "one element": lambda x: x[:1, :1].expand_as(x),
}


@pytest.mark.parametrize("layout", STRIDES)
@pytest.mark.parametrize("backend", BACKENDS)
def test_any_strides(backend: str, layout: str) -> None:
    change = STRIDES[layout]
    x, dy = change(made(12, 80)), change(made(12, 40, seed=1))
    probs = made(12, 3, dtype=torch.float32, seed=2)[:, 1]
    with through(backend):
        got = step(ops.swiglu, x, dy, probs)
    expected = reference.step(x.contiguous(), dy.contiguous(), "silu", probs.contiguous())
    assert_right(got, expected, dict.fromkeys(got, "bf16") | {"dprobs": "fp32"})


@pytest.mark.parametrize("backend", BACKENDS)
def test_only_the_gradients_that_are_asked_for(backend: str) -> None:
    x, probs, dy = made(9, 40), made(9, dtype=torch.float32, seed=2), made(9, 20, seed=1)
    expected = reference.step(x, dy, "silu", probs)
    with through(backend):
        for wanted in ("x", "probs"):
            given = {"x": x.clone(), "probs": probs.clone()}
            given[wanted].requires_grad_()
            ops.swiglu(given["x"], given["probs"]).backward(dy)
            grad = given[wanted].grad
            assert grad is not None
            assert wrong(grad, expected[f"d{wanted}"], GATES["bf16"]) is None


@pytest.mark.parametrize("backend", BACKENDS)
def test_no_rows(backend: str) -> None:
    x, probs, dy = made(0, 4, 32), made(0, 4), made(0, 4, 16)
    with through(backend):
        got = step(ops.swiglu, x, dy, probs)
    assert {name: tuple(t.shape) for name, t in got.items()} == {"out": (0, 4, 16), "dx": (0, 4, 32), "dprobs": (0, 4)}


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("kind", KINDS)
def test_large_gates_saturate(kind: str, backend: str) -> None:
    gate = torch.tensor([-1e4, -100.0, 0.0, 100.0, 1e4], device=DEVICE)
    x, dy = torch.cat([gate, torch.ones_like(gate)])[None], torch.ones(1, 5, device=DEVICE)
    with through(backend):
        got = step(KINDS[kind], x, dy)
    torch.testing.assert_close(got["out"], gate.relu()[None])
    torch.testing.assert_close(got["dx"][0, :5], torch.tensor([0.0, 0.0, 0.5, 1.0, 1.0], device=DEVICE))


@pytest.mark.deterministic
@pytest.mark.parametrize("backend", BACKENDS)
def test_two_runs_give_the_same_bits(backend: str) -> None:
    x, probs, dy = made(33, 520), made(33, dtype=torch.float32, seed=2), made(33, 260, seed=1)
    with through(backend):
        first, second = step(ops.swiglu, x, dy, probs), step(ops.swiglu, x, dy, probs)
    assert all(torch.equal(first[name], second[name]) for name in first)


@pytest.mark.parametrize("weighted", [False, True])
def test_opcheck(weighted: bool) -> None:
    x, dy = made(5, 2, 24).requires_grad_(), made(5, 2, 12, seed=1)
    probs = made(5, 2, dtype=torch.float32, seed=2).requires_grad_() if weighted else None
    torch.library.opcheck(torch.ops.turbo.glu.default, (x, probs, "silu"))
    detached = None if probs is None else probs.detach()
    torch.library.opcheck(torch.ops.turbo.glu_backward.default, (dy, x.detach(), detached, "gelu", weighted))


@pytest.mark.parametrize("weighted", [False, True])
def test_compiled(weighted: bool) -> None:
    x, dy = made(6, 48), made(6, 24, seed=1)
    probs = made(6, dtype=torch.float32, seed=2) if weighted else None
    compiled = torch.compile(lambda x, p: ops.geglu(x, p, "tanh") * 2, backend="aot_eager", fullgraph=True)
    got = step(compiled, x, dy, probs)
    want = step(lambda x, p: ops.geglu(x, p, "tanh") * 2, x, dy, probs)
    assert all(torch.equal(got[name], want[name]) for name in want)


@pytest.mark.parametrize("variant", ["swiglu", "geglu"])
def test_the_adapter_judges_its_own_step(variant: str) -> None:
    inputs = cases.make_inputs({"rows": 20, "cols": 70}, "bf16", variant, 3, DEVICE)
    outputs = cases.step(inputs)
    passed, metrics, detail = cases.check(outputs, cases.reference(inputs), "bf16", variant)
    assert passed, detail
    assert set(metrics) == {"out_snr", "dx_snr"}
    outputs["dx"] = outputs["dx"].clone()
    outputs["dx"][3] = 0
    assert not cases.check(outputs, cases.reference(inputs), "bf16", variant)[0]


X = torch.zeros(4, 8)
WRONG: list[tuple[Callable[[], Any], type, str]] = [
    (lambda: ops.swiglu(torch.zeros(4, 7)), ValueError, r"swiglu: x has shape \(4, 7\); .* even"),
    (lambda: ops.geglu(torch.zeros(4, 0)), ValueError, "geglu: .* at least 2"),
    (lambda: ops.swiglu(torch.tensor(1.0)), ValueError, r"shape \(\)"),
    (lambda: ops.swiglu(X.double()), TypeError, "x is torch.float64; give bf16, fp16 or fp32"),
    (lambda: ops.swiglu(X, torch.zeros(5)), ValueError, r"probs has shape \(5,\); x has the tokens \(4,\)"),
    (lambda: ops.swiglu(X, torch.zeros(4).half()), TypeError, "probs is torch.float16; give fp32"),
    (lambda: ops.swiglu(X, torch.zeros(4, device="meta")), ValueError, "x is on cpu, probs on meta"),
    (lambda: ops.geglu(X, approximate="sigmoid"), ValueError, "'sigmoid'; there are none, tanh"),
]


@pytest.mark.parametrize(("call", "error", "said"), WRONG)
def test_errors_name_what_is_wrong(call: Callable[[], Any], error: type[Exception], said: str) -> None:
    with pytest.raises(error, match=said):
        call()
