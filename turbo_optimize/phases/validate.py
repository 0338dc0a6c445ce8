"""VALIDATE: gates, cheapest first; then measure until the rules decide; then apply. One step a call, so that a stop or
a crash costs one session at most. `decided` is intent; `applied` is the fact that the branch is there."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from turbo_optimize.campaign import Campaign
from turbo_optimize.core.audit import audit
from turbo_optimize.core.checks import CHECKS, LIMITS, REPAIRABLE
from turbo_optimize.core.errors import CsvError, TurboOptError, WorkerError
from turbo_optimize.core.events import Applied, Decided, Event, Gated, Measured
from turbo_optimize.core.models import CheckRow, Evidence, GateResult, Level, NeedMore, Sample, Shape
from turbo_optimize.core.replaying import trains
from turbo_optimize.core.rules import decide
from turbo_optimize.core.scope import outside
from turbo_optimize.core.state import Round
from turbo_optimize.core.stats import quad_values
from turbo_optimize.effects.bench import Tree, add_parts
from turbo_optimize.effects.layout import key_of
from turbo_optimize.effects.replay import parse_samples
from turbo_optimize.effects.watch import disk_is_full
from turbo_optimize.phases.shared.commands import rebuild

# What a failed worker means for the gates, by the kind of failure; a check's code stands for itself.
GATE_OF = {"build": "G03", "run": "G04", "protocol": "G07", "identity": "G06"} | {k: c for k, (c, _) in LIMITS.items()}
# What a declared weight cache (W1) may have; its training steps are looked at all the same, and its gain is capped.
CACHE_FINDINGS = frozenset({"A01", "A02"})
# After these the device is looked at before the next round.
DOUBTFUL = frozenset({"timeout", "crash", "fault", "device_memory", "rival"})


def run(c: Campaign) -> Iterator[Event]:
    r = c.state.current
    assert r is not None, "VALIDATE needs an open round"
    if r.decision:
        yield apply(c, r)
        return
    if not r.gates:
        yield from _gates(c, r)
        return
    answer = decide(evidence(c, r), c.policy)
    if isinstance(answer, NeedMore):
        yield from measure(c, r, answer.level)
        return
    yield Decided(round=r.number, decision=answer, incumbent=c.incumbent)
    decided = c.state.current
    assert decided is not None
    yield apply(c, decided)


def evidence(c: Campaign, r: Round) -> Evidence:
    """What the journal holds of a round, as the rules read it."""
    b = c.state.baseline
    assert b is not None and r.proposal is not None
    return Evidence(
        gates=r.gates, checks=r.checks, sessions=r.sessions, core_shapes=b.core_shapes, sigma_aa=b.sigma_aa,
        high_risk=r.proposal.risk == "high", training=trains(c.manifest), cap_pct=r.cap_pct,
        full_is_quick=set(b.representative_shapes) == {s.label for s in c.manifest.target_shapes},
    )  # fmt: skip


# -- gates -------------------------------------------------------------------------------------------------------------
def _gates(c: Campaign, r: Round) -> Iterator[Event]:
    """Scope, audit, build, correctness on the representative shapes; the first failure spares the rest."""
    assert r.commit and r.parent
    parts: dict[str, float] = {}
    gates = [_scope(c, r.files), _audit(c, r)]
    checks: tuple[CheckRow, ...] = ()
    cap: float | None = None
    if all(g.ok for g in gates):
        tree = c.tree(r.commit)
        c.seed_caches(r.parent, r.commit)
        gates.append(rebuild(c, tree, key_of(r.number), parts))
        if gates[-1].ok:
            c.bench.expect()
            checks, failure = _correctness(c, r, tree, c.representative, parts)
            gates += [failure] if failure else [_harness(c, tree)]
            if gates[-1].ok and all(x.check == "PASS" for x in checks):
                cap, failure = _weight_cap(c, r, parts)
                gates += [failure] if failure else []
    failed = next((g for g in gates if not g.ok), None)
    wrong = next((x for x in checks if x.check != "PASS"), None)
    repairable = any(x is not None and x.code in REPAIRABLE for x in (failed, wrong))
    if parts:
        yield c.spent(r.number, parts)
    yield Gated(
        round=r.number, attempt=r.attempt, gates=tuple(gates), checks=checks, repairable=repairable, cap_pct=cap
    )


def _scope(c: Campaign, files: Sequence[str]) -> GateResult:
    bad = outside(files, c.manifest.editable)
    return GateResult(
        code="G01", ok=not bad, detail=f"changed outside of editable: {', '.join(bad[:3])}" if bad else ""
    )


def _audit(c: Campaign, r: Round) -> GateResult:
    assert r.commit and r.parent
    found = []
    for path in r.files:
        after = c.repo.show(r.commit, path)
        if path.endswith(".py") and after is not None:
            try:
                found += [(path, f) for f in audit(path, c.repo.show(r.parent, path), after)]
            except WorkerError as e:
                return GateResult(code="G03", ok=False, detail=e.message)
    if not found:
        return GateResult(code="G02", ok=True)
    path, f = found[0]
    detail = f"{f.code} {path} line {f.line}: {f.what} ({f.why})"
    weight_cache = (
        r.proposal is not None and r.proposal.bucket == "W1" and all(f.code in CACHE_FINDINGS for _, f in found)
    )
    return GateResult(code="G02", ok=weight_cache or not c.policy.audit_rejects, detail=detail)


def _harness(c: Campaign, tree: Tree) -> GateResult:
    """The files that judge are the base's, byte for byte."""
    same = c.harness_sha256(tree.path) == c.harness_sha256(c.tree(c.base).path)
    return GateResult(
        code="G06", ok=same, detail="" if same else "the adapter or a frozen file differs from the base commit"
    )


def _correctness(
    c: Campaign, r: Round, tree: Tree, shapes: Sequence[Shape], parts: dict[str, float]
) -> tuple[tuple[CheckRow, ...], GateResult | None]:
    cached = r.proposal is not None and r.proposal.bucket == "W1"
    try:
        out = c.bench.check(key_of(r.number), r.attempt, tree, shapes, c.norms, cached)
    except WorkerError as e:
        return (), failure_of(c, r, e, parts)
    add_parts(parts, out.parts)
    return out.checks, next((f for f in out.findings if not f.ok), None)


def _weight_cap(c: Campaign, r: Round, parts: dict[str, float]) -> tuple[float | None, GateResult | None]:
    """The most that a declared weight cache may gain, percent; a failure where the incumbent can't be asked."""
    assert r.parent
    if r.proposal is None or r.proposal.bucket != "W1":
        return None, None
    try:
        return c.bench.weight_cap(key_of(r.number), c.tree(r.parent), c.representative), None
    except WorkerError as e:
        return None, failure_of(c, r, e, parts)


def failure_of(c: Campaign, r: Round, e: WorkerError, parts: dict[str, float]) -> GateResult:
    """What a failed worker means. After a hang or a fault the incumbent must run again before anything goes on."""
    if e.kind == "disk" and disk_is_full(c.layout.root):  # its own folder is gone by now: it wasn't the candidate's
        raise TurboOptError(f"no space left on device: {e.message}", "free some, then `turbo-opt resume`") from e
    if e.kind in DOUBTFUL:
        assert r.parent
        smallest = min(c.representative, key=lambda s: math.prod(s.dims.values()))
        c.say(f"{e.message}; is the device still there?")
        try:
            seconds = c.bench.probe(key_of(r.number), c.tree(r.parent), smallest)
        except WorkerError as lost:
            raise TurboOptError(
                f"device lost: {e.message}; then the incumbent: {lost.message}",
                "look at the device (`turbo-opt doctor`), then `turbo-opt resume`",
            ) from e
        add_parts(parts, {"recover": seconds})
    return GateResult(code=GATE_OF.get(e.kind, e.kind if e.kind in CHECKS else "G07"), ok=False, detail=e.message)


# -- measuring ---------------------------------------------------------------------------------------------------------
def measure(c: Campaign, r: Round, level: Level) -> Iterator[Event]:
    """One more session of a level. The CSVs hold the candidate's blocks so far; samples.csv holds everybody's."""
    assert r.commit and r.parent
    key = key_of(r.number)
    index = 1 + sum(s.level == level for s in r.sessions)
    shapes = c.manifest.target_shapes if level == "full" else c.representative
    checks = r.checks
    parts: dict[str, float] = {}
    try:
        tree = c.tree(r.commit)
        if level == "full" and {x.shape for x in checks} != {s.label for s in shapes}:
            rest = [s for s in shapes if s.label not in {x.shape for x in checks}]
            more, failure = _correctness(c, r, tree, rest, parts)
            checks = (*checks, *more)
            if failure or any(x.check != "PASS" for x in more):
                gates = (*r.gates, failure) if failure else r.gates
                yield Gated(round=r.number, attempt=r.attempt, gates=gates, checks=checks, repairable=False)
                return
        session, out = c.measure(key, level, index, c.tree(r.parent), tree, shapes)
        samples = (*_kept(c, r), *out.samples)
        wanted = ("full",) if level == "full" else ("screen", "confirm")
        measured = [s for s in samples if s.level in wanted]
        score, csv_sha256 = c.write_csv(
            key, shapes, [s for s in measured if s.role == "B"], checks, full=level == "full"
        )
        before = c.score_of(shapes, [s for s in measured if s.role == "A"], checks)
    except (WorkerError, CsvError) as e:
        csv = isinstance(e, CsvError)
        failed = GateResult(code="G05", ok=False, detail=e.message) if csv else failure_of(c, r, e, parts)
        if parts:
            yield c.spent(r.number, parts)
        yield Gated(round=r.number, attempt=r.attempt, gates=(*r.gates, failed), checks=checks, repairable=False)
        return
    add_parts(parts, out.parts)
    yield c.spent(r.number, parts)
    if checks != r.checks:
        yield Gated(round=r.number, attempt=r.attempt, gates=r.gates, checks=checks, repairable=False)
    yield Measured(
        round=r.number, session=session, score=score, incumbent_score=before, csv_sha256=csv_sha256,
        samples_sha256=c.save_samples(key, samples), binary_sha256=out.binary_sha256, notes=out.notes,
    )  # fmt: skip


def _kept(c: Campaign, r: Round) -> tuple[Sample, ...]:
    """Samples of the round's journaled sessions; a session that a crash cut off before its event is measured again."""
    path = c.layout.samples(key_of(r.number))
    if not r.sessions:
        return ()
    try:
        read = parse_samples(path.read_text(), str(path))
    except OSError as e:
        raise TurboOptError(
            f"{path}: can't be read ({e.strerror})", "restore it: it holds sessions that were measured"
        ) from None
    kept = tuple(s for x in r.sessions for s in read if (s.level, s.session) == (x.level, x.index))
    for x in r.sessions:
        if quad_values(s for s in kept if (s.level, s.session) == (x.level, x.index)) != x.quads:
            raise TurboOptError(f"{path}: {x.level} session {x.index} is not what the journal says", "restore the file")
    return kept


# -- applying ----------------------------------------------------------------------------------------------------------
def apply(c: Campaign, r: Round) -> Applied:
    """Makes the branch what was decided. Every step may be repeated: the commit's id depends on the journal alone."""
    assert r.decision is not None
    if not r.decision.accepted:
        c.repo.sync_worktree(c.layout.worktree, c.incumbent)
        return Applied(round=r.number, commit=c.incumbent)
    assert r.commit and r.parent and c.state.prepared
    commit = c.repo.commit(c.repo.tree_of(r.commit), [r.parent], commit_message(c, r), r.decided_at, like=r.commit)
    ref = c.ref(f"round-{r.number}")
    c.repo.move_ref(ref, commit, c.repo.resolve(ref))
    c.repo.move_ref(c.state.prepared.head_ref, commit, r.parent)
    c.repo.sync_worktree(c.layout.worktree, commit)
    return Applied(round=r.number, commit=commit)


def commit_message(c: Campaign, r: Round) -> str:
    """Subject, Hypothesis, Result, Details, trailers (SPEC §4)."""
    m, d, p = c.manifest, r.decision, r.proposal
    if d is None or p is None or r.score is None:
        raise TurboOptError(f"round {r.number} was accepted without numbers", "`turbo-opt verify` says what is lost")
    name = m.target_op if m.target_variant == "default" else f"{m.target_op} {m.target_variant}"
    shapes = "\n".join(f"  {s.shape}: {s.gain_pct:+.2f}% ({s.low_pct:+.2f} … {s.high_pct:+.2f})" for s in d.shapes)
    note = "\nTimes are the Triton interpreter's on a CPU.\n" if m.target_gpu == "cpu" else ""
    return (
        f"[optimize] {name} {m.target_backend} round-{r.number}: {p.summary}\n\n"
        f"Hypothesis: {p.hypothesis}\n\n"
        f"Result: {d.code} {d.reason}\n{shapes}\n{note}\n"
        f"Details: {p.change}\n\n"
        f"Campaign: {m.campaign}\nRound: {r.number}\nScore: {r.score.value:.6g} {r.score.unit}\n"
    )
