"""Walks a kernel's declared launch space: one direction of one section a round, static limits first.

A round takes the direction's joint values, drops what can't fit the architecture, ranks the rest by a static merit and
by nearness, times a handful in one process (unpaired: hints), and proposes the best of them. The referee then decides.
"""

from __future__ import annotations

import json
import random
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from turbo_optimize.core import space as spaces
from turbo_optimize.core.errors import ConfigError
from turbo_optimize.core.models import Direction, Proposal, Space
from turbo_optimize.proposers.context import Context, Ranked

Config = Mapping[str, Any]


def _space(ctx: Context) -> tuple[Space, str, str]:
    """The declared space, its file for this GPU, and that file's text in the incumbent."""
    space = ctx.backend.space
    if space is None:
        raise ConfigError(
            f"{ctx.manifest.project_file}: ops.{ctx.manifest.target_op}.backends.{ctx.manifest.target_backend}.space: missing",
            "declare the launch space (docs/projects.md), or use --proposer patches or manual",
        )
    path = space.file.format(gpu=ctx.manifest.target_gpu)
    text = ctx.read(path)
    if text is None:
        raise ConfigError(f"{path}: not in the incumbent's tree", "commit the launch configuration of this GPU")
    return space, path, text


# Launch parameters that the interpreter ignores: moving them there would credit them with noise.
COMPILED_ONLY = frozenset({"num_warps", "num_stages", "waves_per_eu", "matrix_instr_nonkdim", "kpack"})


def _offered(ctx: Context, space: Space) -> list[Direction]:
    """The space's directions as they mean something on this GPU, the most promising first."""
    offered = sorted(space.directions, key=lambda d: -d.expected_gain_pct)
    if ctx.manifest.target_gpu != "cpu":
        return offered
    felt = [d.model_copy(update={"params": tuple(p for p in d.params if p not in COMPILED_ONLY)}) for d in offered]
    return [d for d in felt if d.params]


def _rank(ctx: Context) -> list[tuple[str, Direction]]:
    """Sections × directions by expected gain; after two rollbacks in a row the last categories go to the end."""
    space, _, text = _space(ctx)
    config = json.loads(text)
    tried = ctx.tried_since_gain()
    ranked = [
        (section, d)
        for d in _offered(ctx, space)
        for section in (d.sections or space.sections)
        if spaces.identity(section, d) not in tried and set(d.params) <= set(config.get(section, {}))
    ]
    ever = ctx.tried()
    last = [r.proposal.category for r in ctx.state.closed[-2:] if r.proposal]
    stale = set(last) if ctx.state.rollbacks_in_a_row >= 2 else set()
    # Never tried before tried again; other categories before those that just failed twice. Sorting is stable.
    return sorted(ranked, key=lambda x: (spaces.identity(*x) in ever, x[1].category in stale))


def directions(ctx: Context) -> tuple[Ranked, ...]:
    return tuple(
        Ranked(
            name=spaces.identity(section, d), bottleneck=ctx.bottleneck, change=f"{section}: {', '.join(d.params)}",
            expected_gain_pct=d.expected_gain_pct, risk=d.risk, signal=d.signal, bucket=d.bucket, category=d.category,
        )
        for section, d in _rank(ctx)
        if d.bucket in {"K1", "K2", "K3", "K4", "W1"}
    )  # fmt: skip


def merit(space: Space, config: Config) -> float:
    """Static promise of a GEMM launch; configurations without a tile all count the same.

    Reuse of a BM×BN tile is BM·BN/(BM+BN) FLOP per loaded element. It counts less where the accumulators take more
    than 60% of a thread's registers (of 65,536 a block, at most 255 a thread), where a K step is under 128 bytes a
    row (one full line), where fewer than three buffers leave loads uncovered, and where the warps outnumber the
    tile's groups of 16 rows (they then split columns and read the same operand twice).
    """
    bm, bn = config.get("BLOCK_M"), config.get("BLOCK_N")
    if not bm or not bn:
        return 0.0
    threads = 32 * config.get("num_warps", 4)
    room = 0.6 * min(255.0, 65536 / threads)
    accumulators = space.accumulators * bm * bn / threads
    depth = min(1.0, config.get("BLOCK_K", 64) * space.operand_bytes / 128)
    cover = 1.0 if config.get("num_stages", 3) >= 3 else 0.7
    rows = min(1.0, bm / 16 / config.get("num_warps", 4)) ** 0.5
    return bm * bn / (bm + bn) / max(1.0, accumulators / room) ** 2 * depth * cover * rows


def _first(space: Space, candidates: Sequence[Config], size: int, rng: random.Random) -> list[Config]:
    """Half the best of each tile by merit, a quarter nearest to what stands, the rest by chance; no doubles."""
    best: dict[tuple[Any, ...], Config] = {}
    for c in sorted(candidates, key=lambda c: (-merit(space, c), c.get("num_warps", 0), -c.get("num_stages", 0))):
        best.setdefault((c.get("BLOCK_M"), c.get("BLOCK_N"), c.get("PERSISTENT_TMA")), c)
    chance = list(candidates)
    rng.shuffle(chance)
    wanted = [*list(best.values())[: size - size // 2], *candidates[: size // 4], *chance]
    return _unique(wanted)[:size]


def _unique(configs: Sequence[Config]) -> list[Config]:
    return list({json.dumps(c, sort_keys=True): c for c in configs}.values())


def _total(hint: Mapping[str, Any]) -> float:
    """Geometric mean over shapes of a hint's milliseconds; infinite where it failed."""
    times = hint.get("ms")
    return statistics.geometric_mean(times.values()) if times else float("inf")


def _sweep(
    ctx: Context,
    space: Space,
    section: str,
    direction: Direction,
    current: Config,
    fitting: Sequence[Config],
    rng: random.Random,
) -> list[Mapping[str, Any]]:
    """Hints for what stands and a first choice; then, in a wide direction, for the neighbours of the best."""
    size = ctx.policy.sweep_size
    if not fitting:
        return []
    wide = len(direction.params) > 2 and len(fitting) > size
    first = _first(space, fitting, size - size // 3 if wide else size, rng)

    def neighbours(hints: Sequence[Mapping[str, Any]]) -> list[Config]:
        best, known = min(hints, key=_total), [h["config"] for h in hints]
        near = [c for c in fitting if c not in known and spaces.distance(space, best["config"], c) == 1]
        return sorted(near, key=lambda c: -merit(space, c))[: size // 3]

    return list(ctx.sweep(section, [current, *first], neighbours if wide else None))


def propose(ctx: Context) -> Proposal | None:
    space, path, text = _space(ctx)
    analysis = ctx.state.current.analysis if ctx.state.current else None
    names = {spaces.identity(s, d): (s, d) for s, d in _rank(ctx)}
    chosen = next((x["name"] for x in (analysis.directions if analysis else ()) if x["name"] in names), None)
    section, direction = names[chosen] if chosen else next(iter(names.values()))
    current = json.loads(text)[section]
    rng = random.Random(f"{ctx.manifest.seed}/{ctx.round}/{section}/{direction.name}")
    fitting = spaces.candidates(space, current, direction, section, ctx.manifest.target_gpu, rng, limit=100_000)
    hints = _sweep(ctx, space, section, direction, current, fitting, rng)
    best = min(hints, key=_total, default=None)
    config = dict(best["config"]) if best and _total(best) < float("inf") else dict(current)
    change = spaces.diff_config(current, config)
    edits = {path: spaces.edit(space, text, section, config)} if config != current else {}
    what = f"{section} {direction.name}"
    return Proposal(
        hypothesis=f"{what}: {change or 'no better configuration'} ({max(0, len(hints) - 1)} of {len(fitting)} that fit were timed)",
        change=f"{path} [{section}]: {change}" if edits else f"{what}: none of the timed configurations looked better",
        summary=f"{section}: {change}" if edits else f"{what}: nothing better",
        category=direction.category, direction=spaces.identity(section, direction), bottleneck=ctx.bottleneck,
        expected_gain_pct=direction.expected_gain_pct, risk=direction.risk, signal=direction.signal,
        bucket=direction.bucket, edits=edits, hints=tuple(dict(h) for h in hints),
    )  # fmt: skip


def repair(ctx: Context, failure: str) -> Proposal | None:
    """The next best of the round's own sweep: a configuration that failed isn't repaired, it is replaced."""
    current = ctx.state.current
    if current is None or current.proposal is None or not current.proposal.edits:
        return None
    space, path, text = _space(ctx)
    section = current.proposal.direction.split("/")[0]
    failed = json.loads(current.proposal.edits[path])[section]
    before = json.loads(text)[section]
    left = [h for h in current.proposal.hints if h["config"] not in (failed, before) and _total(h) < float("inf")]
    if not left:
        return None
    config = dict(min(left, key=_total)["config"])
    change = spaces.diff_config(before, config)
    return current.proposal.model_copy(
        update={
            "hypothesis": f"{current.proposal.hypothesis}; it failed ({failure[:80]}), next best: {change}",
            "change": f"{path} [{section}]: {change}",
            "summary": f"{section}: {change}",
            "edits": {path: spaces.edit(space, text, section, config)},
            "hints": tuple(h for h in current.proposal.hints if h["config"] != failed),
        }
    )
