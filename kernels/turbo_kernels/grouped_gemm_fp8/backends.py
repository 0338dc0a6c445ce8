"""Who multiplies the quantized operands: our kernels, torch's scaled grouped product, or a loop over the groups."""

from __future__ import annotations

import itertools

import torch

from turbo_kernels.arch import unrunnable
from turbo_kernels.dispatch import AutoKernelDispatcher, Backend
from turbo_kernels.gemm_fp8.triton_quant import BLOCK, TINY
from turbo_kernels.grouped_gemm.backends import behind, group_rows, offsets
from turbo_kernels.grouped_gemm_fp8 import triton_grouped_gemm_fp8 as kernels
from turbo_kernels.grouped_gemm_fp8.triton_grouped_quant import Operand
from turbo_kernels.triton_groups import Tiles


def scales(operand: Operand, variant: str) -> torch.Tensor:
    """The scales themselves: blockwise ones as stored, the others from the amax."""
    if variant == "blockwise":
        return operand.scale
    return operand.scale.clamp_min(TINY) / torch.finfo(operand.q.dtype).max


def _spread(blocks: torch.Tensor) -> torch.Tensor:
    return blocks.repeat_interleave(BLOCK, -1)


def row_values(a: Operand, variant: str) -> torch.Tensor:
    """fp32 [T, ⌈K⌉] of the rows in their own order."""
    scale = scales(a, variant)
    return a.q.float() * (_spread(scale.t()) if variant == "blockwise" else scale[:, None])


def weight_values(name: str, b: Operand, N: int, K: int, variant: str) -> torch.Tensor:
    """fp32 [G, N, ⌈K⌉], N and K as the section `name` has them."""
    q = b.q.view(-1, N, K) if name == "forward" else b.q.view(N, -1, K).transpose(0, 1)
    scale, groups = scales(b, variant), q.shape[0]
    if variant != "blockwise":
        return q.float() * (scale.view(groups, N, 1) if variant == "rowwise" else scale)
    blocks = scale.view(groups, -1, scale.shape[1])
    blocks = blocks if name == "forward" else blocks.transpose(1, 2)
    return q.float() * _spread(_spread(blocks).transpose(1, 2)).transpose(1, 2)[:, :N]


def _loop_matmul(name: str, a: Operand, b: Operand, group_lens: torch.Tensor, tiles: Tiles, N: int, variant: str,
                 out_dtype: torch.dtype) -> torch.Tensor:  # fmt: skip
    left = row_values(a, variant)
    right = weight_values(name, b, N, a.q.shape[1], variant)
    out = torch.zeros((left.shape[0], N), dtype=out_dtype, device=left.device)
    for g, rows in enumerate(group_rows(group_lens, left.shape[0])):
        out[rows] = (left[rows] @ right[g].t()).to(out_dtype)
    return out


def _loop_wgrad(x: Operand, y: Operand, group_lens: torch.Tensor, tiles: Tiles, variant: str,
                out_dtype: torch.dtype) -> torch.Tensor:  # fmt: skip
    starts = (tiles.tiles * BLOCK).tolist()
    out = torch.zeros((len(starts) - 1, x.q.shape[0], y.q.shape[0]), dtype=out_dtype, device=x.q.device)
    for g, (start, end) in enumerate(itertools.pairwise(starts)):
        left, right = (_column_values(t, variant, g, start, end) for t in (x, y))
        out[g] = (left @ right.t()).to(out_dtype)
    return out


def _column_values(x: Operand, variant: str, group: int, start: int, end: int) -> torch.Tensor:
    """fp32 [M, end - start] of one group's columns."""
    scale = scales(x, variant)
    if variant == "blockwise":
        scale = _spread(scale[start // BLOCK : end // BLOCK].t())
    elif variant == "rowwise":
        scale = scale[group][:, None]
    return x.q[:, start:end].float() * scale


def _vector(operand: Operand, variant: str, length: int) -> torch.Tensor:
    """One scale a row, as torch wants it: contiguous."""
    return scales(operand, variant).reshape(-1).expand(length).contiguous()


def _torch_matmul(name: str, a: Operand, b: Operand, group_lens: torch.Tensor, tiles: Tiles, N: int, variant: str,
                  out_dtype: torch.dtype) -> torch.Tensor:  # fmt: skip
    (T, K), G = a.q.shape, group_lens.numel()
    weight = b.q.view(G, N, K) if name == "forward" else b.q.view(N, G, K).transpose(0, 1).contiguous()
    out = torch.ops.aten._scaled_grouped_mm(
        a.q, weight.transpose(1, 2), _vector(a, variant, T), _vector(b, variant, G * N).view(G, N),
        offs=offsets(group_lens), out_dtype=out_dtype,
    )  # fmt: skip
    return out.masked_fill_(behind(group_lens, T), 0)


def _torch_wgrad(x: Operand, y: Operand, group_lens: torch.Tensor, tiles: Tiles, variant: str,
                 out_dtype: torch.dtype) -> torch.Tensor:  # fmt: skip
    G = group_lens.numel()
    left, right = (_vector(t, variant, G * t.q.shape[0]) for t in (x, y))
    ends = tiles.tiles[1:] * BLOCK
    out = torch.ops.aten._scaled_grouped_mm(x.q, y.q.t(), left, right, offs=ends, out_dtype=out_dtype)
    return out.masked_fill_((group_lens == 0)[:, None, None], 0)


def scaled_grouped_mm_refuses(x: Operand, y: Operand, N: int, variant: str, out_dtype: torch.dtype) -> str | None:
    if variant == "blockwise":
        return "_scaled_grouped_mm has no scales per block"
    if x.q.dtype != torch.float8_e4m3fn or y.q.dtype != torch.float8_e4m3fn:
        return f"_scaled_grouped_mm multiplies E4M3 (OCP) alone, got {x.q.dtype} and {y.q.dtype}"
    if out_dtype != torch.bfloat16:
        return f"_scaled_grouped_mm returns bf16 alone, not {out_dtype}"
    if not hasattr(torch.ops.aten, "_scaled_grouped_mm"):
        return f"torch {torch.__version__} has no _scaled_grouped_mm"
    if x.q.device.type != "cuda" or torch.version.hip or torch.cuda.get_device_capability(x.q.device)[0] != 9:
        return "_scaled_grouped_mm has kernels for compute capability 9 alone"
    if N % 8 or not (x.q.numel() and y.q.numel()):
        return f"_scaled_grouped_mm needs operands that aren't empty and output rows of 16 bytes, got N = {N}"
    return None


matmul = AutoKernelDispatcher(
    "grouped_gemm_fp8", "GROUPED_GEMM", "fp8",
    (
        Backend("TRITON", kernels.matmul, lambda name, a, *rest: unrunnable(a.q)),
        Backend("HIPBLASLT", _torch_matmul,
                lambda name, a, b, lens, tiles, N, *rest: scaled_grouped_mm_refuses(a, b, N, *rest)),
        Backend("TORCH", _loop_matmul),
    ),
)  # fmt: skip

wgrad = AutoKernelDispatcher(
    "grouped_gemm_fp8_wgrad", "GROUPED_GEMM", "fp8",
    (
        Backend("TRITON", kernels.wgrad, lambda x, *rest: unrunnable(x.q)),
        Backend("HIPBLASLT", _torch_wgrad,
                lambda x, y, lens, tiles, *rest: scaled_grouped_mm_refuses(x, y, y.q.shape[0], *rest)),
        Backend("TORCH", _loop_wgrad),
    ),
)  # fmt: skip
