"""Another policy over a campaign's raw samples: what each round's verdict would have been. Pure.

A round's sessions are handed to the rules one by one, in the order in which they would be asked for, as a campaign
does; what was never measured can't be decided.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from statistics import fmean

from turbo_optimize.core import stats
from turbo_optimize.core.events import Baselined
from turbo_optimize.core.models import Decision, Evidence, Frozen, Manifest, NeedMore, Policy, Sample, Session
from turbo_optimize.core.rules import decide
from turbo_optimize.core.state import Round

UNDECIDABLE = "UNDECIDABLE"


class Replayed(Frozen):
    """One round under two policies. `hypothetical`: another path would have led here already."""

    round: int
    old_verdict: str
    old_code: str
    verdict: str  # a Verdict, or UNDECIDABLE
    code: str  # empty where undecidable
    gain_pct: float | None
    why: str
    hypothetical: bool = False

    @property
    def differs(self) -> bool:
        return self.verdict != self.old_verdict


class Noise(Frozen):
    """What BASELINE's A/A sessions say under a policy."""

    sigma_aa: float
    core_shapes: tuple[str, ...]


def sessions_of(samples: Sequence[Sample]) -> tuple[Session, ...]:
    """The sessions of one round's samples, quads recomputed, in the order in which they were measured."""
    groups: dict[tuple[str, int], list[Sample]] = {}
    for s in samples:
        groups.setdefault((s.level, s.session), []).append(s)
    return tuple(session_of(found) for found in groups.values())


def session_of(samples: Sequence[Sample]) -> Session:
    """One session's blocks paired into quads, with the incumbent's time a step."""
    times: dict[str, list[float]] = {}
    for s in samples:
        if s.role == "A":
            times.setdefault(s.shape, []).append(1e3 * s.step_ms)
    return Session(
        level=samples[0].level, index=samples[0].session, quads=stats.quad_values(samples),
        step_us={shape: fmean(us) for shape, us in times.items()},
    )  # fmt: skip


def noise_of(aa: Sequence[Session], representative: Sequence[str], policy: Policy) -> Noise:
    """σ_AA over the representative shapes and the shapes quiet enough to veto, as BASELINE finds them."""
    noise = stats.noise_pct(aa, policy.trim)
    quick = [s.model_copy(update={"quads": {k: v for k, v in s.quads.items() if k in representative}}) for s in aa]
    return Noise(
        sigma_aa=stats.sigma_aa(quick, policy.trim),
        core_shapes=tuple(k for k, v in noise.items() if v <= policy.launch_bound_pct),
    )


def redecide(evidence: Evidence, policy: Policy) -> Decision | NeedMore:
    """The rules' answer when `evidence.sessions` are handed out only as they ask; NeedMore where they run out."""
    left = list(evidence.sessions)
    given: list[Session] = []
    while True:
        answer = decide(evidence.model_copy(update={"sessions": tuple(given)}), policy)
        if not isinstance(answer, NeedMore):
            return answer
        more = next((s for s in left if s.level == answer.level), None)
        if more is None:
            return answer
        left.remove(more)
        given.append(more)


def evidence_of(r: Round, sessions: tuple[Session, ...], noise: Noise, manifest: Manifest, b: Baselined) -> Evidence:
    """A closed round's evidence, with its sessions and noise as recomputed."""
    assert r.proposal is not None
    return Evidence(
        gates=r.gates, checks=r.checks, sessions=sessions, core_shapes=noise.core_shapes, sigma_aa=noise.sigma_aa,
        high_risk=r.proposal.risk == "high", training=trains(manifest), cap_pct=r.cap_pct,
        full_is_quick=set(b.representative_shapes) == {s.label for s in manifest.target_shapes},
    )  # fmt: skip


def trains(manifest: Manifest) -> bool:
    """Whether gains must hold in training steps: what was never measured so can't be asked of a record."""
    return manifest.execution_mode == "training" and manifest.policy.transfer_quads > 0


def replay(rounds: Sequence[Round], evidence: Callable[[Round], Evidence], policy: Policy) -> tuple[Replayed, ...]:
    """Every closed round under `policy`. Rounds whose proposal changed nothing (D08) stay as they are."""
    out: list[Replayed] = []
    hypothetical = False
    for r in rounds:
        d = r.decision
        if d is None:
            continue
        answer = d if d.code == "D08" else redecide(evidence(r), policy)
        one = _replayed(r.number, d, answer, hypothetical)
        out.append(one)
        hypothetical = hypothetical or one.differs
    return tuple(out)


def _replayed(number: int, old: Decision, new: Decision | NeedMore, hypothetical: bool) -> Replayed:
    fields = {"round": number, "old_verdict": old.verdict.value, "old_code": old.code, "hypothetical": hypothetical}
    if isinstance(new, NeedMore):
        sessions = f"{new.sessions} more {new.level} session{'s' if new.sessions > 1 else ''}"
        return Replayed(**fields, verdict=UNDECIDABLE, code="", gain_pct=None, why=f"needs {sessions}: {new.why}")
    return Replayed(**fields, verdict=new.verdict.value, code=new.code, gain_pct=new.gain_pct, why=new.reason)


def counts(replayed: Sequence[Replayed]) -> Mapping[str, int]:
    """How many rounds come to each verdict under the other policy."""
    found: dict[str, int] = {}
    for r in replayed:
        found[r.verdict] = found.get(r.verdict, 0) + 1
    return found
