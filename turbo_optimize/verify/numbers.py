"""Samples, CSVs, scores, quads, noise and verdicts, computed again."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from turbo_optimize.core import stats
from turbo_optimize.core.models import Decision, NeedMore, Sample, Score
from turbo_optimize.core.replaying import noise_of, sessions_of
from turbo_optimize.core.rules import decide
from turbo_optimize.core.scoring import score
from turbo_optimize.core.state import Round
from turbo_optimize.core.verifying import Finding, last_measured
from turbo_optimize.effects.layout import key_of
from turbo_optimize.effects.replay import format_samples, parse_samples
from turbo_optimize.effects.store import sha256_bytes
from turbo_optimize.phases.validate import evidence
from turbo_optimize.verify.case import Case, finding, hash_of, said


def _measured(case: Case) -> Iterator[Round]:
    """Rounds that have numbers: the baseline and what was measured."""
    yield from (r for r in case.c.state.rounds if r.samples_sha256)


def _kept(r: Round, samples: Sequence[Sample]) -> tuple[Sample, ...]:
    """The samples of journaled sessions. An open round may have one more, left unfinished."""
    known = {(s.level, s.index) for s in r.sessions}
    return tuple(s for s in samples if r.number == 1 or (s.level, s.session) in known)


def samples(case: Case) -> Iterator[Finding]:
    for r in _measured(case):

        def differs(r: Round = r) -> str:
            path = case.c.layout.samples(key_of(r.number))
            same = hash_of(path) == r.samples_sha256
            if not same and r == case.c.state.current:
                same = sha256_bytes(format_samples(_kept(r, case.samples(r.number))).encode()) == r.samples_sha256
            return (
                "" if same else "samples.csv is gone" if not path.exists() else "samples.csv is not what was measured"
            )

        yield finding("samples.csv", f"round {r.number}", said(differs))


def csvs(case: Case) -> Iterator[Finding]:
    """benchmark.csv and full_benchmark.csv: hash, strict reading, score."""
    c, b = case.c, case.c.state.baseline
    wanted = [(n, full, e.csv_sha256, e.score) for (n, full), e in last_measured(case.events).items()]
    if b:
        wanted.insert(0, (1, False, b.csv_sha256, b.score))
    for number, full, told, recorded in wanted:
        path = c.layout.csv(key_of(number), full)
        open_now = c.state.current is not None and c.state.current.number == number
        where = f"round {number}{' full' if full else ''}"
        same = hash_of(path) == told
        if not same and open_now and path.exists():
            continue  # the session that is being measured rewrote it; it counts once it is journaled
        detail = (
            "" if same else f"{path.name} is gone" if not path.exists() else f"{path.name} is not what was recorded"
        )
        yield finding("CSV hash", where, detail)

        def rescored(path: Path = path, full: bool = full, recorded: Score = recorded) -> str:
            rows = c.read_csv(path, c.manifest.target_shapes if full else c.representative)
            again = score(c.schema, c.manifest.primary_metric, rows)
            return "" if again == recorded else f"scores {again.value!r}, recorded is {recorded.value!r}"

        yield finding("score", where, said(rescored))


def quads(case: Case) -> Iterator[Finding]:
    for r in _measured(case):
        if r.number == 1:
            continue

        def differs(r: Round = r) -> str:
            again = {(s.level, s.index): s for s in sessions_of(_kept(r, case.samples(r.number)))}
            wrong = [s for s in r.sessions if again.get((s.level, s.index)) != s]
            return f"{wrong[0].level} session {wrong[0].index} is not what its samples give" if wrong else ""

        yield finding("quads", f"round {r.number}", said(differs))


def noise(case: Case) -> Iterator[Finding]:
    c, b = case.c, case.c.state.baseline
    if b is None:
        return

    def differs() -> str:
        aa = sessions_of(case.samples(1))
        noise = noise_of(aa, b.representative_shapes, c.policy)
        if stats.noise_pct(aa, c.policy.trim) != b.noise_pct or noise.sigma_aa != b.sigma_aa:
            return "the A/A noise is not what the samples give"
        return "" if set(noise.core_shapes) == set(b.core_shapes) else "the core shapes are not what the samples give"

    yield finding("noise", "round 1", said(differs))


def verdicts(case: Case) -> Iterator[Finding]:
    """The rules on the journaled evidence give the journaled decision."""
    c = case.c
    for r in c.state.rounds:
        d = r.decision
        if d is None or d.code == "D08":
            continue

        def differs(r: Round = r, d: Decision = d) -> str:
            if c.state.baseline is None or r.proposal is None:
                return "can't be decided again: its evidence is lost"
            again = decide(evidence(c, r), c.policy)
            if isinstance(again, NeedMore):
                return f"needs {again.sessions} more {again.level} session(s); recorded is {d.verdict.value} ({d.code})"
            if (again.verdict, again.code) != (d.verdict, d.code):
                return f"the rules say {again.verdict.value} ({again.code}), recorded is {d.verdict.value} ({d.code})"
            return "" if again.gain_pct == d.gain_pct else f"the gain is {again.gain_pct!r}, recorded is {d.gain_pct!r}"

        yield finding("verdict", f"round {r.number}", said(differs))


def final(case: Case) -> Iterator[Finding]:
    """The published gain against the final comparison's samples."""
    c = case.c
    told = next((x for x in c.state.compared if x.what == "final"), None)
    if told is None or c.state.baseline is None:
        return
    sigma = c.state.baseline.sigma_aa

    def differs() -> str:
        path = c.layout.samples("final")
        if not path.exists():
            return "its samples.csv is gone"
        sessions = sessions_of(parse_samples(path.read_text(encoding="utf-8"), path.name))
        gain = stats.pct(stats.combine(sessions, c.policy, sigma).mean)
        return "" if gain == told.gain_pct else f"its samples give {gain!r}%, recorded is {told.gain_pct!r}%"

    yield finding("final gain", "report", said(differs))
