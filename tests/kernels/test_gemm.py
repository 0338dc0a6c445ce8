"""gemm in every dtype and transposition, both directions, against plain products in higher precision."""

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


@pytest.mark.parametrize("trans_a", [False, True])
@pytest.mark.parametrize("trans_b", [False, True])
def test_transpositions(trans_a: bool, trans_b: bool) -> None:
    t = inputs(40, 48, 56)
    expected = cases.reference(t)
    a = (t["a"].detach().t().contiguous() if trans_a else t["a"].detach()).requires_grad_()
    b = (t["b"].detach() if trans_b else t["b"].detach().t().contiguous()).requires_grad_()
    with everywhere("gemm", **BIG):
        out = ops.gemm(a, b, trans_a=trans_a, trans_b=trans_b)
        out.backward(t["grad_out"])
    assert a.grad is not None
    assert b.grad is not None
    assert a.grad.is_contiguous()
    assert b.grad.is_contiguous()
    got = {"out": out.detach(), "da": a.grad.t() if trans_a else a.grad, "db": b.grad if trans_b else b.grad.t()}
    passed, _, detail = judge(got, expected, GATES["bf16"], torch.bfloat16)
    assert passed, detail


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


@pytest.mark.parametrize(
    ("a", "b", "options", "error", "said"),
    [
        (torch.zeros(4, 8), torch.zeros(4, 9), {}, ValueError, r"\(4, 8\) and \(4, 9\) don't multiply"),
        (torch.zeros(4, 8), torch.zeros(4, 8), {"trans_a": True}, ValueError, "trans_a=True"),
        (torch.zeros(4, 8), torch.zeros(4, 8).bfloat16(), {}, TypeError, "bfloat16"),
        (torch.zeros(4, 8).int(), torch.zeros(4, 8).int(), {}, TypeError, "int32"),
        (torch.zeros(4, 8), torch.zeros(4, 8), {"out_dtype": torch.int8}, TypeError, "int8"),
    ],
)
def test_errors_name_what_is_wrong(a: torch.Tensor, b: torch.Tensor, options: dict, error: type, said: str) -> None:
    with pytest.raises(error, match=said):
        ops.gemm(a, b, **options)
