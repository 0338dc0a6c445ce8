"""One rank of a data-parallel step through ops.gemm; started by test_dist.py. Rank 0 writes what the ranks agree on.

python data_parallel.py RANK RANKS RENDEZVOUS_FILE OUT
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from turbo_kernels import ops

ROWS, IN, OUT, STEPS = 64, 48, 32, 2


class Linear(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(OUT, IN, generator=torch.Generator().manual_seed(1)) / IN**0.5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return ops.gemm(x, self.weight)


def batch(step: int) -> tuple[torch.Tensor, torch.Tensor]:
    """(inputs, targets) of the whole step, the same in every process."""
    generator = torch.Generator().manual_seed(100 + step)
    return torch.randn(ROWS, IN, generator=generator), torch.randn(ROWS, OUT, generator=generator)


def train(model: nn.Module, rank: int, ranks: int, device: str) -> torch.Tensor:
    """The weight after STEPS steps of plain gradient descent on this rank's share of every batch."""
    for step in range(STEPS):
        x, target = (t.chunk(ranks)[rank].to(device) for t in batch(step))
        model.zero_grad()
        (model(x) - target).square().mean().backward()
        with torch.no_grad():
            for p in model.parameters():
                assert p.grad is not None
                p.sub_(0.5 * p.grad)
    return next(iter(model.parameters())).detach().cpu()


def main() -> None:
    rank, ranks, rendezvous, out = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], Path(sys.argv[4])
    torch.set_num_threads(1)
    gpus = torch.cuda.device_count()
    if gpus:
        torch.cuda.set_device(rank % gpus)
    device = "cuda" if gpus else "cpu"
    # Two ranks may share a GPU, which nccl refuses.
    dist.init_process_group(
        "nccl" if gpus >= ranks else "gloo", init_method=f"file://{rendezvous}", rank=rank, world_size=ranks
    )
    weight = train(DistributedDataParallel(Linear().to(device)), rank, ranks, device)
    everyone = [torch.empty_like(weight).to(device) for _ in range(ranks)]
    dist.all_gather(everyone, weight.to(device))
    if rank == 0:
        alone, start = train(Linear().to(device), 0, 1, device), Linear().weight.detach()
        torch.save({"ranks": [w.cpu() for w in everyone], "alone": alone, "start": start}, out)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
