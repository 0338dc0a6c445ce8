"""A Llama-like block learns as in fp32 by torch, in bf16 and in every fp8 variant: the losses' ends lie within CLOSE of
the whole drop. Few steps of a tiny model: the interpreter takes about half a second for each."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import llama_block
import pytest
import torch
from kernel_helpers import DEVICE, everywhere
from llama_block import CLOSE, Curve, Layers, Size, apart, drop, runs, train

STEPS = 50 if DEVICE == "cuda" else 10
LEARNING_RATE = 2e-2
RUNS = runs()


@pytest.fixture(scope="module", autouse=True)
def _tiles_that_hold_all_tokens() -> Iterator[None]:
    """In the interpreter a program costs more than its size."""
    with ExitStack() as stack:
        for op in ("gemm", "gemm_fp8"):
            stack.enter_context(everywhere(op, BLOCK_M=64, BLOCK_N=64, BLOCK_K=64))
        yield


@pytest.fixture(scope="module")
def reference() -> Curve:
    return train(RUNS["torch fp32"], Size(), STEPS, DEVICE, LEARNING_RATE)


@pytest.mark.parametrize("name", [name for name in RUNS if name != "torch fp32"])
def test_the_curve_is_close_to_torch_fp32(name: str, reference: Curve) -> None:
    curve = train(RUNS[name], Size(), STEPS, DEVICE, LEARNING_RATE)
    assert drop(curve) > 1.0  # of ln 32 = 3.5
    assert apart(curve, reference) <= CLOSE


class _Rolled(torch.autograd.Function):
    """x·weightᵀ whose weight gradient comes from the neighbouring tokens."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
        ctx.save_for_backward(x, weight)
        return x @ weight.T

    @staticmethod
    def backward(ctx: Any, grad_out: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:  # type: ignore[override]
        x, weight = ctx.saved_tensors
        return grad_out @ weight, grad_out.flatten(0, 1).T @ x.flatten(0, 1).roll(1, 0)


class WrongGradient(torch.nn.Linear):
    def forward(self, input: torch.Tensor) -> torch.Tensor:
        return _Rolled.apply(input, self.weight)  # type: ignore[return-value]


def test_a_wrong_gradient_is_not_close(reference: Curve) -> None:
    plain = RUNS["torch fp32"]
    wrong = Layers(WrongGradient, plain.norm, plain.mlp, plain.dtype)
    assert apart(train(wrong, Size(), STEPS, DEVICE, LEARNING_RATE), reference) > 5 * CLOSE


def test_the_program_writes_a_column_a_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    references = {name: layers for name, layers in RUNS.items() if name.startswith("torch")}
    monkeypatch.setattr(llama_block, "runs", lambda: references)
    out = tmp_path / "curves.csv"
    sizes = "--dim 128 --blocks 1 --steps 12 --batch 2 --length 16 --vocab 32 --learning-rate 0.01"
    assert llama_block.main([*sizes.split(), "--csv", str(out)]) == 0
    lines = out.read_text().splitlines()
    assert lines[0] == "step,torch fp32,torch bf16"
    assert [line.split(",")[0] for line in lines[1:]] == [str(i) for i in range(12)]
    assert "torch bf16: 3." in capsys.readouterr().out
