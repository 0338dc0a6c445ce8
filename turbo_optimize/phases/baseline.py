"""BASELINE, round 1: full test, full benchmark, A/A noise, representative shapes, the frozen CSV schema."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from turbo_optimize.campaign import Campaign
from turbo_optimize.core import stats
from turbo_optimize.core.errors import TurboOptError
from turbo_optimize.core.events import Baselined, Event
from turbo_optimize.core.models import Sample, Session
from turbo_optimize.core.schema import schema_sha256
from turbo_optimize.effects.bench import add_parts
from turbo_optimize.effects.layout import key_of
from turbo_optimize.effects.probe import environment
from turbo_optimize.phases.shared.commands import full_benchmark, full_test
from turbo_optimize.phases.shared.harness import render_harness

KEY = key_of(1)


def run(c: Campaign) -> Iterator[Event]:
    parts: dict[str, float] = {}
    tree = c.tree(c.base)
    if not c.bench_override:  # a record has its own numbers; the commands need the device
        for gate in (full_test(c, tree, KEY, parts), full_benchmark(c, tree, KEY, parts)):
            if not gate.ok:
                raise TurboOptError(
                    f"the baseline doesn't pass its own command: {gate.detail}", "mend it, commit, start anew"
                )
    checked = c.bench.check(KEY, 1, tree, c.manifest.target_shapes)
    add_parts(parts, checked.parts)
    bad = [r for r in checked.checks if r.check != "PASS"]
    if bad:
        raise TurboOptError(
            f"the baseline is wrong on {bad[0].shape}: {bad[0].detail}", "mend the kernel, commit, start again"
        )
    sessions: list[Session] = []
    samples: list[Sample] = []
    for index in range(1, c.policy.aa_sessions + 1):
        session, out = c.measure(KEY, "aa", index, tree, tree, c.manifest.target_shapes)
        sessions.append(session)
        samples += out.samples
        add_parts(parts, out.parts)
    found = stats.noise_pct(sessions, c.policy.trim)
    noise = {s.label: found[s.label] for s in c.manifest.target_shapes}
    representative = choose_representative(noise, _mean_step_ms(samples), c.policy.representative_max)
    labels = [s.label for s in c.manifest.target_shapes]
    score, _ = c.write_csv(KEY, c.manifest.target_shapes, samples, checked.checks, full=True)
    quick = tuple(s for s in c.manifest.target_shapes if s.label in representative)
    score, csv_sha256 = c.write_csv(KEY, quick, samples, checked.checks)
    render_harness(c, c.manifest.target_shapes, representative)
    yield c.spent(1, parts)
    yield Baselined(
        commit=c.base, score=score, checks=checked.checks, representative_shapes=representative,
        core_shapes=tuple(x for x in labels if noise[x] <= c.policy.launch_bound_pct), noise_pct=noise,
        sigma_aa=stats.sigma_aa([_only(s, representative) for s in sessions], c.policy.trim),
        schema_sha256=schema_sha256(c.schema), csv_sha256=csv_sha256,
        samples_sha256=c.save_samples(KEY, samples), binary_sha256=checked.binary_sha256,
        environment=environment() | checked.environment | {"harness_sha256": c.harness_sha256(tree.path)},
    )  # fmt: skip


def _only(session: Session, shapes: Sequence[str]) -> Session:
    return session.model_copy(update={"quads": {k: v for k, v in session.quads.items() if k in shapes}})


def _mean_step_ms(samples: Sequence[Sample]) -> dict[str, float]:
    by: dict[str, list[float]] = {}
    for s in samples:
        by.setdefault(s.shape, []).append(s.step_ms)
    return {k: sum(v) / len(v) for k, v in by.items()}


def choose_representative(noise_pct: Mapping[str, float], step_ms: Mapping[str, float], most: int) -> tuple[str, ...]:
    """The smallest and the largest by time, then the noisiest, up to `most`; in the order of the targets."""
    by_time = sorted(step_ms, key=lambda s: step_ms[s])
    wanted = [by_time[0], by_time[-1], *sorted(by_time[1:-1], key=lambda s: -noise_pct[s])]
    chosen = set(dict.fromkeys(wanted[: max(2, most)]))
    return tuple(s for s in noise_pct if s in chosen)
