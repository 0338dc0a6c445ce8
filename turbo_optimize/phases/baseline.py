"""BASELINE, round 1: full test, full benchmark, A/A noise, representative shapes, the frozen CSV schema."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from turbo_optimize.campaign import Campaign
from turbo_optimize.core import stats
from turbo_optimize.core.checks import CHECKS
from turbo_optimize.core.errors import TurboOptError, WorkerError
from turbo_optimize.core.events import Baselined, Event
from turbo_optimize.core.models import Sample, Session
from turbo_optimize.core.schema import schema_sha256
from turbo_optimize.effects.bench import Tree, add_parts
from turbo_optimize.effects.layout import key_of
from turbo_optimize.effects.probe import environment
from turbo_optimize.phases.shared.commands import full_benchmark, full_test
from turbo_optimize.phases.shared.harness import render_harness
from turbo_optimize.reports.referee import forecast

KEY = key_of(1)
NOISY_GAIN_PCT = 2.0  # the least gain that is claimed where A/A itself moves by more than the floor


def run(c: Campaign) -> Iterator[Event]:
    parts: dict[str, float] = {}
    tree = c.tree(c.base)
    if not c.bench_override:  # a record has its own numbers; the commands need the device
        for gate in (full_test(c, tree, KEY, parts), full_benchmark(c, tree, KEY, parts)):
            if not gate.ok:
                raise TurboOptError(
                    f"the baseline doesn't pass its own command: {gate.detail}", "mend it, commit, start anew"
                )
    assert c.state.learned
    checks = c.state.learned.checks
    sessions, samples, floor = _noise(c, tree, parts)
    found = stats.noise_pct(sessions, c.policy.trim)
    noise = {s.label: found[s.label] for s in c.manifest.target_shapes}
    representative = choose_representative(noise, _mean_step_ms(samples), c.policy.representative_max)
    sigma = stats.sigma_aa([_only(s, representative) for s in sessions], c.policy.trim)
    score, _ = c.write_csv(KEY, c.manifest.target_shapes, samples, checks, full=True)
    quick = tuple(s for s in c.manifest.target_shapes if s.label in representative)
    score, csv_sha256 = c.write_csv(KEY, quick, samples, checks)
    render_harness(c, c.manifest.target_shapes, representative)
    yield c.spent(1, parts)
    done = Baselined(
        commit=c.base, score=score, checks=checks, representative_shapes=representative,
        core_shapes=tuple(s.label for s in c.manifest.target_shapes if noise[s.label] <= c.policy.launch_bound_pct),
        noise_pct=noise, sigma_aa=sigma, schema_sha256=schema_sha256(c.schema), csv_sha256=csv_sha256,
        samples_sha256=c.save_samples(KEY, samples), binary_sha256=c.state.learned.binary_sha256,
        environment=environment() | c.versions | {"harness_sha256": c.harness_sha256(tree.path)},
        aa_floor_pct=floor, resolves_pct=stats.resolvable_pct(sigma, c.policy), **c.noisy,
    )  # fmt: skip
    yield done
    c.say(forecast(done, c.policy))


def _noise(c: Campaign, tree: Tree, parts: dict[str, float]) -> tuple[list[Session], list[Sample], float]:
    """The A/A sessions, all their blocks, and their floor: the largest estimate that no change gave, percent.

    A floor over `aa_floor_pct` doubles the quads, once; one that is still over it allows no claim below 2%.
    """
    sessions, samples, floor = _aa(c, tree, parts)
    if floor > c.policy.aa_floor_pct:
        c.say(f"A/A moves by {floor:.1f}%: twice the quads")
        c.noisy = {"quads": 2 * c.policy.quads}
        c.close()
        sessions, samples, floor = _aa(c, tree, parts)
        if floor > c.policy.aa_floor_pct:
            c.noisy["min_gain_pct"] = max(c.policy.min_gain_pct, NOISY_GAIN_PCT)
    return sessions, samples, floor


def _aa(c: Campaign, tree: Tree, parts: dict[str, float]) -> tuple[list[Session], list[Sample], float]:
    sessions: list[Session] = []
    samples: list[Sample] = []
    for index in range(1, c.policy.aa_sessions + 1):
        try:
            session, out = c.measure(KEY, "aa", index, tree, tree, c.manifest.target_shapes)
        except WorkerError as e:
            what = CHECKS.get(e.kind, e.kind)
            raise TurboOptError(
                f"the baseline itself doesn't pass ({what}): {e.message}", "mend the kernel, commit, start anew"
            ) from e
        sessions.append(session)
        samples += out.samples
        add_parts(parts, out.parts)
    floor = max(abs(stats.pct(stats.session_estimate(s, c.policy.trim))) for s in sessions)
    return sessions, samples, floor


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
