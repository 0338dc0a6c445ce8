"""DEFINE_TARGET: from what was asked to a whole manifest, every field with its source. Touches nothing."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from turbo_optimize.core.errors import ConfigError, UsageError
from turbo_optimize.core.hardware import resolve_gpu
from turbo_optimize.core.models import POLICIES, Frozen, Manifest, Op, Policy, Project, Shape
from turbo_optimize.core.schema import schema_for
from turbo_optimize.core.scoring import metric_for, parse_target
from turbo_optimize.effects.probe import gpus
from turbo_optimize.effects.repo import Repo
from turbo_optimize.projects.loader import (
    find_project,
    first_problem,
    load_project,
    nearest,
    pick_backend,
    pick_one,
    pick_op,
    read_yaml,
)
from turbo_optimize.proposers import PROPOSERS

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
    _measured(f, request, op, gpu)
    _budget(f, request, project, gpu)
    base = repo.resolve("HEAD")
    f.put("base_commit", base, "detected")
    f.put("project", project.name, "project")
    inside = path.resolve().is_relative_to(repo.top.resolve())
    f.put("project_file", str(path.resolve().relative_to(repo.top.resolve()) if inside else path.resolve()), "detected")
    now = clock()
    f.put("created", time.strftime("%Y-%m-%d %H:%M", time.localtime(now)), "detected")
    campaign = f.put("campaign", _campaign_id(f.values, request.name, repo, now), "flag" if request.name else "default")
    f.put("git_commit", request.commit, "flag" if not request.commit else "default")
    _branch(f, request, repo, campaign)
    f.put("quick_command", f"python campaigns/{campaign}/quick_test_bench.py --summary-csv FILE", "default")
    manifest = _build(Manifest, f.values | {"sources": f.sources}, "the target")
    return Plan(manifest=manifest, project_text=path.read_text(encoding="utf-8"), warnings=_warnings(repo, manifest))


def _build(model: type[Any], values: dict[str, Any], where: str) -> Any:
    try:
        return model.model_validate(values)
    except ValidationError as e:
        key, expected = first_problem(e, model)
        raise UsageError(f"{where}: {key}: {expected}") from None


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


def _measured(f: _Filled, request: Request, op: Op, gpu: str) -> None:
    """Shapes, metric, goal."""
    schema = schema_for(op.schema_class, op.execution_mode)
    metric = f.either("primary_metric", request.metric, op.metric, "project")
    metric_for(schema, metric)
    if request.target is not None:
        parse_target(request.target)
    f.either("performance_target", request.target, None)
    if request.shapes in (None, "all"):
        own = op.cpu_shapes if gpu == "cpu" else op.gpu_shapes
        shapes = tuple(_shape(values, schema.dims, "the project file") for values in own)
        f.put("target_shapes", shapes, "project")
    else:
        f.put("target_shapes", parse_shapes(str(request.shapes), schema.dims), "flag")
    labels = [s.label for s in f.values["target_shapes"]]
    if not labels:
        raise ConfigError(f"no target shapes for {gpu}", "add them to the project file or pass --shapes")
    if len(set(labels)) < len(labels):
        raise UsageError(f"--shapes names {next(x for x in labels if labels.count(x) > 1)} twice")


def _shape(values: Sequence[int], dims: Sequence[str], where: str) -> Shape:
    if len(values) == len(dims) - 1 and dims[0] == "B":
        values = (1, *values)  # a plain GEMM or attention without a batch
    if len(values) != len(dims):
        raise UsageError(
            f"{where}: shape {'x'.join(map(str, values))} has {len(values)} dimensions", f"expected {', '.join(dims)}"
        )
    named = dict(zip(dims, values, strict=True))
    label = "x".join(str(v) for k, v in named.items() if k != "B" or v != 1)
    try:
        return Shape(label=label, dims=named)
    except ValidationError as e:
        raise UsageError(f"{where}: {e.errors()[0]['msg'].removeprefix('Value error, ')}") from None


def parse_shapes(text: str, dims: Sequence[str]) -> tuple[Shape, ...]:
    """`4096x4096x4096,…`, or a YAML file: a list of such strings, of integer lists, or of {M: …} mappings."""
    path = Path(text)
    if path.suffix in {".yaml", ".yml", ".json"} or path.is_file():
        data = read_yaml(path, "a mapping with the key `shapes`")
        if set(data) != {"shapes"} or not isinstance(data["shapes"], list) or not data["shapes"]:
            raise ConfigError(
                f"{path}: {', '.join(map(str, data)) or 'empty'}", "expected the one key `shapes`, a list"
            )
        return tuple(_shape_entry(entry, dims, f"{path}: shapes[{i}]") for i, entry in enumerate(data["shapes"]))
    return tuple(_shape_entry(part.strip(), dims, "--shapes") for part in text.split(","))


def _shape_entry(entry: object, dims: Sequence[str], where: str) -> Shape:
    if isinstance(entry, str):
        if not re.fullmatch(r"-?\d+(x-?\d+)*", entry):
            raise UsageError(f"{where}: {entry!r} is not a shape", f"write {'x'.join(dims)}, like 4096x4096x4096")
        return _shape([int(v) for v in entry.split("x")], dims, where)
    if isinstance(entry, dict):
        unknown = set(entry) - set(dims)
        if unknown:
            name = str(sorted(unknown, key=str)[0])
            raise UsageError(f"{where}: {name}: no such dimension{nearest(name, dims)}")
        missing = [d for d in dims if d not in entry and d != "B"]
        if missing:
            raise UsageError(f"{where}: {missing[0]} is missing", f"expected {', '.join(dims)}")
        entry = [entry.get(d, 1) for d in dims]
    if isinstance(entry, list) and all(isinstance(v, int) and not isinstance(v, bool) for v in entry):
        return _shape(entry, dims, where)
    raise UsageError(f"{where}: {entry!r} is not a shape", f"expected integers for {', '.join(dims)}")


def _budget(f: _Filled, request: Request, project: Project, gpu: str) -> None:
    """Rounds, duration, proposer, policy, seed."""
    if request.max_rounds is not None and not 1 <= request.max_rounds < MAX_ROUNDS_LIMIT:
        raise UsageError(f"--max-rounds {request.max_rounds}", f"expected 1 to {MAX_ROUNDS_LIMIT - 1}")
    f.either("max_rounds", request.max_rounds, DEFAULT_ROUNDS)
    f.either("max_duration", parse_duration(request.max_duration) if request.max_duration else None, None)
    name = f.either("proposer", request.proposer, "patches" if request.patches else "search")
    if name not in PROPOSERS:
        raise UsageError(f"unknown proposer {name!r}", nearest(name, PROPOSERS).removeprefix("; "))
    if (name == "patches") != bool(request.patches):
        raise UsageError("--proposer patches and --patches SOURCE go together", "name a folder of patches or a branch")
    source = request.patches or ""
    f.put(
        "proposer_args",
        {"patches": str(Path(source).resolve()) if Path(source).is_dir() else source} if source else {},
        "flag",
    )
    f.put("policy", _policy(request.policy, project, gpu), "flag" if request.policy else "default")
    f.either("seed", request.seed, 1)


def _policy(given: str | None, project: Project, gpu: str) -> Policy:
    """A shipped policy by name or a YAML file of overrides; the project's own overrides lie below a flag's."""
    base = POLICIES["cpu" if gpu == "cpu" else "standard"]
    if given is None:
        return _build(Policy, base.model_dump() | project.policy, "the project file's policy")
    if given in POLICIES:
        return _build(Policy, POLICIES[given].model_dump() | project.policy, "the project file's policy")
    if not Path(given).is_file():
        raise UsageError(f"unknown policy {given!r}", nearest(given, POLICIES).removeprefix("; ") + ", or a YAML file")
    return load_policy(Path(given), _build(Policy, base.model_dump() | project.policy, "the project file's policy"))


def load_policy(path: Path, base: Policy) -> Policy:
    """Overrides from a file on a policy; `base: NAME` starts from a shipped one."""
    data = dict(read_yaml(path, "a mapping of policy fields"))
    if "base" in data:
        name = str(data.pop("base"))
        if name not in POLICIES:
            raise ConfigError(f"{path}: base: no policy {name!r}{nearest(name, POLICIES)}")
        base = POLICIES[name]
    try:
        return Policy.model_validate(base.model_dump() | {"name": path.stem} | data)
    except ValidationError as e:
        key, expected = first_problem(e, Policy)
        raise ConfigError(f"{path}: {key}: {expected}") from None


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
        if (
            not re.fullmatch(r"[a-z0-9][a-z0-9._-]{0,80}", name)
            or name in {"tips", "nightly"}
            or name.endswith(".lock")
        ):
            raise UsageError(f"--name {name!r}", "expected lower-case letters, digits, '.', '_' and '-'")
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
    try:
        repo.git("check-ref-format", "--branch", name)
    except Exception as e:
        raise UsageError(f"--branch {name!r} is not a branch name") from e
    if repo.resolve(f"refs/heads/{name}"):
        raise UsageError(f"branch {name} exists", "a campaign makes its own: choose another --branch")
    f.put("git_branch", name, "default" if request.branch == "auto" else "flag")


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
