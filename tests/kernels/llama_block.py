"""Trains a small Llama-like model on a learnable synthetic task and returns its loss curve, with any linear layer.

    python -m tests.kernels.llama_block --dim 2048 --steps 50 --csv out.csv

on a GPU machine: fp32 and bf16 by torch, then bf16 and each fp8 variant by turbo_kernels, on the same data from the same
weights; a CSV column each. Exits 1 where a loss doesn't fall or its end isn't close to that of torch in fp32.
"""

from __future__ import annotations

import argparse
import csv
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
from torch.nn import functional as F

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[2] / "kernels"))

from turbo_kernels import modules
from turbo_kernels.registry import family

Layer = Callable[..., torch.nn.Module]
Curve = list[float]

CLOSE = 0.02  # of the reference's whole drop: how far two curves may be apart at their ends
LAST = 10  # steps that make an end, at most half of all


@dataclass(frozen=True)
class Size:
    """`vocab` tokens, sequences of `length`, `batch` of them a step."""

    dim: int = 32
    hidden: int = 64
    heads: int = 2
    blocks: int = 1
    vocab: int = 32
    length: int = 16
    batch: int = 4


@dataclass(frozen=True)
class Layers:
    """What a model is built of. Embedding and head are torch's in any case, as fp8 recipes keep them."""

    linear: Layer = modules.Linear
    norm: Layer = modules.RMSNorm
    mlp: Layer = modules.SwiGLUMLP
    dtype: torch.dtype = torch.bfloat16


class TorchMLP(torch.nn.Module):
    """The same formula and the same parameters as SwiGLUMLP, by torch."""

    def __init__(self, dim: int, hidden: int, linear: Layer, dtype: torch.dtype) -> None:
        super().__init__()
        self.gate_up_proj = linear(dim, 2 * hidden, bias=False, dtype=dtype)
        self.down_proj = linear(hidden, dim, bias=False, dtype=dtype)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        gate, up = self.gate_up_proj(x).chunk(2, -1)
        return self.down_proj(F.silu(gate) * up)


class Block(torch.nn.Module):
    """x + attention(norm(x)), then x + mlp(norm(x)); causal attention by torch."""

    def __init__(self, size: Size, layers: Layers) -> None:
        super().__init__()
        self.heads = size.heads
        self.attention_norm = layers.norm(size.dim, 1e-6, dtype=layers.dtype)
        self.qkv_proj = layers.linear(size.dim, 3 * size.dim, bias=False, dtype=layers.dtype)
        self.o_proj = layers.linear(size.dim, size.dim, bias=False, dtype=layers.dtype)
        self.mlp_norm = layers.norm(size.dim, 1e-6, dtype=layers.dtype)
        self.mlp = layers.mlp(size.dim, size.hidden, linear=layers.linear, dtype=layers.dtype)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.o_proj(self.attention(self.qkv_proj(self.attention_norm(x))))
        return x + self.mlp(self.mlp_norm(x))

    def attention(self, qkv: torch.Tensor) -> torch.Tensor:
        batch, length, _ = qkv.shape
        q, k, v = qkv.view(batch, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        return F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(batch, length, -1)


class Model(torch.nn.Module):
    """Tokens [B, S] -> logits [B, S, vocab] in fp32."""

    def __init__(self, size: Size, layers: Layers) -> None:
        super().__init__()
        self.embedding = torch.nn.Embedding(size.vocab, size.dim, dtype=layers.dtype)
        self.blocks = torch.nn.ModuleList(Block(size, layers) for _ in range(size.blocks))
        self.norm = layers.norm(size.dim, 1e-6, dtype=layers.dtype)
        self.head = torch.nn.Linear(size.dim, size.vocab, bias=False, dtype=layers.dtype)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embedding(tokens)
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x)).float()


def chain(size: Size, seed: int) -> torch.Tensor:
    """Transition probabilities [vocab, vocab] of a Markov chain with about 4 likely successors a token."""
    logits = 3.0 * torch.randn(size.vocab, size.vocab, generator=torch.Generator().manual_seed(seed))
    kept = logits.topk(min(4, size.vocab), -1)
    return torch.full_like(logits, -torch.inf).scatter(1, kept.indices, kept.values).softmax(-1)


def sample(transitions: torch.Tensor, size: Size, seed: int) -> torch.Tensor:
    """Token sequences [batch, length + 1] of the chain."""
    generator = torch.Generator().manual_seed(seed)
    tokens = [torch.randint(size.vocab, (size.batch,), generator=generator)]
    for _ in range(size.length):
        tokens.append(torch.multinomial(transitions[tokens[-1]], 1, generator=generator).squeeze(1))
    return torch.stack(tokens, 1)


def train(layers: Layers, size: Size, steps: int, device: str, learning_rate: float = 3e-3, seed: int = 0) -> Curve:
    """The loss before each of `steps` AdamW steps. Data and initial weights depend on `seed` and `size` alone.

    The optimizer keeps fp32 copies of the weights: a bf16 weight alone would lose small updates, whatever the layer.
    """
    transitions = chain(size, seed)
    torch.manual_seed(seed)
    initial = Model(size, Layers(torch.nn.Linear, torch.nn.RMSNorm, TorchMLP, torch.float32))
    model = Model(size, layers)
    masters = [p.detach().clone().to(device).requires_grad_() for p in initial.parameters()]
    model.to(device)
    optimizer, curve = torch.optim.AdamW(masters, lr=learning_rate, weight_decay=0.0), []
    for step in range(steps):
        tokens = sample(transitions, size, seed * 1_000_003 + step).to(device)
        with torch.no_grad():
            for parameter, master in zip(model.parameters(), masters, strict=True):
                parameter.copy_(master)
                parameter.grad = None
        loss = F.cross_entropy(model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())
        loss.backward()
        for parameter, master in zip(model.parameters(), masters, strict=True):
            assert parameter.grad is not None
            master.grad = parameter.grad.float()
        optimizer.step()
        curve.append(loss.detach())
    return [float(v) for v in curve]


def end(curve: Curve) -> Curve:
    return curve[-min(LAST, max(1, len(curve) // 2)) :]


def drop(curve: Curve) -> float:
    """How far the loss fell: its first value less the mean of its end."""
    return curve[0] - sum(end(curve)) / len(end(curve))


def apart(curve: Curve, reference: Curve) -> float:
    """Mean absolute difference of the ends, as a share of the reference's drop. Close: at most CLOSE."""
    pairs = list(zip(end(curve), end(reference), strict=True))
    return sum(abs(a - b) for a, b in pairs) / len(pairs) / drop(reference)


def runs() -> dict[str, Layers]:
    """Every way to train the same model, the references first."""
    fp8 = {
        f"fp8 {variant}": Layers(partial(modules.LinearFP8, config=modules.FP8Config(variant)))
        for variant in family("gemm_fp8").variants
    }
    plain = Layers(torch.nn.Linear, torch.nn.RMSNorm, TorchMLP)
    return {
        "torch fp32": Layers(plain.linear, plain.norm, plain.mlp, torch.float32),
        "torch bf16": plain,
        "bf16": Layers(),
        **fp8,
    }


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--dim", type=int, default=2048)
    parser.add_argument("--hidden", type=int, help="of the feed-forward layer, 3.5 × dim by default")
    parser.add_argument("--blocks", type=int, default=2)
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--length", type=int, default=1024)
    parser.add_argument("--vocab", type=int, default=1024)
    parser.add_argument("--learning-rate", type=float, default=3e-4)
    parser.add_argument("--csv", type=Path, required=True)
    args = parser.parse_args(argv)
    size = Size(args.dim, args.hidden or 7 * args.dim // 2, max(1, args.dim // 128), args.blocks, args.vocab,
                args.length, args.batch)  # fmt: skip
    device = "cuda" if torch.cuda.is_available() else "cpu"
    curves: dict[str, Curve] = {}
    for name, layers in runs().items():
        start = time.perf_counter()
        curves[name] = train(layers, size, args.steps, device, args.learning_rate)
        seconds, reference = time.perf_counter() - start, curves["torch fp32"]
        print(f"{name}: {curves[name][0]:.4f} to {curves[name][-1]:.4f}, "
              f"{100 * apart(curves[name], reference):.2f}% of the drop from torch fp32, {seconds:.1f} s", flush=True)  # fmt: skip
    with args.csv.open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["step", *curves])
        writer.writerows([step, *(f"{curve[step]:.6g}" for curve in curves.values())] for step in range(args.steps))
    good = all(drop(c) > 0 and apart(c, curves["torch fp32"]) <= CLOSE for c in curves.values())
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
