"""Who multiplies for gemm: our kernel, torch's (hipBLASLt or cuBLASLt), or plain torch in higher precision.

Each writes a[M, K]·b[K, N] + bias[N] into c[M, N], views of any strides, and returns c. `name` is the launch: forward,
dgrad or wgrad.
"""

from __future__ import annotations

import torch

from turbo_kernels.arch import unrunnable
from turbo_kernels.case_kit import DTYPES
from turbo_kernels.dispatch import AutoKernelDispatcher, Backend
from turbo_kernels.external import external
from turbo_kernels.gemm.triton_gemm import gemm_into

_NAMES = {dtype: name for name, dtype in DTYPES.items()}


def _precision(name: str, a: torch.Tensor, *rest: torch.Tensor | None) -> str:
    return _NAMES[a.dtype]


def _triton_refuses(name: str, a: torch.Tensor, *rest: torch.Tensor | None) -> str | None:
    return unrunnable(a)


def _library(name: str, a: torch.Tensor, b: torch.Tensor, c: torch.Tensor,
             bias: torch.Tensor | None = None) -> torch.Tensor:  # fmt: skip
    return torch.mm(a, b, out=c) if bias is None else torch.addmm(bias, a, b, out=c)


def _library_refuses(name: str, a: torch.Tensor, b: torch.Tensor, c: torch.Tensor,
                     bias: torch.Tensor | None = None) -> str | None:  # fmt: skip
    dtypes = {t.dtype for t in (a, b, c, bias) if t is not None}
    if len(dtypes) > 1:
        return f"torch.mm has one dtype, got {', '.join(sorted(map(str, dtypes)))}"
    if a.dtype == torch.float32 and a.is_cuda and torch.backends.cuda.matmul.allow_tf32:
        return "torch.mm multiplies fp32 in TF32 while torch.backends.cuda.matmul.allow_tf32 is set"
    return None


def _plain(name: str, a: torch.Tensor, b: torch.Tensor, c: torch.Tensor,
           bias: torch.Tensor | None = None) -> torch.Tensor:  # fmt: skip
    # fp16 and bf16 are exact in TF32 too: these products don't depend on allow_tf32.
    wide = torch.float64 if a.dtype == torch.float32 else torch.float32
    out = a.to(wide) @ b.to(wide)
    return c.copy_(out if bias is None else out + bias.to(wide))


def _to_external(name: str, a: torch.Tensor, b: torch.Tensor, c: torch.Tensor,
                 bias: torch.Tensor | None = None) -> tuple[torch.Tensor, torch.Tensor, torch.dtype] | str:  # fmt: skip
    return "it adds no bias" if bias is not None else (a, b.t(), c.dtype)


def _from_external(out: torch.Tensor, name: str, a: torch.Tensor, b: torch.Tensor, c: torch.Tensor,
                   bias: torch.Tensor | None = None) -> torch.Tensor:  # fmt: skip
    return c.copy_(out)


multiply = AutoKernelDispatcher(
    "gemm", "GEMM", _precision,
    (
        Backend("TRITON", gemm_into, _triton_refuses),
        Backend("HIPBLASLT", _library, _library_refuses),
        Backend("TORCH", _plain),
        *external("gemm", _to_external, _from_external),
    ),
)  # fmt: skip
