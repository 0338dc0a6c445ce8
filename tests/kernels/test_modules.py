"""The layers stand in for torch's: the same parameters, the same state_dict, the same results."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from kernel_helpers import DEVICE
from turbo_kernels import modules
from turbo_kernels.check import GATES, Gate, wrong
from turbo_kernels.registry import family

FP8_VARIANTS = family("gemm_fp8").variants
BF16 = {"device": DEVICE, "dtype": torch.bfloat16}


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(0)


def random(*size: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(size, generator=torch.Generator(DEVICE).manual_seed(seed), device=DEVICE).bfloat16()


class LlamaMLP(torch.nn.Module):
    """As models keep it: three layers."""

    def __init__(self, dim: int, hidden: int, bias: bool) -> None:
        super().__init__()
        self.gate_proj = torch.nn.Linear(dim, hidden, bias, **BF16)
        self.up_proj = torch.nn.Linear(dim, hidden, bias, **BF16)
        self.down_proj = torch.nn.Linear(hidden, dim, bias, **BF16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down_proj(torch.nn.functional.silu(self.gate_proj(x)) * self.up_proj(x))


def assert_same(ours: torch.nn.Module, theirs: torch.nn.Module, x: torch.Tensor, gate: Gate) -> None:
    """The state_dict goes both ways; outputs and all gradients agree with torch's in fp32."""
    ours.load_state_dict(theirs.state_dict())
    assert {k: v.shape for k, v in ours.state_dict().items()} == {k: v.shape for k, v in theirs.state_dict().items()}
    theirs.load_state_dict(ours.state_dict())
    ours_x, theirs_x = x.clone().requires_grad_(), x.float().requires_grad_()
    out, ref = ours(ours_x), theirs.float()(theirs_x)
    grad_out = random(*ref.shape, seed=9)
    out.backward(grad_out)
    ref.backward(grad_out.float())
    assert out.dtype == x.dtype
    assert ours_x.grad is not None
    assert theirs_x.grad is not None
    assert wrong(out.detach(), ref.detach(), gate) is None
    assert wrong(ours_x.grad, theirs_x.grad, gate) is None
    wanted = {k: p.grad for k, p in theirs.named_parameters()}
    for name, parameter in ours.named_parameters():
        parameter.data = parameter.grad  # type: ignore[assignment]
        assert parameter.grad is not None, name
    for name, grad in ours.state_dict().items():  # the gradients, under the names of the state_dict
        want = wanted[name]
        assert want is not None
        assert wrong(grad, want, gate) is None, name


@pytest.mark.parametrize("bias", [False, True], ids=["plain", "bias"])
def test_linear(bias: bool) -> None:
    ours, theirs = modules.Linear(24, 40, bias, **BF16), torch.nn.Linear(24, 40, bias, **BF16)
    assert_same(ours, theirs, random(3, 5, 24), GATES["bf16"])


@pytest.mark.parametrize("bias", [False, True], ids=["plain", "bias"])
@pytest.mark.parametrize("variant", FP8_VARIANTS)
def test_linear_fp8(variant: str, bias: bool) -> None:
    ours = modules.LinearFP8(64, 40, bias, **BF16, config=modules.FP8Config(variant))
    assert f"variant={variant!r}" in repr(ours)
    # How good the products are is judged in their own tests; MX scales saturate, which shows in so small a product's scale.
    assert_same(ours, torch.nn.Linear(64, 40, bias, **BF16), random(4, 8, 64), Gate(snr_db=23.0, scale=0.05))


@pytest.mark.parametrize("shape", [96, [4, 24]], ids=str)
@pytest.mark.parametrize("eps", [None, 1e-3], ids=str)
def test_rmsnorm(shape: int | list[int], eps: float | None) -> None:
    ours, theirs = modules.RMSNorm(shape, eps, **BF16), torch.nn.RMSNorm(shape, eps, **BF16)
    theirs.weight.data = random(*theirs.weight.shape, seed=3)
    if eps is None:
        theirs.eps = torch.finfo(torch.bfloat16).eps  # that of the layer's dtype, also where it is compared in fp32
    assert_same(ours, theirs, random(2, 7, *theirs.weight.shape), GATES["bf16"])


@pytest.mark.parametrize("bias", [False, True], ids=["plain", "bias"])
def test_swiglu_mlp(bias: bool) -> None:
    ours, theirs = modules.SwiGLUMLP(24, 40, bias, **BF16), LlamaMLP(24, 40, bias)
    assert set(dict(ours.named_parameters())) == {f"{layer}.{p}" for layer in ("gate_up_proj", "down_proj")
                                                  for p in (("weight", "bias") if bias else ("weight",))}  # fmt: skip
    # Gate, up and the activation are bf16 in between, and Triton's interpreter truncates to bf16 where GPUs round.
    assert_same(ours, theirs, random(3, 5, 24), Gate(snr_db=35.0))


def test_swiglu_mlp_inside_a_model_and_with_a_part_missing() -> None:
    second = modules.SwiGLUMLP(8, 16, **BF16)
    model = torch.nn.Sequential(modules.SwiGLUMLP(8, 16, **BF16), second)
    state = {k: v.clone() for k, v in model.state_dict().items()}
    assert sorted(state) == sorted(f"{i}.{p}_proj.weight" for i in (0, 1) for p in ("gate", "up", "down"))
    joined = torch.cat([state["1.gate_proj.weight"], state["1.up_proj.weight"]])
    assert torch.equal(joined, dict(second.named_parameters())["gate_up_proj.weight"])
    del state["1.up_proj.weight"]
    with pytest.raises(
        RuntimeError, match=r'(?s)Missing key.*"1.gate_up_proj.weight".*Unexpected.*"1.gate_proj.weight"'
    ):
        model.load_state_dict(state)


def test_swiglu_mlp_weighs_tokens() -> None:
    mlp = modules.SwiGLUMLP(8, 16, linear=torch.nn.Linear, device=DEVICE)
    x, probs = random(5, 8).float(), random(5, seed=1).float()
    torch.testing.assert_close(mlp(x, probs), mlp(x) * probs[:, None])


def test_grouped_linear() -> None:
    lens = torch.tensor([3, 0, 7, 2], device=DEVICE)
    ours, x = modules.GroupedLinear(4, 24, 40, **BF16), random(12, 24).requires_grad_()
    assert ours.weight.abs().max() <= 24**-0.5
    assert {k: tuple(v.shape) for k, v in ours.state_dict().items()} == {"weight": (4, 40, 24)}
    out = ours(x, lens)
    grad_out = random(12, 40, seed=9)
    out.backward(grad_out)
    groups = torch.repeat_interleave(lens)
    weight = ours.weight.detach().float()
    expected = torch.einsum("tk,tnk->tn", x.detach().float(), weight[groups])
    assert wrong(out.detach(), expected, GATES["bf16"]) is None
    assert x.grad is not None
    assert wrong(x.grad, torch.einsum("tn,tnk->tk", grad_out.float(), weight[groups]), GATES["bf16"]) is None
    assert ours.weight.grad is not None
    assert not ours.weight.grad[1].any()


LAYERS: dict[str, Callable[[], torch.nn.Module]] = {
    "linear": lambda: modules.Linear(16, 16, **BF16),
    "rmsnorm": lambda: modules.RMSNorm(16, **BF16),
    "swiglu_mlp": lambda: modules.SwiGLUMLP(16, 32, **BF16),
}


@pytest.mark.parametrize("layer", LAYERS)
def test_compiled(layer: str) -> None:
    module, x = LAYERS[layer](), random(6, 16)
    compiled = torch.compile(module, backend="aot_eager", fullgraph=True)
    assert torch.equal(compiled(x), module(x))


def test_errors_name_what_is_wrong() -> None:
    with pytest.raises(ValueError, match="elementwise_affine is False"):
        modules.RMSNorm(8, elementwise_affine=False)
    with pytest.raises(ValueError, match=r"x \(2, 9\) doesn't end in \(8,\)"):
        modules.RMSNorm(8, device=DEVICE)(torch.zeros(2, 9, device=DEVICE))
