"""Which backend runs a kernel: the code's setter, the environment, autotune, the default, then whatever can.

`turbo_kernels.backends` holds the settings; docs/dispatch.md shows how an operator is wired.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from turbo_kernels.backends import AUTOTUNE, MANAGER, BackendError, environment_reader, variables
from turbo_kernels.log import LOG

__all__ = ["AutoKernelDispatcher", "Backend", "BackendError", "anything"]

COLLECTIVE = ("MOE_DISPATCH_COMBINE",)  # groups whose calls every rank must run on the same backend


def anything(*args: Any, **kwargs: Any) -> str | None:
    """`can_handle` of a backend without limits."""
    return None


@dataclass(frozen=True)
class Backend:
    """One way to run a kernel. `can_handle` takes `run`'s arguments and says why it can't run them, or None."""

    name: str
    run: Callable[..., Any]
    can_handle: Callable[..., str | None] = anything

    @staticmethod
    def lazy(name: str, module: str) -> Backend:
        """`run` and `can_handle` of a module that is imported when it is first asked: one that loads a library, say."""

        def run(*args: Any, **kwargs: Any) -> Any:
            return importlib.import_module(module).run(*args, **kwargs)

        def can_handle(*args: Any, **kwargs: Any) -> str | None:
            return importlib.import_module(module).can_handle(*args, **kwargs)

        return Backend(name, run, can_handle)


@dataclass(frozen=True)
class _Plan:
    """What the settings leave to decide for one precision. `first` runs what it can; None where that is to be measured."""

    first: Backend | None
    default: Backend | None
    forced: bool = False
    tune: bool = False
    source: str = ""


class AutoKernelDispatcher:
    """Callable with the arguments of its backends' `run`, the same for all of them.

    `run` must give the same answer when it is called again: autotune calls it many times on the real arguments. So it
    returns new tensors or overwrites the ones it is given, and never adds to them.

    Args:
        op: the operator family, or the family, an underscore and the kernel's part in it (`gemm_wgrad`).
        group: the environment group (`GEMM` obeys TURBO_GEMM_BACKEND), or "".
        precision: fp4, fp8, bf16, fp16 or fp32, or a function of the arguments that says which.
        backends: in the order of the fallback.
        default: a backend's name, or names by architecture.
        tunable: False for collective calls: ranks that measure for themselves may come to different backends and hang.
    """

    def __init__(
        self, op: str, group: str, precision: str | Callable[..., str], backends: tuple[Backend, ...],
        default: str | Mapping[str, str] = "TRITON", *, tunable: bool = True,
    ) -> None:  # fmt: skip
        self.op, self.group, self.precision, self.default = op, group, precision, default
        self.tunable = tunable and group not in COLLECTIVE
        self.backends: dict[str, Backend] = {}
        for backend in backends:
            self._put(backend)
        for name in {default} if isinstance(default, str) else {*default.values()}:
            if name not in self.backends:
                raise ValueError(f"{op}: its default {name} is none of its backends {', '.join(self.backends)}")
        self._precision = precision if isinstance(precision, str) else ""
        self._environment = environment_reader(variables(group))
        self._plans: tuple[Any, dict[str, _Plan]] = (None, {})
        self._told: set[tuple[str, ...]] = set()
        MANAGER.dispatchers.add(self)

    def add(self, backend: Backend) -> None:
        """One more backend, the last of the fallback. ValueError if the name is taken."""
        self._put(backend)
        MANAGER.version += 1

    def _put(self, backend: Backend) -> None:
        if backend.name in self.backends or backend.name == AUTOTUNE:
            raise ValueError(f"{self.op}: the backend name {backend.name} is taken")
        self.backends[backend.name] = backend

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.select(*args, **kwargs).run(*args, **kwargs)

    def select(self, *args: Any, **kwargs: Any) -> Backend:
        """The backend for these arguments. BackendError where the one asked for, or every one, can't run them."""
        settings = (MANAGER.version, self._environment())
        seen, plans = self._plans
        if seen != settings:
            plans = {}
            self._plans = settings, plans
        precision = self._precision or self.precision(*args, **kwargs)  # type: ignore[operator]
        plan = plans.get(precision)
        if plan is None:
            plan = plans[precision] = self._plan(precision)
        first = plan.first
        if first is not None and first.can_handle(*args, **kwargs) is None:
            return first
        return self._otherwise(precision, plan, args, kwargs)

    def _otherwise(self, precision: str, plan: _Plan, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Backend:
        if plan.forced:
            raise self._refused(plan, args, kwargs)
        if plan.tune:
            fastest = self._tuned(precision, plan, args, kwargs)
            if fastest is not None:
                return fastest
            if plan.default is not None and plan.default.can_handle(*args, **kwargs) is None:
                return plan.default
        return self._fallback(precision, plan, args, kwargs)

    def reasons(self, *args: Any, **kwargs: Any) -> dict[str, str | None]:
        """For each backend why it can't run these arguments, or None where it can."""
        return {name: backend.can_handle(*args, **kwargs) for name, backend in self.backends.items()}

    def _plan(self, precision: str) -> _Plan:
        default = self.backends.get(self._default_name())
        choice = MANAGER.choice(self, precision)
        if choice.name is None:
            return _Plan(default, default)
        if choice.name == AUTOTUNE:
            return _Plan(None, default, tune=True, source=choice.source)
        if choice.name not in self.backends:
            raise BackendError(
                f"{self.op} has no backend {choice.name} (asked for by {choice.source}); "
                f"there are {', '.join(self.backends)}"
            )
        return _Plan(self.backends[choice.name], default, forced=True, source=choice.source)

    def _default_name(self) -> str:
        if isinstance(self.default, str):
            return self.default
        from turbo_kernels.arch import detect

        return self.default.get(detect(), "")

    def _tuned(self, precision: str, plan: _Plan, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Backend | None:
        if not self.tunable:
            self._once(("untunable", plan.source), "%s isn't autotuned (%s): its ranks must agree on a backend",
                       self.op, plan.source)  # fmt: skip
            return None
        from turbo_kernels import autotune

        return autotune.choose(self, precision, args, kwargs)

    def _fallback(self, precision: str, plan: _Plan, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Backend:
        reasons = self.reasons(*args, **kwargs)
        name = next((name for name, why in reasons.items() if why is None), None)
        if name is None:
            each = "; ".join(f"{name}: {why}" for name, why in reasons.items())
            raise BackendError(f"{self.op}: no backend can run this input ({each})")
        default = plan.default.name if plan.default is not None else "no default for this architecture"
        why = f" can't run this input ({reasons[default]})" if plan.default is not None else ""
        self._once((precision, default, name), "%s: %s%s; %s runs it instead", self.op, default, why, name)
        return self.backends[name]

    def _refused(self, plan: _Plan, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> BackendError:
        reasons = self.reasons(*args, **kwargs)
        name = plan.first.name if plan.first is not None else ""
        could = [other for other, why in reasons.items() if why is None]
        rest = f"{', '.join(could)} could" if could else "no other backend could"
        return BackendError(
            f"{self.op}: {name} (asked for by {plan.source}) can't run this input: {reasons[name]}; {rest}"
        )

    def _once(self, key: tuple[str, ...], message: str, *values: str) -> None:
        if key not in self._told:
            self._told.add(key)
            LOG.warning(message, *values)
