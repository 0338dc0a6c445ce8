"""A campaign recorded on an H200 drives the same engine again, with no GPU: same verdicts, same numbers, same lineage.

`h200_gemm_fp8/` is that campaign's folder as it was (without its worktree) and, under `base/`, the launch configuration
that it started from.
"""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest
import yaml

from turbo_optimize import engine
from turbo_optimize.campaign import Campaign
from turbo_optimize.core.events import Baselined, Compared, Decided, Phase
from turbo_optimize.core.models import POLICIES
from turbo_optimize.core.replaying import Noise, evidence_of, replay, sessions_of
from turbo_optimize.core.state import fold
from turbo_optimize.effects.replay import ReplayBench
from turbo_optimize.effects.repo import Repo
from turbo_optimize.effects.store import read_events
from turbo_optimize.phases.define import Plan
from turbo_optimize.proposers.recorded import Recorded
from turbo_optimize.verify import verify

RECORD = Path(__file__).parent / "h200_gemm_fp8"
CONFIG = "kernels/turbo_kernels/gemm_fp8/configs/sm_90.json"


def git(repo: Path, *args: str) -> str:
    return subprocess.run(["git", *args], cwd=repo, check=True, capture_output=True, text=True).stdout.strip()


@pytest.fixture(scope="module")
def again(tmp_path_factory: pytest.TempPathFactory) -> Campaign:
    """The recorded campaign run again in a repository that holds the same launch configuration."""
    repo = tmp_path_factory.mktemp("replay")
    op = yaml.safe_load((RECORD / "project.yaml").read_text())["ops"]["gemm_fp8"]
    for name in [op["adapter"], *op["frozen"], *op["backends"]["TRITON"]["kernel_source"]]:
        path = repo / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"# {name}: a record needs the file, not what it says\n")
    (repo / CONFIG).parent.mkdir(parents=True, exist_ok=True)
    (repo / CONFIG).write_text((RECORD / "base" / "sm_90.json").read_text())
    git(repo, "init", "-q", "-b", "main")
    git(repo, "add", "-A")
    git(repo, "-c", "user.name=t", "-c", "user.email=t@t", "commit", "-qm", "base")
    manifest = fold(read_events(RECORD / "journal.jsonl")).manifest
    assert manifest
    manifest = manifest.model_copy(update={"base_commit": git(repo, "rev-parse", "HEAD"), "max_duration": None})
    plan = Plan(manifest=manifest, project_text=(RECORD / "project.yaml").read_text())
    campaign, lock = engine.create(plan, Repo.discover(repo))
    bench = ReplayBench(RECORD)
    with lock:
        engine.with_bench(campaign, bench, Recorded(bench))
        engine.begin(campaign, "start")
        assert engine.run(campaign) == Phase.DONE
    return campaign


def of(kind: type, path: Path) -> list:
    return [e for e in read_events(path) if isinstance(e, kind)]


def test_every_verdict_and_number_repeats(again: Campaign) -> None:
    recorded, now = (of(Decided, p / "journal.jsonl") for p in (RECORD, again.layout.root))
    assert len(recorded) >= 8
    assert [(d.round, d.decision) for d in now] == [(d.round, d.decision) for d in recorded]


def test_the_baseline_and_the_published_gain_repeat(again: Campaign) -> None:
    for kind, fields in (
        (Baselined, ("score", "noise_pct", "sigma_aa", "core_shapes")),
        (Compared, ("gain_pct", "low_pct", "shapes")),
    ):
        recorded, now = (of(kind, p / "journal.jsonl")[0] for p in (RECORD, again.layout.root))
        for name in fields:
            assert getattr(now, name) == getattr(recorded, name), name


def test_the_branch_holds_exactly_the_accepted_rounds(again: Campaign) -> None:
    top, head = again.repo.top, again.incumbent
    subjects = git(top, "log", "--reverse", "--format=%s", f"{again.base}..{head}").splitlines()
    accepted = [d.round for d in of(Decided, RECORD / "journal.jsonl") if d.decision.accepted]
    assert [int(s.split("round-")[1].split(":")[0]) for s in subjects] == accepted
    last = max(accepted)
    snapshot = RECORD / f"rounds/round-{last}/kernel_snapshot" / CONFIG
    assert json.loads(git(top, "show", f"{head}:{CONFIG}")) == json.loads(snapshot.read_text())


def test_verify_agrees_with_the_replayed_campaign(again: Campaign) -> None:
    bad = [f for f in verify(again.layout, again.repo) if not f.ok]
    assert not bad


def test_the_record_re_decides_from_its_samples() -> None:
    """Quads from samples.csv, not from the journal; and another policy's verdicts are defined for every round."""
    state = fold(read_events(RECORD / "journal.jsonl"))
    b, m = state.baseline, state.manifest
    assert b
    assert m
    measured = [r for r in state.closed if r.sessions]
    assert len(measured) == 8
    evidence = {}
    for r in measured:
        samples = ReplayBench(RECORD).samples(f"round-{r.number}")
        noise = Noise(sigma_aa=b.sigma_aa, core_shapes=b.core_shapes)
        evidence[r.number] = evidence_of(r, sessions_of(samples), noise, m, b)
    own = replay(measured, lambda r: evidence[r.number], m.policy)
    assert not [x for x in own if x.differs]
    precise = replay(measured, lambda r: evidence[r.number], POLICIES["precise"])
    assert [x.verdict for x in precise[:3]] == ["ACCEPTED"] * 3
