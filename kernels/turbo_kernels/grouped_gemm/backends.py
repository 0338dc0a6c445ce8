"""Who runs a grouped GEMM: our kernels, torch's grouped product, or a loop over the groups."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable

import torch

from turbo_kernels.arch import unrunnable
from turbo_kernels.case_kit import DTYPES
from turbo_kernels.dispatch import AutoKernelDispatcher, Backend
from turbo_kernels.grouped_gemm import triton_grouped_gemm

Lens = torch.Tensor
_NAMES = {dtype: name for name, dtype in DTYPES.items()}


def group_rows(group_lens: Lens, rows: int) -> list[slice]:
    """Every group's rows, cut at `rows`. Waits for the device."""
    ends = group_lens.clamp(min=0).cumsum(0).clamp(max=rows).tolist()
    return [slice(start, end) for start, end in itertools.pairwise([0, *ends])]


def offsets(group_lens: Lens) -> torch.Tensor:
    """Where each group ends, as torch's grouped products want it: int32, on the device."""
    return group_lens.cumsum(0, dtype=torch.int32)


def behind(group_lens: Lens, rows: int) -> torch.Tensor:
    """[rows, 1], true for the rows behind the last group."""
    return torch.arange(rows, device=group_lens.device)[:, None] >= group_lens.sum()


def _loop_matmul(section: str, a: torch.Tensor, b: torch.Tensor, group_lens: Lens,
                 out_dtype: torch.dtype) -> torch.Tensor:  # fmt: skip
    out = torch.zeros((a.shape[0], b.shape[2]), dtype=out_dtype, device=a.device)
    for g, rows in enumerate(group_rows(group_lens, a.shape[0])):
        out[rows] = wide_mm(a[rows], b[g], out_dtype)
    return out


def _loop_wgrad(x: torch.Tensor, y: torch.Tensor, group_lens: Lens, out_dtype: torch.dtype) -> torch.Tensor:
    groups = group_rows(group_lens, x.shape[0])
    out = torch.zeros((len(groups), x.shape[1], y.shape[1]), dtype=out_dtype, device=x.device)
    for g, rows in enumerate(groups):
        out[g] = wide_mm(x[rows].t(), y[rows], out_dtype)
    return out


def wide_mm(x: torch.Tensor, y: torch.Tensor, out_dtype: torch.dtype) -> torch.Tensor:
    """x·y, in fp32 where the output has more digits than the operands."""
    return x @ y if out_dtype == x.dtype else x.float() @ y.float()


def _torch_matmul(section: str, a: torch.Tensor, b: torch.Tensor, group_lens: Lens,
                  out_dtype: torch.dtype) -> torch.Tensor:  # fmt: skip
    out = torch.ops.aten._grouped_mm(a, b, offs=offsets(group_lens))
    return out.masked_fill_(behind(group_lens, a.shape[0]), 0)  # torch leaves these rows unwritten


def _torch_wgrad(x: torch.Tensor, y: torch.Tensor, group_lens: Lens, out_dtype: torch.dtype) -> torch.Tensor:
    out = torch.ops.aten._grouped_mm(x.t(), y, offs=offsets(group_lens))
    return out.masked_fill_((group_lens == 0)[:, None, None], 0)  # torch promises nothing about a product without terms


def grouped_mm_refuses(*operands: torch.Tensor) -> str | None:
    """Why torch's grouped products can't take these as they lie, or what they would cost."""
    x = operands[0]
    if not hasattr(torch.ops.aten, "_grouped_mm"):
        return f"torch {torch.__version__} has no _grouped_mm"
    if not all(t.numel() for t in operands):
        return "_grouped_mm takes no empty operand"
    if x.device.type == "cuda" and torch.version.hip and os.environ.get("ROCM_ALLOW_GROUP_GEMM_CK") != "1":
        return "_grouped_mm loops over the groups on the host here, unless ROCM_ALLOW_GROUP_GEMM_CK=1"
    if (
        x.device.type == "cuda"
        and not torch.version.hip
        and torch.cuda.get_device_capability(x.device)[0] not in (9, 10)
    ):
        return "_grouped_mm has kernels for compute capability 9 and 10 alone"
    return next((why for why in map(_unaligned, operands) if why), None)


def _unaligned(t: torch.Tensor) -> str | None:
    """Its copies read 16 bytes at once: a unit stride, and the other one in steps of 16 bytes."""
    rows, columns = (t.stride(-2), t.stride(-1)) if t.stride(-1) == 1 else (t.stride(-1), t.stride(-2))
    length = t.shape[-1] if t.stride(-1) == 1 else t.shape[-2]
    if columns != 1 or rows < length or rows * t.element_size() % 16 or t.data_ptr() % 16:
        return f"_grouped_mm needs rows at steps of 16 bytes, got strides {t.stride()} of {t.dtype}"
    return None


def _not_bf16(x: torch.Tensor, out_dtype: torch.dtype) -> str | None:
    if x.dtype != torch.bfloat16 or out_dtype != torch.bfloat16:
        return f"_grouped_mm runs without the host in bf16 alone, got {x.dtype} to {out_dtype}"
    return None


def _torch_takes_matmul(section: str, a: torch.Tensor, b: torch.Tensor, group_lens: Lens,
                        out_dtype: torch.dtype) -> str | None:  # fmt: skip
    return _not_bf16(a, out_dtype) or grouped_mm_refuses(a, b)


def _torch_takes_wgrad(x: torch.Tensor, y: torch.Tensor, group_lens: Lens, out_dtype: torch.dtype) -> str | None:
    return _not_bf16(x, out_dtype) or grouped_mm_refuses(x, y)


def _dispatcher(op: str, precision: Callable[..., str], *backends: Backend) -> AutoKernelDispatcher:
    return AutoKernelDispatcher(op, "GROUPED_GEMM", precision, backends)


# matmul(section, a[T, K], b[G, K, N], group_lens, out_dtype) -> [T, N]
matmul = _dispatcher(
    "grouped_gemm", lambda section, a, *rest: _NAMES[a.dtype],
    Backend("TRITON", triton_grouped_gemm.matmul, lambda section, a, *rest: unrunnable(a)),
    Backend("HIPBLASLT", _torch_matmul, _torch_takes_matmul),
    Backend("TORCH", _loop_matmul),
)  # fmt: skip

# wgrad(x[T, M], y[T, N], group_lens, out_dtype) -> [G, M, N]
wgrad = _dispatcher(
    "grouped_gemm_wgrad", lambda x, *rest: _NAMES[x.dtype],
    Backend("TRITON", triton_grouped_gemm.wgrad, lambda x, *rest: unrunnable(x)),
    Backend("HIPBLASLT", _torch_wgrad, _torch_takes_wgrad),
    Backend("TORCH", _loop_wgrad),
)  # fmt: skip
