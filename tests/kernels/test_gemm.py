"""gemm in every dtype and transposition, both directions, against plain products in higher precision.

The focused test of a campaign; test_gemm_inside.py has the other backends and torch's machinery.
"""

from __future__ import annotations

import pytest
import torch
from kernel_helpers import DEVICE, everywhere, inputs
from turbo_kernels import ops
from turbo_kernels.check import GATES, judge
from turbo_kernels.gemm import cases

BIG = {"BLOCK_M": 64, "BLOCK_N": 64, "BLOCK_K": 64}


@pytest.mark.parametrize("dtype", ["bf16", "fp16", "fp32"])
@pytest.mark.parametrize(
    ("m", "n", "k", "params"),
    [(64, 32, 32, {}), (1, 67, 131, {"BLOCK_M": 16}), (130, 72, 200, BIG | {"GROUP_M": 4}), (31, 37, 41, BIG)],
)
def test_step(dtype: str, m: int, n: int, k: int, params: dict[str, int]) -> None:
    tensors = inputs(m, n, k, dtype)
    with everywhere("gemm", **params):
        outputs = cases.step(tensors)
    passed, metrics, detail = cases.check(outputs, cases.reference(tensors), dtype, "default")
    assert passed, detail
    assert set(metrics) == {"out_snr", "da_snr", "db_snr"}


@pytest.mark.parametrize("bias", [False, True], ids=["plain", "bias"])
@pytest.mark.parametrize("trans_b", [False, True], ids=["xN", "xT"])
@pytest.mark.parametrize("trans_a", [False, True], ids=["Nx", "Tx"])
def test_transpositions(trans_a: bool, trans_b: bool, bias: bool) -> None:
    t = inputs(40, 48, 56)
    expected = cases.reference(t)
    a = (t["a"].detach().t().contiguous() if trans_a else t["a"].detach()).requires_grad_()
    b = (t["b"].detach() if trans_b else t["b"].detach().t().contiguous()).requires_grad_()
    added = torch.arange(48, device=DEVICE).bfloat16().requires_grad_() if bias else None
    with everywhere("gemm", **BIG):
        out = ops.gemm(a, b, trans_a=trans_a, trans_b=trans_b, bias=added)
        out.backward(t["grad_out"])
    assert a.grad is not None
    assert b.grad is not None
    assert a.grad.is_contiguous()
    assert b.grad.is_contiguous()
    got = {"out": out.detach(), "da": a.grad.t() if trans_a else a.grad, "db": b.grad if trans_b else b.grad.t()}
    if added is not None:
        assert added.grad is not None
        expected["out"] += added.detach().float()
        got["dbias"], expected["dbias"] = added.grad, t["grad_out"].float().sum(0)
    passed, _, detail = judge(got, expected, GATES["bf16"], torch.bfloat16)
    assert passed, detail


def test_bias_in_its_own_dtype_and_strided() -> None:
    """fp32, every second element of a longer one, onto odd sizes: added before the output is rounded."""
    t = inputs(19, 37, 29)
    bias = torch.linspace(-4, 4, 74, device=DEVICE)[::2].requires_grad_()
    out = ops.gemm(t["a"], t["b"], bias=bias)
    (grad,) = torch.autograd.grad(out, bias, t["grad_out"])
    assert grad.dtype == torch.float32
    assert torch.equal(grad, t["grad_out"].float().sum(0))
    expected = {"out": cases.reference(t)["out"] + bias.detach()}
    passed, _, detail = judge({"out": out.detach()}, expected, GATES["bf16"], torch.bfloat16)
    assert passed, detail


@pytest.mark.parametrize("wanted", ["a", "b", "bias"])
def test_only_the_wanted_gradient(wanted: str) -> None:
    t = inputs(20, 24, 33) | {"bias": torch.ones(24, device=DEVICE, dtype=torch.bfloat16)}
    leaves = {n: x.detach().requires_grad_(n == wanted) for n, x in t.items()}
    ops.gemm(leaves["a"], leaves["b"], bias=leaves["bias"]).backward(t["grad_out"])
    assert [n for n, x in leaves.items() if x.grad is not None] == [wanted]


# -- the ends ----------------------------------------------------------------------------------------------------------


def test_out_dtype_and_expanded_gradient() -> None:
    t = inputs(20, 24, 33)
    out = ops.gemm(t["a"], t["b"], out_dtype=torch.float32)
    assert out.dtype == torch.float32
    out.sum().backward()
    expected = {
        "da": t["b"].detach().float().sum(0).expand(20, 33),
        "db": t["a"].detach().float().sum(0).expand(24, 33),
    }
    passed, _, detail = judge({"da": t["a"].grad, "db": t["b"].grad}, expected, GATES["bf16"], torch.bfloat16)  # type: ignore[dict-item]
    assert passed, detail


def test_no_rows_and_no_contraction() -> None:
    a = torch.empty(0, 16, device=DEVICE, dtype=torch.bfloat16, requires_grad=True)
    b = torch.randn(8, 16, device=DEVICE).bfloat16().requires_grad_()
    out = ops.gemm(a, b)
    out.backward(torch.empty_like(out))
    assert out.shape == (0, 8)
    assert b.grad is not None
    assert not b.grad.any()
    empty = torch.empty(4, 0, device=DEVICE, dtype=torch.bfloat16)
    assert not ops.gemm(empty, empty).any()
    bias = torch.arange(4.0, device=DEVICE)
    assert torch.equal(ops.gemm(empty, empty, bias=bias), bias.bfloat16().expand(4, 4))


@pytest.mark.parametrize(
    ("a", "b", "options", "error", "said"),
    [
        (torch.zeros(4, 8), torch.zeros(4, 9), {}, ValueError, r"\(4, 8\) and \(4, 9\) don't multiply"),
        (torch.zeros(4, 8), torch.zeros(4, 8), {"trans_a": True}, ValueError, "trans_a=True"),
        (torch.zeros(4, 8), torch.zeros(4, 8).bfloat16(), {}, TypeError, "bfloat16"),
        (torch.zeros(4, 8).int(), torch.zeros(4, 8).int(), {}, TypeError, "int32"),
        (torch.zeros(4, 8), torch.zeros(4, 8), {"out_dtype": torch.int8}, TypeError, "int8"),
        (torch.zeros(4, 8), torch.zeros(5, 8), {"bias": torch.zeros(4)}, ValueError, r"y has 5 columns; give \(5,\)"),
        (torch.zeros(4, 8), torch.zeros(4, 8), {"bias": torch.zeros(4).double()}, TypeError, "bias is torch.float64"),
        (torch.zeros(4, 8), torch.zeros(4, 8, device="meta"), {}, ValueError, "b on meta; give one device"),
    ],
)
def test_errors_name_what_is_wrong(a: torch.Tensor, b: torch.Tensor, options: dict, error: type, said: str) -> None:
    with pytest.raises(error, match=said):
        ops.gemm(a, b, **options)
