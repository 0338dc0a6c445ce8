"""Kernels of other packages as backends: CK, AITER, FLYDSL and DEEP_EP, used where their packages are installed.

A family appends them to its own backends and says how its arguments map to theirs:

    *external("gemm", lambda section, a, b, out_dtype: (a, b.t(), out_dtype))

Nothing of theirs is imported before one of them runs. `can_handle` says which package is missing, or which limit is passed.
None of these calls has ever run here: they follow the packages' published signatures, and autotune or a test against TORCH
on a machine that has them must come before trust.

| backend | package (import) | what is called |
|---|---|---|
| AITER | amd-aiter (aiter) | tuned_gemm.tgemm.mm, gemm_a8w8, gemm_a8w8_blockscale, flash_attn_func |
| CK | amd-aiter (aiter), which builds Composable Kernel's C++ templates | gemm_a8w8_CK, gemm_a8w8_blockscale_ck |
| FLYDSL | flydsl (flydsl) and amd-aiter, which has the kernels written in it | aiter.ops.flydsl.flydsl_hgemm |
| DEEP_EP | DeepEP (deep_ep), NVIDIA's or ROCm's | Buffer.get_dispatch_layout, dispatch, combine |
"""

from __future__ import annotations

import functools
import importlib.metadata
import importlib.util
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from turbo_kernels.arch import detect, fp8_dtype
from turbo_kernels.dispatch import Backend, anything

__all__ = ["KINDS", "external", "missing", "versions"]

AMD = ("gfx942", "gfx950")


@dataclass(frozen=True)
class Package:
    module: str
    distribution: str
    install: str


AITER = Package("aiter", "amd-aiter", "pip install amd-aiter")
FLYDSL = Package("flydsl", "flydsl", "pip install flydsl")
DEEP_EP = Package(
    "deep_ep", "deep_ep", "build it from github.com/deepseek-ai/DeepEP (NVIDIA) or github.com/ROCm/DeepEP"
)
PACKAGES = {"AITER": (AITER,), "CK": (AITER,), "FLYDSL": (FLYDSL, AITER), "DEEP_EP": (DEEP_EP,)}


@functools.cache
def missing(backend: str) -> str | None:
    """The package that this backend lacks here and where it comes from, or None."""
    for package in PACKAGES[backend]:
        if package.module not in sys.modules and importlib.util.find_spec(package.module) is None:
            return f"package {package.module!r} isn't installed: {package.install}"
    return None


def versions() -> dict[str, str]:
    """The versions of the packages, "absent" without: part of what autotune's results depend on."""
    found = {}
    for package in (AITER, FLYDSL, DEEP_EP):
        try:
            found[package.module] = importlib.metadata.version(package.distribution)
        except importlib.metadata.PackageNotFoundError:
            found[package.module] = "absent"
    return found


@dataclass(frozen=True)
class Adapter:
    """A package's function behind the arguments of its kind. `limits` says what it can't take, or None."""

    backend: str
    run: Callable[..., Any]
    architectures: tuple[str, ...] = AMD
    limits: Callable[..., str | None] = anything


Adapt = Callable[..., tuple[Any, ...] | str]


def external(
    kind: str, adapt: Adapt = lambda *args: args, finish: Callable[..., Any] = lambda out, *args: out
) -> tuple[Backend, ...]:
    """The external backends of one kind (KINDS), to append to a family's own. Imports none of their packages.

    Args:
        kind: what they compute, which fixes their arguments.
        adapt: a family's arguments -> the kind's, or the reason why there are none for these.
        finish: (what the kind returns, the family's arguments…) -> what the family returns: where it writes into one of
            its arguments, `lambda out, name, a, b, c: c.copy_(out)`.

    ValueError names the kinds there are.
    """
    if kind not in KINDS:
        raise ValueError(f"no external kernels of kind {kind!r}; there are {', '.join(KINDS)}")
    return tuple(_backend(adapter, adapt, finish) for adapter in KINDS[kind])


def _backend(adapter: Adapter, adapt: Adapt, finish: Callable[..., Any]) -> Backend:
    def can_handle(*args: Any, **kwargs: Any) -> str | None:
        why = missing(adapter.backend)
        if why is None and detect() not in adapter.architectures:
            why = f"its kernels are for {', '.join(adapter.architectures)}, this is {detect()}"
        if why is not None:
            return why
        adapted = adapt(*args, **kwargs)
        return adapted if isinstance(adapted, str) else adapter.limits(*adapted)

    def run(*args: Any, **kwargs: Any) -> Any:
        return finish(adapter.run(*adapt(*args, **kwargs)), *args, **kwargs)

    return Backend(adapter.backend, run, can_handle)


def _codes(t: Tensor) -> Tensor:
    """FP8 codes in the architecture's encoding; they travel as uint8."""
    return (t.view(fp8_dtype()) if t.dtype == torch.uint8 else t).contiguous()


# gemm(a[M, K], b[N, K], out_dtype) -> a·bᵀ [M, N]


def _half(a: Tensor, b: Tensor, out_dtype: torch.dtype) -> str | None:
    if a.dtype not in (torch.bfloat16, torch.float16) or b.dtype != a.dtype:
        return f"it takes bf16 or fp16, got {a.dtype} and {b.dtype}"
    return None if a.numel() and b.numel() else "it takes no empty operand"


def _half_to_itself(a: Tensor, b: Tensor, out_dtype: torch.dtype) -> str | None:
    if out_dtype not in (a.dtype, torch.float32):
        return f"it writes {a.dtype} or fp32, not {out_dtype}"
    return _half(a, b, out_dtype)


def _aiter_gemm(a: Tensor, b: Tensor, out_dtype: torch.dtype) -> Tensor:
    from aiter.tuned_gemm import tgemm  # pyright: ignore[reportMissingImports]

    return tgemm.mm(a.contiguous(), b.contiguous(), otype=out_dtype)


def _flydsl_gemm(a: Tensor, b: Tensor, out_dtype: torch.dtype) -> Tensor:
    from aiter.ops.flydsl import flydsl_hgemm  # pyright: ignore[reportMissingImports]

    return flydsl_hgemm(a, b, out_dtype=out_dtype)


# gemm_fp8_rowwise(a codes[M, K], b codes[N, K], a_scale[M, 1], b_scale[N, 1], out_dtype): value = code · scale
# gemm_fp8_blockwise(a codes[M, K], b codes[N, K], a_scale[M, ⌈K/128⌉], b_scale[⌈N/128⌉, ⌈K/128⌉], out_dtype)


def _fp8(a: Tensor, b: Tensor, a_scale: Tensor, b_scale: Tensor, out_dtype: torch.dtype) -> str | None:
    for codes in (a, b):
        if codes.dtype not in (torch.uint8, fp8_dtype()):
            return f"it takes codes in {fp8_dtype()}, got {codes.dtype}"
    if out_dtype not in (torch.bfloat16, torch.float16):
        return f"it writes bf16 or fp16, not {out_dtype}"
    return None if a.numel() and b.numel() else "it takes no empty operand"


def _fp8_blocks(a: Tensor, b: Tensor, a_scale: Tensor, b_scale: Tensor, out_dtype: torch.dtype) -> str | None:
    if a.shape[1] % 128 or b.shape[0] % 128:
        return f"it takes N and K in steps of 128, got N {b.shape[0]}, K {a.shape[1]}"
    return _fp8(a, b, a_scale, b_scale, out_dtype)


def _aiter_rowwise(a: Tensor, b: Tensor, a_scale: Tensor, b_scale: Tensor, out_dtype: torch.dtype) -> Tensor:
    import aiter  # pyright: ignore[reportMissingImports]

    return aiter.gemm_a8w8(_codes(a), _codes(b), a_scale.reshape(-1, 1), b_scale.reshape(1, -1), None, out_dtype)


def _ck_rowwise(a: Tensor, b: Tensor, a_scale: Tensor, b_scale: Tensor, out_dtype: torch.dtype) -> Tensor:
    import aiter  # pyright: ignore[reportMissingImports]

    return aiter.gemm_a8w8_CK(_codes(a), _codes(b), a_scale.reshape(-1, 1), b_scale.reshape(1, -1), None, out_dtype)


def _aiter_blockwise(a: Tensor, b: Tensor, a_scale: Tensor, b_scale: Tensor, out_dtype: torch.dtype) -> Tensor:
    import aiter  # pyright: ignore[reportMissingImports]

    return aiter.gemm_a8w8_blockscale(_codes(a), _codes(b), a_scale.contiguous(), b_scale.contiguous(), out_dtype)


def _ck_blockwise(a: Tensor, b: Tensor, a_scale: Tensor, b_scale: Tensor, out_dtype: torch.dtype) -> Tensor:
    import aiter  # pyright: ignore[reportMissingImports]

    out = torch.empty((a.shape[0], b.shape[0]), dtype=out_dtype, device=a.device)
    return aiter.gemm_a8w8_blockscale_ck(_codes(a), _codes(b), a_scale.contiguous(), b_scale.contiguous(), out)


# attention(q[B, S, H, D], k[B, S', G, D], v[B, S', G, D], softmax_scale, causal) -> (out[B, S, H, D], lse[B, H, S] fp32);
# the causal mask is aligned to the bottom right


def _aiter_attention(q: Tensor, k: Tensor, v: Tensor, softmax_scale: float, causal: bool) -> Any:
    import aiter  # pyright: ignore[reportMissingImports]

    out, lse = aiter.flash_attn_func(q, k, v, softmax_scale=softmax_scale, causal=causal, return_lse=True)[:2]
    return out, lse


def _attention_limits(q: Tensor, k: Tensor, v: Tensor, *rest: Any) -> str | None:
    if q.dtype not in (torch.bfloat16, torch.float16):
        return f"it takes bf16 or fp16, got {q.dtype}"
    if q.shape[-1] > 256:
        return f"it takes heads of up to 256, got {q.shape[-1]}"
    return None if q.numel() and k.numel() else "it takes no empty operand"


# moe_dispatch(x[T, H], topk_idx[T, k] int64, topk_weights[T, k] fp32, experts, group)
#     -> (received x, their expert indices, their weights, tokens per local expert, handle)
# moe_combine(x, handle, group) -> [T, H], the sum over the ranks that a token went to


@functools.lru_cache(maxsize=8)
def _buffer(group: Any, hidden_bytes: int) -> Any:
    """DeepEP's communication buffer of one group, of the size that its own hints ask for. Collective when made."""
    from deep_ep import Buffer  # pyright: ignore[reportMissingImports]

    ranks, configs = group.size(), (Buffer.get_dispatch_config, Buffer.get_combine_config)
    nvlink = max(config(ranks).get_nvl_buffer_size_hint(hidden_bytes, ranks) for config in configs)
    rdma = max(config(ranks).get_rdma_buffer_size_hint(hidden_bytes, ranks) for config in configs)
    return Buffer(group, nvlink, rdma)


def _hidden_bytes(x: Tensor) -> int:
    return x.shape[1] * max(x.element_size(), 2)


def _deep_ep_dispatch(x: Tensor, topk_idx: Tensor, topk_weights: Tensor, experts: int, group: Any) -> tuple[Any, ...]:
    buffer = _buffer(group, _hidden_bytes(x))
    per_rank, per_rdma_rank, per_expert, in_rank, _ = buffer.get_dispatch_layout(topk_idx, experts)
    received = buffer.dispatch(
        x, topk_idx=topk_idx, topk_weights=topk_weights, num_tokens_per_rank=per_rank,
        num_tokens_per_rdma_rank=per_rdma_rank, is_token_in_rank=in_rank, num_tokens_per_expert=per_expert,
    )  # fmt: skip
    return received[:5]


def _deep_ep_combine(x: Tensor, handle: Any, group: Any) -> Tensor:
    return _buffer(group, _hidden_bytes(x)).combine(x, handle)[0]


def _tokens(x: Tensor, *rest: Any) -> str | None:
    return None if x.dtype == torch.bfloat16 else f"it moves bf16, got {x.dtype}"


_EVERYWHERE = (*AMD, "sm_90")
KINDS: dict[str, tuple[Adapter, ...]] = {
    "gemm": (
        Adapter("AITER", _aiter_gemm, limits=_half),
        Adapter("FLYDSL", _flydsl_gemm, ("gfx950",), _half_to_itself),
    ),
    "gemm_fp8_rowwise": (Adapter("AITER", _aiter_rowwise, limits=_fp8), Adapter("CK", _ck_rowwise, limits=_fp8)),
    "gemm_fp8_blockwise": (
        Adapter("AITER", _aiter_blockwise, limits=_fp8_blocks),
        Adapter("CK", _ck_blockwise, limits=_fp8_blocks),
    ),
    "attention": (Adapter("AITER", _aiter_attention, limits=_attention_limits),),
    "moe_dispatch": (Adapter("DEEP_EP", _deep_ep_dispatch, _EVERYWHERE, _tokens),),
    "moe_combine": (Adapter("DEEP_EP", _deep_ep_combine, _EVERYWHERE, _tokens),),
}
