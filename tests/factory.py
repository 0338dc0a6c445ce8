"""Synthetic campaigns for tests: realistic events, made of the real models, the same for the same seed.

    events = make_events(40, seed=1)          # round 1 is the baseline, so 39 attempts
    state = fold(events)

Every kind of round turns up: accepted, trade-off, rolled back by measurement, by a failed build or check, inconclusive.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Sequence

from turbo_optimize.core.checks import Norms
from turbo_optimize.core.events import (
    Analyzed,
    Applied,
    Baselined,
    Compared,
    Created,
    Decided,
    Event,
    FinalAccepted,
    Gated,
    Learned,
    Measured,
    Opened,
    Patched,
    Prepared,
    Proposed,
    Reported,
    Spent,
    Terminated,
    Tipped,
    UndoDecided,
    Undone,
)
from turbo_optimize.core.models import (
    POLICIES,
    CheckRow,
    Decision,
    GateResult,
    Manifest,
    Proposal,
    Score,
    Session,
    Shape,
    ShapeDelta,
    Verdict,
)

START = 1_780_000_000.0  # seconds since the epoch
LABELS = ("4096x4096x4096", "4096x28672x4096", "2048x6144x4096")
UNITS = {"gemm": "TFLOPS", "memory": "GB/s", "attention": "TFLOPS"}
DIMS: dict[str, tuple[dict[str, int], ...]] = {
    "gemm": tuple(
        {"B": 1, "M": m, "N": n, "K": k} for m, n, k in ((4096, 4096, 4096), (4096, 28672, 4096), (2048, 6144, 4096))
    ),
    "memory": ({"M": 4096, "N": 4096}, {"M": 4096, "N": 28672}, {"M": 2048, "N": 6144}),
    "attention": tuple({"B": b, "H": 32, "S": s, "D": 128} for b, s in ((4, 4096), (1, 16384), (8, 2048))),
}
DIRECTIONS = (
    ("forward/tile", "tile_launch", "compute", "K1", "larger tiles feed the matrix pipe"),
    ("dgrad/stages", "pipeline", "memory", "K1", "one more stage hides the load latency"),
    ("wgrad/swizzle", "memory_layout", "memory", "K2", "grouped program order raises the L2 hit rate"),
    ("fuse/quantize", "fusion", "launch", "K3", "one launch instead of two"),
    ("ctx/transpose", "data_reuse", "memory", "K4", "backward reads what forward has written"),
    ("weight/cache", "cache", "memory", "W1", "the weight is quantized once a version"),
    ("forward/warps", "tile_launch", "resource", "K1", "fewer registers a thread, no spills"),
)
OUTCOMES = ("slower", "small", "build", "check", "veto")  # what becomes of a round that isn't accepted, in turn


def make_manifest(
    gpu: str = "gfx942", schema_class: str = "gemm", seed: int = 1, name: str | None = None, **changes: object
) -> Manifest:
    """A filled manifest. `changes` replaces any field."""
    op = {"gemm": "gemm_fp8", "memory": "rms_norm", "attention": "attention"}[schema_class]
    fields: dict[str, object] = {
        "campaign": name or f"{op}_blockwise_triton_{gpu}_20260601",
        "target_op": op,
        "target_variant": "blockwise",
        "target_backend": "TRITON",
        "target_lang": "Triton",
        "target_gpu": gpu,
        "dtype": "fp8",
        "schema_class": schema_class,
        "target_shapes": tuple(Shape(label=s, dims=d) for s, d in zip(LABELS, DIMS[schema_class], strict=True)),
        "representative_shapes": LABELS,
        "primary_metric": "gbps" if schema_class == "memory" else "step_tflops",
        "performance_target": None,
        "execution_mode": "training",
        "project": "turbo_kernels",
        "project_file": "project.yaml",
        "kernel_source": ("kernels/scale.py",),
        "editable": ("kernels/scale.py", "kernels/configs/*.json"),
        "test_command": "{python} -m pytest -q tests/test_scale.py",
        "benchmark_command": "{python} bench.py --csv {out}",
        "quick_command": "{python} quick_test_bench.py --summary-csv {out}",
        "git_branch": f"optimize/{op}",
        "base_commit": sha("base", seed),
        "max_rounds": 60,
        "proposer": "search",
        "policy": POLICIES["cpu" if gpu == "cpu" else "standard"],
        "seed": seed,
        "created": "2026-06-01 08:00",
        "schema_sha256": "a" * 64,
        "harness_sha256": "b" * 64,
        "noise": dict.fromkeys(LABELS, 0.29),
        "environment": {"gpu": gpu, "driver": "6.4", "torch": "2.13.0", "triton": "3.6.0"},
        "sources": {"target_op": "flag", "target_gpu": "detected", "max_rounds": "default"},
    }
    return Manifest.model_validate(fields | changes)


def sha(*parts: object) -> str:
    """A commit-like name, the same for the same parts."""
    return f"{random.Random(repr(parts)).getrandbits(160):040x}"


FAULTS = {"zeroed_row": "K02", "cached_output": "K04", "patched_timer": "K11"}


class _Maker:
    """Where the synthetic campaign stands while its events are made."""

    def __init__(self, manifest: Manifest, seed: int) -> None:
        self.manifest = manifest
        self.unit = UNITS[manifest.schema_class]
        self.rng = random.Random(seed)
        self.seed = seed
        self.at = START
        self.speed = 500.0  # true score of the incumbent
        self.head = manifest.base_commit
        self.kept: list[tuple[int, float]] = []  # accepted rounds and their gain as a factor

    def tick(self, seconds: float) -> float:
        self.at += seconds
        return self.at

    def score(self, value: float) -> Score:
        noisy = value * (1 + self.rng.gauss(0, 0.002))
        return Score(
            value=noisy, unit=self.unit, forward_avg=noisy * 1.06, forward_peak=noisy * 1.21,
            backward_avg=noisy * 0.97, backward_peak=noisy * 1.09,
            per_shape={s: noisy * f for s, f in zip(LABELS, (1.0, 1.12, 1 / 1.12), strict=True)},
        )  # fmt: skip

    def checks(self, bad: str | None = None) -> tuple[CheckRow, ...]:
        return tuple(
            CheckRow(shape=s, check="FAIL", metrics={"out_snr": 3.1}, detail="row 7 is zero")
            if s == bad
            else CheckRow(shape=s, check="PASS", metrics={"out_snr": 28.4, "da_snr": 27.9, "db_snr": 28.0})
            for s in LABELS
        )

    def session(self, gain: float, index: int, level: str) -> Session:
        return Session.model_validate(
            {
                "level": level,
                "index": index,
                "quads": {s: tuple(math.log1p(gain) + self.rng.gauss(0, 0.003) for _ in range(6)) for s in LABELS},
            }
        )

    def deltas(self, gain_pct: float, lost: str | None = None) -> tuple[ShapeDelta, ...]:
        out = []
        for s in LABELS:
            g = -1.2 if s == lost else gain_pct + self.rng.gauss(0, 0.2)
            out.append(ShapeDelta(shape=s, gain_pct=g, low_pct=g - 0.4, high_pct=g + 0.4))
        return tuple(out)


def _opening(m: _Maker, max_rounds: int | None) -> Iterator[Event]:
    yield Created(at=m.at, manifest=m.manifest)
    yield Opened(at=m.tick(0.2), command="start", pid=4242, max_rounds=max_rounds)
    yield Prepared(
        at=m.tick(1.5), branch=m.manifest.git_branch, head_ref=f"refs/heads/{m.manifest.git_branch}",
        worktree="worktree", harness_sha256="b" * 64, prerequisites=(GateResult(code="G01", ok=True),),
    )  # fmt: skip
    found = tuple(GateResult(code=code, ok=True, detail=f"{fault}: found") for fault, code in FAULTS.items())
    yield Learned(at=m.tick(9.0), norms=Norms(), checks=m.checks(), self_test=found, versions={"triton": "3.6.0"})
    yield Baselined(
        at=m.tick(60.0), commit=m.manifest.base_commit, score=m.score(m.speed), checks=m.checks(),
        representative_shapes=LABELS, core_shapes=LABELS, noise_pct=dict.fromkeys(LABELS, 0.29), sigma_aa=0.0023,
        schema_sha256="a" * 64, csv_sha256="c" * 64, samples_sha256="d" * 64, binary_sha256="e" * 64,
        environment=m.manifest.environment,
    )  # fmt: skip
    yield Spent(at=m.tick(0.1), round=1, parts={"start": 10.0, "compile": 14.0, "measure": 30.0, "check": 5.0})


def _proposal(n: int, hypothesis: str | None) -> Proposal:
    name, category, bottleneck, bucket, why = DIRECTIONS[n % len(DIRECTIONS)]
    return Proposal(
        hypothesis=hypothesis or f"{name}: {why} (attempt {n})", change=f"{name} set to variant {n}",
        summary=f"{name} variant {n}", category=category, direction=name, bottleneck=bottleneck,
        expected_gain_pct=5.0, risk="high" if bucket == "K2" else "low", signal=why, bucket=bucket,
        edits={"kernels/configs/gfx942.json": f'{{"forward": {{"variant": {n}}}}}\n'},
        hints=({"config": n, "step_ms": 1.25},),
    )  # fmt: skip


def _verdict(m: _Maker, outcome: str, gain_pct: float) -> Decision:
    """The decision of a measured round."""
    pair = {"gain_pct": gain_pct, "low_pct": gain_pct - 0.5, "high_pct": gain_pct + 0.5}
    lost = LABELS[2] if outcome == "trade-off" else None
    verdict, code, reason = {
        "accepted": (Verdict.ACCEPTED, "D00", f"{gain_pct:+.2f}% over 3 sessions"),
        "trade-off": (Verdict.ACCEPTED, "D07", f"{gain_pct:+.2f}%; trade-off: {lost} -1.20%"),
        "slower": (Verdict.ROLLBACK, "D03", f"{gain_pct:+.2f}% in the screen"),
        "veto": (Verdict.ROLLBACK, "D02", f"{LABELS[0]} is 6.10% slower"),
        "small": (Verdict.INCONCLUSIVE, "D06", "neither a gain nor its absence is shown"),
    }[outcome]
    return Decision(
        verdict=verdict, code=code, reason=reason, sessions=3 if outcome in ("accepted", "trade-off", "small") else 1,
        shapes=m.deltas(gain_pct, lost), trade_off=lost is not None, **pair,
    )  # fmt: skip


GAINS = {
    "accepted": (1.5, 6.0),
    "trade-off": (2.0, 5.0),
    "slower": (-3.0, 0.0),
    "veto": (-7.0, -5.0),
    "small": (0.2, 0.9),
}  # outcome -> range of the true gain, percent


def _round(m: _Maker, n: int, outcome: str, hypothesis: str | None) -> Iterator[Event]:
    p = _proposal(n, hypothesis)
    ranked = tuple(
        {"name": d[0], "category": d[1], "bottleneck": d[2], "bucket": d[3], "expected_gain_pct": 5.0, "risk": "low",
         "change": f"try {d[0]}", "signal": d[4]}
        for d in (DIRECTIONS[(n + i) % len(DIRECTIONS)] for i in range(3))
    )  # fmt: skip
    yield Analyzed(at=m.tick(0.1), round=n, bottleneck=p.bottleneck, evidence="62% of the roofline", directions=ranked)
    yield Proposed(at=m.tick(0.5), round=n, proposal=p)
    candidate = sha(m.seed, n)
    yield Patched(at=m.tick(0.1), round=n, commit=candidate, parent=m.head, files=tuple(p.edits))
    broken = {"build": "G03", "check": "G04"}.get(outcome)
    gates = tuple(
        GateResult(code=c, ok=c != broken, detail="ptxas: out of registers" if c == broken == "G03" else "")
        for c in ("G01", "G02", "G03", "G04")
    )
    yield Gated(at=m.tick(4.0), round=n, gates=gates, checks=m.checks(LABELS[1] if outcome == "check" else None))
    spent = {"start": 1.0, "compile": 3.0}
    if broken:
        reason = next(g.detail or "row 7 is zero" for g in gates if not g.ok)
        decision = Decision(verdict=Verdict.ROLLBACK, code=broken, reason=reason)
    else:
        gain_pct = m.rng.uniform(*GAINS[outcome])
        decision = _verdict(m, outcome, gain_pct)
        before = m.speed
        for i in range(decision.sessions):
            yield Measured(
                at=m.tick(3.0), round=n, session=m.session(gain_pct / 100, i, "confirm" if i else "screen"),
                score=m.score(before * (1 + gain_pct / 100)), incumbent_score=m.score(before),
                csv_sha256="c" * 64, samples_sha256="d" * 64, binary_sha256=sha("binary", n) + "0" * 24,
            )  # fmt: skip
        spent["measure"] = 2.9 * decision.sessions
    yield Decided(at=m.tick(0.05), round=n, decision=decision, incumbent=m.head)
    if decision.accepted:
        factor = 1 + (decision.gain_pct or 0) / 100
        m.head, m.speed = candidate, m.speed * factor
        m.kept.append((n, factor))
    yield Applied(at=m.tick(0.05), round=n, commit=m.head)
    yield Spent(at=m.tick(0.02), round=n, parts=spent)


def _undo(m: _Maker, n: int) -> Iterator[Event]:
    m.speed /= dict(m.kept)[n]
    m.kept = [k for k in m.kept if k[0] != n]
    yield UndoDecided(at=m.tick(0.1), round=n, commit=sha(m.seed, n), onto=m.head)
    m.head = sha("revert", m.seed, n)
    yield Undone(at=m.tick(0.1), round=n, commit=m.head)


def _ending(m: _Maker, n_rounds: int, accepted: bool) -> Iterator[Event]:
    yield Terminated(at=m.tick(0.1), code="T3", why=f"{n_rounds} of {n_rounds} rounds")
    gain = 100 * (math.prod(f for _, f in m.kept) - 1)
    yield Compared(
        at=m.tick(30.0), what="final", gain_pct=gain, low_pct=gain - 0.6, high_pct=gain + 0.6,
        shapes={s: gain + d for s, d in zip(LABELS, (0.3, -0.3, 0.0), strict=True)},
        before=m.score(500.0), after=m.score(500.0 * (1 + gain / 100)),
    )  # fmt: skip
    for i, (n, factor) in enumerate(m.kept[:10]):
        g = 0.05 if i == 1 else 100 * (factor - 1)  # the second accepted round is a phantom
        yield Compared(at=m.tick(10.0), what="leave_one_out", round=n, gain_pct=g, low_pct=g - 0.4, high_pct=g + 0.4)
    detail = "" if accepted else "3 failed, 40 passed"
    yield FinalAccepted(
        at=m.tick(20.0),
        gates=(
            GateResult(code="G01", ok=True, detail="clean diff"),
            GateResult(code="G04", ok=accepted, detail=detail),
        ),
    )
    tip = {"context": "gemm_fp8 on gfx942", "signal": "spills", "takeaway": "4 warps", "applicability": "large K"}
    yield Tipped(at=m.tick(0.1), tips=(tip,))
    yield Reported(at=m.at, report_sha256="f" * 64)


def make_events(
    n_rounds: int,
    seed: int = 1,
    accept_every: int = 5,
    *,
    gpu: str = "gfx942",
    schema_class: str = "gemm",
    finish: bool = True,
    undo: Sequence[int] = (),
    final_ok: bool = True,
    hypothesis: str | None = None,
    manifest: Manifest | None = None,
) -> list[Event]:
    """A campaign of `n_rounds` rounds, the baseline included; every `accept_every`-th round is accepted (0: none).

    `undo` takes accepted rounds back, `finish` ends the campaign with its comparisons and report, `final_ok` is the
    final acceptance's word, `hypothesis` replaces every round's hypothesis.
    """
    m = _Maker(manifest or make_manifest(gpu, schema_class, seed), seed)
    events = list(_opening(m, n_rounds if n_rounds != m.manifest.max_rounds else None))
    failures = 0
    for n in range(2, n_rounds + 1):
        if accept_every and n % accept_every == 0:
            outcome = "trade-off" if n % (3 * accept_every) == 0 else "accepted"
        else:
            outcome = OUTCOMES[failures % len(OUTCOMES)]
            failures += 1
        events += _round(m, n, outcome, hypothesis)
    for n in undo:
        events += _undo(m, n)
    return [*events, *_ending(m, n_rounds, final_ok)] if finish else events
