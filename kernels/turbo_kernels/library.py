"""Operators registered with torch: one forward, fake and backward serve eager calls, `torch.compile` and `opcheck`.

An eager call on plain tensors goes through an autograd.Function, which costs the host a third of what the dispatcher
asks for a registered operator; everything else (compiling, tracing, tensor subclasses) through `torch.ops.turbo.<name>`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.autograd.function import once_differentiable

_PLAIN = (torch.Tensor, torch.nn.Parameter)


def runs_eagerly(*args: Any) -> bool:
    """Plain tensors, and nobody compiles or traces."""
    for a in args:  # a loop: a generator costs a microsecond more
        if type(a) not in _PLAIN and isinstance(a, torch.Tensor):
            return False
    return not torch.compiler.is_compiling()


def operator(
    name: str, forward: Callable[..., Any], fake: Callable[..., Any],
    setup_context: Callable[..., None] | None = None, backward: Callable[..., Any] | None = None,
) -> Callable[..., Any]:  # fmt: skip
    """Registers `turbo::<name>` and returns the function to call, which takes its arguments by position.

    Args:
        forward: fully annotated (its annotations are the schema); returns new tensors, never an input or a view of one;
            fp8 and fp4 codes as uint8 (torch knows no arithmetic on them, and integers want no gradient).
        fake: what `forward` returns, as empty tensors of its shapes, dtypes and strides.
        setup_context: (ctx, inputs, output) -> None, saves what `backward` needs. Floating outputs that only backward
            reads are marked there with `ctx.mark_non_differentiable`.
        backward: (ctx, *grads) -> a gradient or None for every argument; calls other registered operators.
    """
    torch.library.custom_op(f"turbo::{name}", forward, mutates_args=()).register_fake(fake)
    registered = getattr(torch.ops.turbo, name).default
    eager = forward
    if backward is not None:
        torch.library.register_autograd(f"turbo::{name}", backward, setup_context=setup_context)
        eager = _function(name, forward, setup_context or (lambda ctx, inputs, output: None), backward).apply

    def call(*args: Any) -> Any:
        return eager(*args) if runs_eagerly(*args) else registered(*args)

    call.__name__, call.__doc__ = name, forward.__doc__
    return call


def _function(
    name: str, forward: Callable[..., Any], setup_context: Callable[..., None], backward: Callable[..., Any]
) -> Any:
    """Forward and setup in one: with a `setup_context` of its own, `apply` inspects a signature on every call."""

    def both(ctx: Any, *args: Any) -> Any:
        out = forward(*args)
        setup_context(ctx, args, out)
        return out

    members = {"forward": staticmethod(both), "backward": staticmethod(once_differentiable(backward))}
    return type(f"Turbo_{name}", (torch.autograd.Function,), members)
