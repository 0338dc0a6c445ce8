"""The insides of the grouped GEMMs: how rows are cut into tiles, what is quantized where, what a launch reads."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest
import torch
from grouped_helpers import inputs
from kernel_helpers import DEVICE, everywhere
from torch.overrides import TorchFunctionMode
from turbo_kernels import config, ops, triton_groups
from turbo_kernels.arch import fp8_dtype
from turbo_kernels.config import override
from turbo_kernels.gemm_fp8 import reference
from turbo_kernels.gemm_fp8.fp8 import FP8Config
from turbo_kernels.grouped_gemm import backends, cases, triton_grouped_gemm
from turbo_kernels.grouped_gemm_fp8 import SPEC, triton_grouped_gemm_fp8, triton_grouped_quant
from turbo_kernels.grouped_gemm_fp8 import cases as fp8_cases
from turbo_kernels.grouped_gemm_fp8.backends import scales
from turbo_kernels.grouped_gemm_fp8.triton_grouped_quant import quantize, quantize_weight
from turbo_kernels.triton_groups import cut, most_tiles

# -- tiles -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("tile_rows", [16, 128])
@pytest.mark.parametrize(
    ("lens", "rows"),
    [([5], 5), ([0, 0, 0], 0), ([0, 0], 40), ([1] * 37, 37), ([128, 0, 129, 127], 400), ([5000, 0, 1], 5001), ([], 20)],
)
def test_tiles_cover_every_row_once(lens: list[int], rows: int, tile_rows: int) -> None:
    tiles = cut(torch.tensor(lens, dtype=torch.int64, device=DEVICE), rows, tile_rows)
    groups = len(lens)
    bounds = [sum(lens[:g]) for g in range(groups + 1)]
    assert tiles.rows.tolist() == bounds
    counts = [-(-n // tile_rows) for n in lens]
    assert tiles.tiles.tolist() == [sum(counts[:g]) for g in range(groups + 1)]
    seen = []
    for group, first, end in tiles.table.t().tolist():
        stop = min(first + tile_rows, end)
        if first < stop:
            assert group == groups or bounds[group] <= first < stop <= bounds[group + 1]
            seen += range(first, stop)
    assert sorted(seen) == list(range(rows))


def test_most_tiles_is_reached_and_never_exceeded() -> None:
    """One row a group, and one behind them, take most."""
    assert most_tiles(8, 7, 16) == (8 + 8 * 15) // 16 == 8
    for lens in ([1] * 7, [2, 6, 0], [8]):
        tiles = -(-(8 - sum(lens)) // 16) + sum(-(-n // 16) for n in lens)
        assert tiles <= most_tiles(8, len(lens), 16)


# -- quantization ------------------------------------------------------------------------------------------------------


def magnitudes(*shape: int) -> torch.Tensor:
    """bf16 over 30 binades, some rows zero."""
    g = torch.Generator().manual_seed(1)
    x = torch.randn(*shape, generator=g) * torch.exp2(torch.randint(-15, 15, shape, generator=g))
    x[..., ::7, :] = 0
    return x.bfloat16().to(DEVICE)


def expected(x: torch.Tensor, variant: str, encoding: str, amax: torch.Tensor | None = None) -> tuple[Any, Any]:
    """(codes, scale of each element) of x[M, K], scaled along K; for tensorwise the whole tensor's `amax`."""
    dtype = fp8_dtype(encoding)
    if variant == "blockwise":
        return reference.quantize(x, dtype, whole=False)
    amax = (x.float().abs().amax(1, keepdim=True) if amax is None else amax).clamp_min(reference.TINY)
    largest = torch.full_like(amax, torch.finfo(dtype).max)
    return (x.float() * (largest / amax)).to(dtype), (amax / largest).expand(x.shape)


@pytest.mark.parametrize("encoding", ["e4m3", "e5m2"])
@pytest.mark.parametrize("variant", ["blockwise", "rowwise", "tensorwise"])
def test_both_layouts_bit_by_bit(variant: str, encoding: str) -> None:
    lens, K, rows = [3, 0, 150, 20], 140, 190
    x = magnitudes(rows, K)
    tiles = cut(torch.tensor(lens, device=DEVICE), rows, 128)
    along_k, along_rows = quantize(x, tiles, variant, encoding)
    used = sum(lens)
    whole = x[:used].float().abs().max() if variant == "tensorwise" else None
    codes, scale = expected(x[:used], variant, encoding, whole)
    assert torch.equal(along_k.q[:used, :K].view(torch.uint8), codes[:, :K].view(torch.uint8))
    assert not along_k.q[:used, K:].view(torch.uint8).any()
    found = scales(along_k, variant)
    if variant == "blockwise":
        assert torch.equal(found[:, :used], scale[:, ::128].t())
    else:
        assert torch.equal(found[:used] if variant == "rowwise" else found.expand(used), scale[:, 0])
    row, tile = 0, 0
    for group, n in enumerate(lens):
        if not n:
            continue
        padded = -(-n // 128) * 128
        part = along_rows.q[:, tile * 128 : tile * 128 + padded].view(torch.uint8)
        codes, scale = expected(x[row : row + n].t(), variant, encoding, whole)
        assert torch.equal(part[:, :n], codes[:, :n].view(torch.uint8))
        assert not part[:, n:].any()
        if variant == "blockwise":
            assert torch.equal(scales(along_rows, variant)[tile : tile + padded // 128], scale[:, ::128].t())
        elif variant == "rowwise":
            assert torch.equal(scales(along_rows, variant)[group], scale[:, 0])
        row, tile = row + n, tile + padded // 128


@pytest.mark.parametrize("variant", ["blockwise", "rowwise", "tensorwise"])
def test_each_expert_is_quantized_by_itself(variant: str) -> None:
    """As every expert alone, however the weights lie in memory; a tensor's one scale is of all of them."""
    b = magnitudes(3, 70, 150)
    together = quantize_weight(b.transpose(1, 2).contiguous().transpose(1, 2), variant, "e4m3")
    if variant == "tensorwise":
        assert torch.equal(scales(together[0], variant), b.float().abs().max()[None] / torch.finfo(fp8_dtype()).max)
        return
    for g in range(3):
        alone = quantize_weight(b[g : g + 1], variant, "e4m3")
        assert torch.equal(together[0].q[70 * g : 70 * (g + 1)].view(torch.uint8), alone[0].q.view(torch.uint8))
        assert torch.equal(together[1].q[:, 128 * g : 128 * (g + 1)].view(torch.uint8), alone[1].q.view(torch.uint8))
        for t, one in zip(together, alone, strict=True):
            assert torch.equal(t.scale.view(3, -1)[g], one.scale.flatten())


# -- configuration -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("section", ["forward", "dgrad", "wgrad"])
@pytest.mark.parametrize(
    ("op", "module", "adapter"),
    [("grouped_gemm", triton_grouped_gemm, cases), ("grouped_gemm_fp8", triton_grouped_gemm_fp8, fp8_cases)],
)
def test_every_section_is_read(
    op: str, module: ModuleType, adapter: ModuleType, section: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A section that no launch reads would make a search's sweep over it pure noise."""
    launched: list[int] = []

    def spy(real: Any) -> Any:
        class Spy:
            def __getitem__(self, grid: tuple[int, ...]) -> Callable[..., None]:
                def launch(*args: Any, **meta: Any) -> None:
                    launched.append(meta["BLOCK_N"])
                    real[grid](*args, **meta)

                return launch

        return Spy()

    for kernel in ("rows_kernel", "wgrad_kernel"):
        monkeypatch.setattr(module, kernel, spy(getattr(module, kernel)))
    t = inputs([20, 12], 32, 32)
    if op == "grouped_gemm_fp8":
        t["variant"] = torch.zeros(1, dtype=torch.uint8, device=DEVICE)
    with everywhere(op, BLOCK_N=32), override(op, section, {"BLOCK_N": 64}):
        adapter.step(t)
    assert [n == 64 for n in launched] == [section == s for s in ("forward", "dgrad", "wgrad")]


# -- the host ----------------------------------------------------------------------------------------------------------


def replayed(op: Callable[..., torch.Tensor], adapter: ModuleType, variant: str) -> None:
    """Captures a step in a CUDA graph, which refuses every wait for the device, and replays it with other lengths."""
    t = adapter.make_inputs({"B": 4, "M": 256, "N": 256, "K": 128}, "bf16", variant, 0, "cuda")
    adapter.FILLS["balanced"](t, 0)
    graph, stream = torch.cuda.CUDAGraph(), torch.cuda.Stream()

    def step() -> dict[str, torch.Tensor]:
        out = op(t["a"], t["b"], t["group_lens"])
        da, db = torch.autograd.grad(out, (t["a"], t["b"]), t["grad_out"])
        return {"out": out.detach(), "da": da, "db": db}

    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        step()
    torch.cuda.current_stream().wait_stream(stream)
    with torch.cuda.graph(graph):
        outputs = step()
    for layout in ("one_expert", "half_empty", "dropped"):
        adapter.FILLS[layout](t, 1)
        graph.replay()
        passed, _, detail = adapter.check(outputs, adapter.reference(t), "bf16", variant)
        assert passed, (layout, detail)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="a CUDA graph needs a GPU")
@pytest.mark.parametrize("op", ["grouped_gemm", *SPEC.variants])
def test_a_graph_replays_with_other_lengths(op: str) -> None:
    if op == "grouped_gemm":
        replayed(ops.grouped_gemm, cases, "default")
        return

    def fp8(a: torch.Tensor, b: torch.Tensor, lens: torch.Tensor) -> torch.Tensor:
        return ops.grouped_gemm_fp8(a, b, lens, config=FP8Config(op))

    replayed(fp8, fp8_cases, op)


class _Watched(TorchFunctionMode):
    """Fails where Python asks a tensor for a value."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = getattr(func, "__name__", "")
        assert name not in {"item", "tolist", "__bool__", "__int__", "__index__", "nonzero", "cpu"}, name
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("op", ["grouped_gemm", *SPEC.variants])
def test_the_host_reads_no_value_TRITON(op: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between launches, that is: what the interpreter does inside of one is replaced by nothing."""
    for module in (triton_groups, triton_grouped_gemm, triton_grouped_gemm_fp8, triton_grouped_quant):
        for name in [n for n in vars(module) if n.endswith("_kernel")]:
            monkeypatch.setattr(module, name, _Launchable())
    monkeypatch.setattr(_Launchable, "launched", 0)
    t = inputs([20, 12], 32, 32)
    with _Watched():
        if op == "grouped_gemm":
            out = ops.grouped_gemm(t["a"], t["b"], t["group_lens"])
        else:
            out = ops.grouped_gemm_fp8(t["a"], t["b"], t["group_lens"], config=FP8Config(op))
        torch.autograd.grad(out, (t["a"], t["b"]), t["grad_out"])
    # Three products, each with its table of tiles; in fp8 two tables of 128 rows, three quantizations, their maxima.
    tables = sum(config.load("grouped_gemm_fp8")[name]["BLOCK_M"] != 128 for name in ("forward", "dgrad"))
    products = {"grouped_gemm": 6, "blockwise": 3 + 2 + 3 + tables}
    assert _Launchable.launched == products.get(op, products["blockwise"] + 3)


class _Launchable:
    launched = 0

    def __getitem__(self, grid: tuple[int, ...]) -> Callable[..., None]:
        assert all(type(n) is int for n in grid)

        def launch(*args: Any, **meta: Any) -> None:
            type(self).launched += 1

        return launch


def test_the_loop_does_read_values_which_the_watch_sees() -> None:
    t = inputs([20, 12], 32, 32)
    with pytest.raises(AssertionError, match="tolist"), _Watched():
        backends.matmul.backends["TORCH"].run(
            "forward", t["a"].detach(), t["b"].detach().transpose(1, 2), t["group_lens"], torch.bfloat16
        )
