"""gemm through each backend, strided views, and what torch asks of an operator: opcheck, compile, the same bits twice."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from kernel_helpers import DEVICE, inputs, through
from turbo_kernels import arch, backends, external, ops
from turbo_kernels.check import GATES, judge
from turbo_kernels.gemm import cases
from turbo_kernels.gemm.backends import multiply

BACKENDS = [name for name in multiply.backends if name not in external.PACKAGES]


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("dtype", ["bf16", "fp16", "fp32"])
def test_step(dtype: str, backend: str) -> None:
    tensors = inputs(33, 24, 56, dtype)
    with through(backend):
        outputs = cases.step(tensors)
    passed, _, detail = cases.check(outputs, cases.reference(tensors), dtype, "default")
    assert passed, detail


@pytest.mark.parametrize("backend", ["HIPBLASLT", "TORCH"])
@pytest.mark.parametrize(
    "trans", [(False, False), (False, True), (True, False), (True, True)], ids=["NN", "NT", "TN", "TT"]
)
def test_transpositions_and_bias(trans: tuple[bool, bool], backend: str) -> None:
    """As our own kernel has them."""
    t = inputs(20, 24, 33)
    a = t["a"].detach().t().contiguous().requires_grad_() if trans[0] else t["a"]
    b = t["b"] if trans[1] else t["b"].detach().t().contiguous().requires_grad_()
    bias = torch.arange(24, device=DEVICE).bfloat16().requires_grad_()
    results = {}
    for name in ("TRITON", backend):
        with through(name):
            out = ops.gemm(a, b, *trans, bias=bias)
            results[name] = out.detach(), *torch.autograd.grad(out, (a, b, bias), t["grad_out"])
    for ours, got in zip(results["TRITON"], results[backend], strict=True):
        passed, _, detail = judge({"out": got}, {"out": ours.float()}, GATES["bf16"], torch.bfloat16)
        assert passed, detail
        assert got.stride() == ours.stride()


@pytest.mark.parametrize("backend", BACKENDS)
def test_views_are_read_and_written_by_their_strides(backend: str) -> None:
    """Every second row and column of larger tensors; the gradients come back in the operands' shape."""
    a, b = (torch.randn(n, 64, device=DEVICE)[::2, ::2].bfloat16().float().requires_grad_() for n in (40, 60))
    t = {"a": a, "b": b, "grad_out": torch.randn(20, 30, device=DEVICE)}
    wide = torch.empty(40, 64, device=DEVICE)[::2, ::2].copy_(a.detach()).requires_grad_()
    assert not wide.is_contiguous()
    with through(backend):
        outputs = cases.step({**t, "a": wide})
    passed, _, detail = cases.check(outputs, cases.reference(t), "fp32", "default")
    assert passed, detail


@pytest.mark.deterministic
@pytest.mark.parametrize("backend", BACKENDS)
def test_the_same_bits_twice(backend: str) -> None:
    first, second = inputs(70, 40, 100), inputs(70, 40, 100)
    with through(backend):
        one, two = cases.step(first), cases.step(second)
    assert all(torch.equal(one[name], two[name]) for name in one)


@pytest.mark.parametrize("trans", [(False, True), (True, False)], ids=["NT", "TN"])
def test_opcheck(trans: tuple[bool, bool]) -> None:
    a, b, bias = (torch.randn(s, device=DEVICE, requires_grad=True) for s in ((17, 17), (17, 17), (17,)))
    torch.library.opcheck(torch.ops.turbo.gemm.default, (a, b, bias, *trans, torch.float32))
    torch.library.opcheck(torch.ops.turbo.gemm.default, (a, b, None, *trans, torch.float32))
    for name in ("gemm_dgrad", "gemm_wgrad"):
        torch.library.opcheck(getattr(torch.ops.turbo, name).default, (a.detach(), b.detach(), *trans))


@pytest.mark.parametrize("trans_a", [False, True])
def test_compiled_step_is_the_eager_one(trans_a: bool) -> None:
    t = inputs(20, 24, 16)
    t["a"] = (t["a"].detach().t().contiguous() if trans_a else t["a"].detach()).requires_grad_()
    bias = torch.ones(24, device=DEVICE, requires_grad=True)

    def gradients(function: Callable[..., torch.Tensor]) -> tuple[torch.Tensor, ...]:
        out = function(t["a"], t["b"], bias)
        return out, *torch.autograd.grad(out, (t["a"], t["b"], bias), t["grad_out"])

    def step(a: torch.Tensor, b: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        return ops.gemm(a, b, trans_a=trans_a, bias=bias)

    compiled = torch.compile(step, backend="aot_eager", fullgraph=True)
    assert all(map(torch.equal, gradients(compiled), gradients(step)))


def test_backends_say_what_they_cannot_do(monkeypatch: pytest.MonkeyPatch) -> None:
    a = torch.zeros(8, 8, dtype=torch.bfloat16, device=DEVICE)
    library = multiply.backends["HIPBLASLT"]
    assert library.can_handle("forward", a, a, a) is None
    assert "one dtype, got torch.bfloat16, torch.float32" in str(library.can_handle("forward", a, a, a.float()))
    assert "one dtype" in str(library.can_handle("forward", a, a, a, torch.zeros(8, device=DEVICE)))
    assert multiply.backends["TORCH"].can_handle("forward", a, a, a.float()) is None
    monkeypatch.setattr(arch, "INTERPRET", False)
    assert "TRITON_INTERPRET=1" in str(multiply.backends["TRITON"].can_handle("forward", a.cpu(), a, a))


@pytest.mark.parametrize(
    ("op", "backend"), [("gemm", "AITER"), ("gemm", "FLYDSL"), ("gemm_fp8", "CK"), ("gemm_fp8", "AITER")]
)
def test_another_packages_kernels_say_what_is_missing(op: str, backend: str) -> None:
    if external.missing(backend) is None:
        pytest.skip(f"{backend}'s package is installed here")
    t = inputs(16, 128, 128)
    with (
        backends.using(backend, op=op),
        pytest.raises(RuntimeError, match=f"{op}.*{backend}.*isn't installed: pip install"),
    ):
        getattr(ops, op)(t["a"], t["b"])
