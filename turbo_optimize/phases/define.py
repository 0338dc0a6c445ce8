"""DEFINE_TARGET: from what was asked to a whole manifest, every field with its source. Touches nothing."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from turbo_optimize.core.errors import ConfigError, RepoError, UsageError
from turbo_optimize.core.hardware import peak_tflops, resolve_gpu
from turbo_optimize.core.models import Frozen, Manifest, Op
from turbo_optimize.core.schema import Schema, schema_for
from turbo_optimize.core.scoring import METRICS, parse_target
from turbo_optimize.effects.probe import gpus
from turbo_optimize.effects.repo import Repo
from turbo_optimize.phases.shared.policies import choose_policy
from turbo_optimize.phases.shared.prerequisites import require
from turbo_optimize.phases.shared.shapes import parse_shapes, project_shapes
from turbo_optimize.projects.loader import (
    find_project,
    load_project,
    nearest,
    pick_backend,
    pick_one,
    pick_op,
    validated,
)
from turbo_optimize.proposers import PROPOSERS
from turbo_optimize.proposers.patches import read_folder

MAX_ROUNDS_LIMIT = 120
DEFAULT_ROUNDS = 30


class Request(Frozen):
    """The flags of `turbo-opt start`; None where nothing was said."""

    op: str
    backend: str = "TRITON"
    gpu: str = "auto"
    variant: str | None = None
    dtype: str | None = None
    shapes: str | None = None
    metric: str | None = None
    target: str | None = None
    max_rounds: int | None = None
    max_duration: str | None = None
    proposer: str | None = None
    patches: str | None = None
    policy: str | None = None
    branch: str = "auto"
    commit: bool = True
    project: Path | None = None
    name: str | None = None
    seed: int | None = None


class Plan(Frozen):
    """What DEFINE_TARGET found: the manifest and the project file's text, both frozen into the campaign's folder."""

    manifest: Manifest
    project_text: str
    warnings: tuple[str, ...] = ()


class _Filled:
    """Collects values with where each came from."""

    def __init__(self) -> None:
        self.values: dict[str, Any] = {}
        self.sources: dict[str, str] = {}

    def put(self, name: str, value: Any, source: str) -> Any:
        self.values[name], self.sources[name] = value, source
        return value

    def either(self, name: str, flag: Any, default: Any, source: str = "default") -> Any:
        return self.put(name, flag, "flag") if flag is not None else self.put(name, default, source)


def define_target(request: Request, repo: Repo, clock: Callable[[], float] = time.time) -> Plan:
    """Resolves everything or says in one line what can't be. Nothing is written."""
    path = find_project(repo.top, request.project)
    project = load_project(path)
    op = pick_op(project, request.op)
    f = _Filled()
    f.put("target_op", request.op, "flag")
    gpu = _gpu(f, request)
    key, backend = pick_backend(op, request.op, request.backend, gpu)
    f.put("target_backend", key, "flag")
    f.put("target_lang", backend.lang, "project")
    _here(gpu)
    f.either("target_variant", request.variant, pick_one("variant", request.variant, op.variants, request.op))
    f.either("dtype", request.dtype, pick_one("dtype", request.dtype, op.dtypes, request.op))
    for name in ("kernel_source", "editable", "rebuild_command"):
        f.put(name, _for_gpu(getattr(backend, name), gpu), "project")
    for name in ("schema_class", "execution_mode", "test_command", "benchmark_command"):
        f.put(name, getattr(op, name), "project")
    _measured(f, request, op, gpu, path)
    _budget(f, request, gpu, project.policy, path)
    base = f.put("base_commit", repo.resolve("HEAD"), "detected")
    _proposer(f, request, repo, base)
    f.put("project", project.name, "project")
    inside = path.resolve().is_relative_to(repo.top.resolve())
    f.put("project_file", str(path.resolve().relative_to(repo.top.resolve()) if inside else path.resolve()), "detected")
    now = clock()
    f.put("created", time.strftime("%Y-%m-%d %H:%M", time.localtime(now)), "detected")
    campaign = f.put("campaign", _campaign_id(f.values, request.name, repo, now), "flag" if request.name else "default")
    f.put("git_commit", request.commit, "flag" if not request.commit else "default")
    _branch(f, request, repo, campaign)
    f.put("quick_command", f"python campaigns/{campaign}/quick_test_bench.py --summary-csv FILE", "default")
    manifest = validated(Manifest, f.values | {"sources": f.sources}, "the target")
    require(repo, manifest, op, backend)
    return Plan(manifest=manifest, project_text=path.read_text(encoding="utf-8"), warnings=_warnings(repo, manifest))


def _gpu(f: _Filled, request: Request) -> str:
    if request.gpu != "auto":
        return f.put("target_gpu", resolve_gpu(request.gpu), "flag")
    found = gpus()
    return f.put("target_gpu", found[0].arch if found else "cpu", "detected")


def _here(gpu: str) -> None:
    """A target that can't be measured on this machine is refused before anything is written."""
    if gpu == "cpu":
        return
    archs = sorted({g.arch for g in gpus()})
    if gpu not in archs:
        raise UsageError(
            f"no {gpu} on this machine (found {', '.join(archs) or 'no GPU'})", "leave out --gpu, or use --gpu cpu"
        )


def _for_gpu(value: Any, gpu: str) -> Any:
    if isinstance(value, tuple):
        return tuple(v.replace("{gpu}", gpu) for v in value)
    return value


def _measured(f: _Filled, request: Request, op: Op, gpu: str, path: Path) -> None:
    """Shapes, metric, goal."""
    schema = schema_for(op.schema_class, op.execution_mode)
    where = f"{path}: ops.{request.op}"
    _metric(f, request, op, schema, where)
    try:
        peak_tflops(gpu, op.peak)
    except UsageError as e:
        raise ConfigError(f"{where}.peak: {e.message}", e.hint) from None
    if request.shapes in (None, "all"):
        key = "cpu_shapes" if gpu == "cpu" else "gpu_shapes"
        f.put("target_shapes", project_shapes(getattr(op, key), schema.dims, f"{where}.{key}"), "project")
        if not f.values["target_shapes"]:
            raise ConfigError(f"{where}.{key}: no target shapes", "add them there or pass --shapes")
    else:
        f.put("target_shapes", parse_shapes(str(request.shapes), schema.dims), "flag")


def _metric(f: _Filled, request: Request, op: Op, schema: Schema, where: str) -> None:
    """The primary metric, and the goal in its unit."""
    fit = tuple(n for n, m in METRICS.items() if schema.op_class in m.classes and schema.execution_mode in m.modes)
    if op.metric not in fit:
        raise ConfigError(f"{where}.metric: no metric {op.metric!r}{nearest(op.metric, fit)}")
    if request.metric is not None:
        pick_one("metric", request.metric, fit, request.op)
    metric = f.either("primary_metric", request.metric, op.metric, "project")
    if request.target is not None:
        goal, unit = parse_target(request.target), METRICS[metric].unit
        if goal.unit not in ("%", unit):
            raise UsageError(f"--target {request.target!r}, but {metric} is in {unit}", f"name a number of {unit}")
    f.either("performance_target", request.target, None)


def _budget(f: _Filled, request: Request, gpu: str, own_policy: dict[str, Any], path: Path) -> None:
    """Rounds, duration, policy, seed."""
    if request.max_rounds is not None and not 1 <= request.max_rounds < MAX_ROUNDS_LIMIT:
        raise UsageError(f"--max-rounds {request.max_rounds}", f"expected 1 to {MAX_ROUNDS_LIMIT - 1}")
    f.either("max_rounds", request.max_rounds, DEFAULT_ROUNDS)
    duration_s = None if request.max_duration is None else parse_duration(request.max_duration)
    f.either("max_duration", duration_s, None)
    policy = choose_policy(request.policy, gpu, own_policy, f"{path}: policy")
    f.put("policy", policy, "flag" if request.policy else "default")
    f.either("seed", request.seed, 1)


def _proposer(f: _Filled, request: Request, repo: Repo, base: str) -> None:
    given = request.patches
    name = f.either("proposer", request.proposer, "search" if given is None else "patches")
    if name not in PROPOSERS:
        raise UsageError(f"unknown proposer {name!r}", nearest(name, PROPOSERS).removeprefix("; "))
    if (name == "patches") != (given is not None):
        raise UsageError("--proposer patches and --patches SOURCE go together", "name a folder of patches or a branch")
    f.put("proposer_args", {} if given is None else {"patches": _patches(given, repo, base)}, "flag")


def _patches(given: str, repo: Repo, base: str) -> str:
    """A folder that holds patches (absolute), or a branch with commits of its own."""
    if given and Path(given).is_dir():
        read_folder(Path(given))
        return str(Path(given).resolve())
    head = repo.resolve(given) if given else None
    if head is None:
        raise UsageError(
            f"--patches {given!r}: neither a folder nor a branch", "name a folder of *.patch files or a branch"
        )
    if not repo.lineage(base, head):
        raise UsageError(f"--patches {given}: no commit after {base[:12]}", "name a branch that is ahead of HEAD")
    return given


def parse_duration(text: str) -> float:
    """`90s`, `30m`, `2h`, `1h30m`: seconds."""
    found = re.fullmatch(r"(?:(\d+)h)?(?:(\d+)m)?(?:(\d+)s)?", text.strip())
    total = sum(int(v or 0) * k for v, k in zip(found.groups(), (3600, 60, 1), strict=True)) if found else 0
    if total <= 0:
        raise UsageError(f"--max-duration {text!r}", "expected a duration like 90s, 30m, 2h or 1h30m")
    return float(total)


def _campaign_id(values: dict[str, Any], name: str | None, repo: Repo, now: float) -> str:
    """<op>[_<variant>]_<backend>_<gpu>_<YYYYMMDD>[-k], lower case; or the given name, if it is free."""
    if name is not None:
        # What git and a folder can both be called.
        if not re.fullmatch(r"[a-z0-9][a-z0-9._-]{0,80}", name) or re.search(r"\.\.|\.$|\.lock$", name):
            raise UsageError(f"--name {name!r}", "expected lower-case letters, digits, '.', '_' and '-'")
        if name in {"tips", "nightly"}:
            raise UsageError(f"--name {name!r} is the name of a folder with another use", "choose another")
        if taken(repo, name):
            raise UsageError(f"campaign {name} exists", "choose another --name, or `turbo-opt resume` it")
        return name
    variant = [] if values["target_variant"] == "default" else [values["target_variant"]]
    day = time.strftime("%Y%m%d", time.localtime(now))
    stem = "_".join([values["target_op"], *variant, values["target_backend"], values["target_gpu"], day]).lower()
    k = 1
    while taken(repo, found := stem if k == 1 else f"{stem}-{k}"):
        k += 1
    return found


def taken(repo: Repo, name: str) -> bool:
    """Whether a campaign of this name left a folder, a branch or refs."""
    branch = repo.resolve(f"refs/heads/optimize/{name}")
    return bool(
        (repo.top / "campaigns" / name / "journal.jsonl").exists() or branch or repo.refs(f"refs/turbo-opt/{name}/")
    )


def _branch(f: _Filled, request: Request, repo: Repo, campaign: str) -> None:
    if request.branch == "none" or not request.commit:
        f.put("git_branch", None, "flag")
        return
    name = f"optimize/{campaign}" if request.branch == "auto" else request.branch
    if request.branch != "auto" and not _is_branch_name(repo, name):
        raise UsageError(f"--branch {name!r} is not a branch name", "write it without refs/heads/, like mine/faster")
    if repo.resolve(f"refs/heads/{name}"):
        raise UsageError(f"branch {name} exists", "a campaign makes its own: choose another --branch")
    other = next((h for x in repo.refs("refs/heads/") if _collide(h := x.removeprefix("refs/heads/"), name)), None)
    if other:
        raise UsageError(
            f"branch {name} can't be made: branch {other} is in its way", "choose another --branch, or none"
        )
    f.put("git_branch", name, "default" if request.branch == "auto" else "flag")


def _is_branch_name(repo: Repo, name: str) -> bool:
    """Whether git takes it as it stands; `@{-1}` would be expanded, `refs/heads/x` would be taken twice."""
    try:
        return repo.git("check-ref-format", "--branch", name) == name != "@" and not name.startswith("refs/")
    except RepoError:
        return False


def _collide(one: str, other: str) -> bool:
    """Git keeps branches as files: there can't be both x and x/y."""
    return one.startswith(f"{other}/") or other.startswith(f"{one}/")


def _warnings(repo: Repo, m: Manifest) -> tuple[str, ...]:
    from turbo_optimize.core.scope import outside

    mine = [p for p in repo.status() if not outside([p], m.editable)]
    note = (
        f"uncommitted edits to {', '.join(mine[:3])} are not part of the campaign: it starts from {m.base_commit[:12]}"
    )
    name, email, own = repo.identity()
    warnings = [note] if mine else []
    if not own:
        warnings.append(f"git knows no user.name and user.email: commits will be by {name} <{email}>")
    return tuple(warnings)
