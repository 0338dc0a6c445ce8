"""Which backend runs an operator: the setters, and the environment variables that say the same from outside.

    from turbo_kernels import backends

    backends.set_backend("TRITON", op="gemm")                   # one operator family, or one of its kernels
    backends.set_backend("HIPBLASLT", group="GEMM", precision="fp8")
    backends.autotune(True)                                     # time what can run, on the arguments of the first call
    with backends.using("TORCH"): ...                           # inside, everything
    backends.reset()                                            # back to the environment and the defaults

Highest first: a setter here, an environment variable, autotune, the operator's default, and whatever else can run the
input (a warning names it). A backend that was asked for and can't run the input is a BackendError, never a silent change.

`TURBO_GEMM_BACKEND`, `TURBO_GROUPED_GEMM_BACKEND`, `TURBO_ATTENTION_BACKEND` and `TURBO_MOE_DISPATCH_COMBINE_BACKEND`
hold a backend or `autotune`, for every precision (`CK`) or for each (`fp8:CK,other:TRITON`); `TURBO_AUTO_TUNE` holds 1 or 0
in the same way. `PRIMUS_TURBO_…` is read where `TURBO_…` isn't set. Changes count from the next call on.

Settings are the process's: autograd runs the backward pass in threads of its own.
"""

from __future__ import annotations

import importlib
import os
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from turbo_kernels.registry import FAMILIES

if TYPE_CHECKING:
    from turbo_kernels.dispatch import AutoKernelDispatcher

__all__ = ["AUTOTUNE", "BACKENDS", "GROUPS", "MANAGER", "PRECISIONS", "BackendError", "GlobalBackendManager",
           "SettingError", "autotune", "reset", "set_backend", "using"]  # fmt: skip

BACKENDS = ("TRITON", "HIP", "HIPBLASLT", "TORCH", "CK", "AITER", "DEEP_EP", "FLYDSL")
AUTOTUNE = "AUTOTUNE"  # takes a backend's place in every setting
GROUPS = ("GEMM", "GROUPED_GEMM", "ATTENTION", "MOE_DISPATCH_COMBINE")
PRECISIONS = ("fp4", "fp8", "bf16", "fp16", "fp32")
OTHER = "other"  # every precision that isn't named
SWITCH = {"1": True, "TRUE": True, "YES": True, "ON": True, "0": False, "FALSE": False, "NO": False, "OFF": False}


class BackendError(RuntimeError):
    """No backend, or not the one asked for, can run this input; names operator, backend, reason and what could."""


class SettingError(ValueError):
    """A setting that means nothing; names the variable or argument and what is legal."""


@dataclass(frozen=True)
class Choice:
    """What the settings say of one dispatcher in one precision: a backend's name, AUTOTUNE or None, and who says so."""

    name: str | None = None
    source: str = ""


def variables(group: str) -> tuple[str, ...]:
    """The variables that a dispatcher of this group obeys: its backend and its alias, autotune and its alias."""
    names = (f"TURBO_{group}_BACKEND" if group else "", "TURBO_AUTO_TUNE")
    return tuple(prefix + name for name in names if name for prefix in ("", "PRIMUS_"))


def environment_reader(names: Iterable[str]) -> Callable[[], tuple[Any, ...]]:
    """A function that tells whether these variables changed: equal results, equal values.

    It runs at every launch. `os.environ.get` takes close to a microsecond for a variable that isn't set (it encodes the
    name and catches a KeyError); the dict that CPython keeps beneath it, a few hundredths.
    """
    names, environ = tuple(names), os.environ
    table = getattr(environ, "_data", None)
    if not isinstance(table, dict):
        return lambda: tuple(environ.get(name) for name in names)
    keys = tuple(map(environ.encodekey, names))
    get = table.get
    return lambda: tuple(map(get, keys))


def parse(variable: str, text: str, legal: Iterable[str]) -> dict[str, str]:
    """`VALUE` or `precision:VALUE,…` as {precision: VALUE}, a lone VALUE under OTHER. SettingError names what is legal."""
    choices: dict[str, str] = {}
    legal, precisions = tuple(legal), (*PRECISIONS, OTHER)
    for part in text.split(",") if text.strip() else ():
        precision, colon, value = part.rpartition(":")
        precision, value = precision.strip().lower() if colon else OTHER, value.strip().upper()
        if precision not in precisions or value not in legal or precision in choices:
            what = "twice the same precision" if precision in choices else f"{part.strip()!r}"
            raise SettingError(
                f"{variable}={text!r}: {what} isn't legal; a value is one of {', '.join(legal)}, alone or per precision "
                f"(precision:VALUE,…) with {', '.join(precisions)}"
            )
        choices[precision] = value
    return choices


def names_of(op: str) -> tuple[str, str, str]:
    """By what names a setter may mean a dispatcher, narrow to wide: its own, the operator's that begins it, the family's."""
    families = {name: f.name for f in FAMILIES for name in (f.name, *f.functions())}
    operator = max((name for name in families if f"{op}_".startswith(f"{name}_")), key=len, default="")
    return op, operator, families.get(operator, "")


@dataclass
class GlobalBackendManager:
    """The settings made in code, and what they and the environment come to. There is one, MANAGER."""

    version: int = 0  # counts changes: dispatchers keep what they resolved until it moves
    tuned: dict[Any, str] = field(default_factory=dict)  # autotune's results of this process
    dispatchers: weakref.WeakSet[AutoKernelDispatcher] = field(default_factory=weakref.WeakSet)
    _backends: dict[tuple[str, str], dict[str, str]] = field(default_factory=dict)  # ("op" | "group" | "", its name)
    _autotune: dict[str, bool] = field(default_factory=dict)

    def set_backend(
        self, backend: str | None, *, op: str | None = None, group: str | None = None, precision: str | None = None
    ) -> None:
        """From the next call on, `backend` (or "autotune") runs what op, group and precision select; None takes it back.

        Args:
            backend: one of BACKENDS, or a name that an operator's dispatcher has; upper or lower case.
            op: a family (`normalization`), an operator (`rmsnorm`) or one dispatcher's name (`rmsnorm_backward`): the
                narrower beats the wider, any of them a group, and that a setting without either.
            group: one of GROUPS.
            precision: one of PRECISIONS, all by default; beats a setting without one.

        SettingError where one of them doesn't exist. That the backend can run an input shows when it is called.
        """
        place, key = self._place(op, group), self._precision(precision)
        settings = self._backends.setdefault(place, {})
        if backend is None:
            settings.pop(key, None)
        else:
            settings[key] = self._backend(backend)
        self.version += 1

    def autotune(self, enabled: bool | None = True, *, precision: str | None = None) -> None:
        """Turns autotune on or off where neither a setter nor a variable names a backend; None: TURBO_AUTO_TUNE again."""
        key = self._precision(precision)
        if enabled is None:
            self._autotune.pop(key, None)
        else:
            self._autotune[key] = bool(enabled)
        self.version += 1

    def reset(self) -> None:
        """Forgets every setting made in code and what autotune measured in this process (not its files)."""
        self._backends.clear()
        self._autotune.clear()
        self.tuned.clear()
        self.version += 1

    @contextmanager
    def using(
        self, backend: str | None, *, op: str | None = None, group: str | None = None, precision: str | None = None
    ) -> Iterator[None]:
        """`set_backend` for the length of a with block; what was set before is set again behind it."""
        place, key = self._place(op, group), self._precision(precision)
        before = self._backends.get(place, {}).get(key)
        self.set_backend(backend, op=op, group=group, precision=precision)
        try:
            yield
        finally:
            self.set_backend(before, op=op, group=group, precision=precision)

    def choice(self, dispatcher: AutoKernelDispatcher, precision: str) -> Choice:
        """What setters and environment say; a dispatcher asks once a precision and keeps the answer until they change."""
        return (
            self._in_code(dispatcher, precision)
            or self._in_environment(dispatcher, precision)
            or self._autotuned(precision)
            or Choice()
        )

    def _in_code(self, dispatcher: AutoKernelDispatcher, precision: str) -> Choice | None:
        names = names_of(dispatcher.op)
        for place in (*(("op", name) for name in names if name), ("group", dispatcher.group), ("", "")):
            name = _of_precision(self._backends.get(place, {}), precision)
            if name:
                return Choice(name, f"set_backend({place[0]}{'=' if place[0] else ''}{place[1]})")
        return None

    def _in_environment(self, dispatcher: AutoKernelDispatcher, precision: str) -> Choice | None:
        variable, text = _first_set(variables(dispatcher.group)[:2]) if dispatcher.group else ("", "")
        legal = dict.fromkeys((*BACKENDS, *dispatcher.backends, AUTOTUNE))
        name = _of_precision(parse(variable, text, legal), precision)
        return Choice(name, variable) if name else None

    def _autotuned(self, precision: str) -> Choice | None:
        wanted, source = _of_precision(self._autotune, precision), "autotune()"
        if wanted is None:
            source, text = _first_set(variables(""))
            switch = _of_precision(parse(source, text, SWITCH), precision)
            wanted = switch is not None and SWITCH[switch]
        return Choice(AUTOTUNE, source) if wanted else None

    def _place(self, op: str | None, group: str | None) -> tuple[str, str]:
        if op is not None and group is not None:
            raise SettingError(f"op={op!r} and group={group!r}: give one of them")
        if op is not None:
            _one_of("op", op, self._ops())
            return "op", op
        if group is not None:
            _one_of("group", group.upper(), GROUPS)
            return "group", group.upper()
        return "", ""

    @staticmethod
    def _precision(precision: str | None) -> str:
        if precision is None:
            return OTHER
        _one_of("precision", precision.lower(), PRECISIONS)
        return precision.lower()

    def _ops(self) -> Iterator[str]:
        """Every name that `op` may have, those that need no import first."""
        families = {f.name for f in FAMILIES}
        yield from (f.name for f in FAMILIES)
        load_dispatchers()
        yield from sorted({name for d in self.dispatchers for name in names_of(d.op) if name} - families)

    def _backend(self, name: str) -> str:
        def names() -> Iterator[str]:
            yield from (*BACKENDS, AUTOTUNE)
            load_dispatchers()
            yield from sorted({b for d in self.dispatchers for b in d.backends} - {*BACKENDS})

        _one_of("backend", name.upper(), names())
        return name.upper()


def load_dispatchers() -> None:
    """Imports every family's `backends`, so that all dispatchers are known."""
    for spec in FAMILIES:
        module = f"turbo_kernels.{spec.name}.backends"
        try:
            importlib.import_module(module)
        except ModuleNotFoundError as e:
            if e.name != module:  # a family without dispatchers is none to report; a broken import is
                raise


def _one_of(what: str, given: str, legal: Iterable[str]) -> None:
    seen = []
    for name in legal:
        if name == given:
            return
        seen.append(name)
    raise SettingError(f"no {what} {given!r}; there are {', '.join(seen)}")


def _of_precision(choices: Mapping[str, Any], precision: str) -> Any:
    return choices.get(precision, choices.get(OTHER))


def _first_set(names: Iterable[str]) -> tuple[str, str]:
    """The first of these variables that holds something, and what."""
    return next(((n, os.environ[n]) for n in names if os.environ.get(n, "").strip()), ("", ""))


MANAGER = GlobalBackendManager()
set_backend, autotune, reset, using = MANAGER.set_backend, MANAGER.autotune, MANAGER.reset, MANAGER.using
