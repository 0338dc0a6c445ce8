"""What a campaign needs before it may write anything: files in the commit, commands that can be filled, a search space
that is there. DEFINE_TARGET refuses by it; PREPARE_ENVIRONMENT journals it."""

from __future__ import annotations

import string
from collections.abc import Iterator

from turbo_optimize.core import space as spaces
from turbo_optimize.core.errors import ConfigError
from turbo_optimize.core.models import Backend, GateResult, Manifest, Op
from turbo_optimize.data import data_path
from turbo_optimize.effects.repo import Repo

PLACEHOLDERS = ("python", "tree", "out", "shapes", "device", "variant", "dtype", "op")  # what a command may use


def require(repo: Repo, m: Manifest, op: Op, backend: Backend) -> tuple[GateResult, ...]:
    """The prerequisites as passed gates; ConfigError with the first that isn't met."""
    gates = []
    for code, detail, ok in _all(repo, m, op, backend):
        if not ok:
            raise ConfigError(f"{m.project_file}: {detail}", "mend the project file or commit the file")
        gates.append(GateResult(code=code, ok=True))
    return tuple(gates)


def _all(repo: Repo, m: Manifest, op: Op, backend: Backend) -> Iterator[tuple[str, str, bool]]:
    """(gate's code, what is wrong if it isn't met, met)."""
    for name in ("test_command", "benchmark_command", "rebuild_command"):
        command = getattr(m, name)
        if command is not None:
            yield "G03", f"{name} is empty", bool(command.strip())
            wrong = _wrong_placeholder(command, PLACEHOLDERS)
            yield "G03", f"{name}: `{command}`: {wrong}", wrong is None
    if backend.space:
        wrong = _wrong_placeholder(backend.space.file, ("gpu",))
        yield "G01", f"space.file: `{backend.space.file}`: {wrong}", wrong is None
    files = set(repo.files(m.base_commit))
    for what, paths in _needed(m, op, backend).items():
        for path in paths:
            if "*" not in path:
                yield "G01", f"{what} {path} is not in commit {m.base_commit[:12]}", path in files
    name = op.quick_template
    there = (data_path("templates") / name).is_file() or name in files
    yield "G01", f"quick_template {name} is neither shipped nor in commit {m.base_commit[:12]}", there
    if m.proposer == "search":
        wrong = _wrong_space(repo, m, backend)
        yield "G01", f"ops.{m.target_op}.backends.{m.target_backend}.space: {wrong}", wrong is None


def _needed(m: Manifest, op: Op, backend: Backend) -> dict[str, tuple[str, ...]]:
    config = (backend.space.file.format(gpu=m.target_gpu),) if backend.space else ()
    return {
        "kernel source": m.kernel_source, "adapter": (op.adapter,), "harness": op.frozen, "launch configuration": config
    }  # fmt: skip


def _wrong_placeholder(text: str, known: tuple[str, ...]) -> str | None:
    try:
        names = [name for _, name, _, _ in string.Formatter().parse(text) if name is not None]
    except ValueError as e:
        return f"{e} (a brace of its own is written twice)"
    unknown = next((n for n in names if n not in known), None)
    return None if unknown is None else f"no {{{unknown}}}, known are {', '.join('{' + k + '}' for k in known)}"


def _wrong_space(repo: Repo, m: Manifest, backend: Backend) -> str | None:
    """Why `search` can't walk this backend's space; None where it can. Its file is in the commit."""
    space = backend.space
    if space is None:
        return "missing, and `search` walks it (else --proposer patches or manual)"
    text = repo.show(m.base_commit, space.file.format(gpu=m.target_gpu)) or ""
    try:
        for config in spaces.current(space, text).values():
            spaces.fits(space, config, m.target_gpu)
    except ConfigError as e:
        return str(e)
    return None
