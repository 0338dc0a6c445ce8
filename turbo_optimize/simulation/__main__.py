"""python -m turbo_optimize.simulation: false accepts and found gains of the shipped policies, on one page."""

from __future__ import annotations

import argparse
import json
import sys
import zlib
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np

from turbo_optimize.core import stats
from turbo_optimize.core.models import POLICIES, Policy
from turbo_optimize.simulation.driver import CAMPAIGN, Setup, Tally, calibrate, campaign
from turbo_optimize.simulation.noise import NOISES
from turbo_optimize.simulation.plot import svg
from turbo_optimize.simulation.stored import play_stored
from turbo_optimize.simulation.summary import Row, as_json, table

STORED, STORED_FIRST = "stored CSV", "stored, 1st"  # over a campaign; its first round, the incumbent measured just once
GAIN_SHARE = 4  # null rounds are rare events: of each gain a quarter of them is enough
QUICK_ROUNDS, QUICK_GAINS = 400, "0,2"


@dataclass(frozen=True)
class Job:
    """One campaign: what a process of the pool is handed."""

    policy: str
    noise: str
    calibrated: str
    aa_sessions: int | None
    gain_pct: float
    rounds: int
    seed: tuple[int, ...]


def stream(seed: int, *names: object) -> tuple[int, ...]:
    """A seed of its own for each campaign, whichever process plays it."""
    return (seed, *(zlib.crc32(str(n).encode()) for n in names))


def policy_of(name: str, aa_sessions: int | None) -> Policy:
    """The shipped policy, with another number of A/A sessions where one is asked for."""
    return POLICIES[name].model_copy(update={"aa_sessions": aa_sessions} if aa_sessions else {})


def run(job: Job) -> Tally:
    setup = Setup(policy_of(job.policy, job.aa_sessions), NOISES[job.noise], NOISES[job.calibrated])
    return campaign(setup, job.gain_pct, job.rounds, np.random.default_rng(job.seed))


def jobs(args: argparse.Namespace, policy: str, gain: float) -> list[Job]:
    total = args.rounds if gain == 0 else max(CAMPAIGN, args.rounds // GAIN_SHARE)
    seeds = (stream(args.seed, policy, args.model, args.calibrated, gain, i) for i in range(total // CAMPAIGN))
    return [Job(policy, args.model, args.calibrated, args.aa_sessions, gain, CAMPAIGN, s) for s in seeds]


def rows(args: argparse.Namespace, play: partial[Iterable[Tally]] | partial[Iterator[Tally]]) -> Iterator[Row]:
    for policy in args.policy:
        for gain in args.gains:
            out = Tally()
            for one in play(jobs(args, policy, gain)):
                out.add(one)
            yield Row(policy, gain, out)
    for name, rounds in ((STORED, CAMPAIGN), (STORED_FIRST, 1)):
        for gain in args.gains:
            rng = np.random.default_rng(stream(args.seed, name, args.model, gain))
            many = CAMPAIGN * len(jobs(args, args.policy[0], gain)) // rounds
            yield Row(name, gain, play_stored(NOISES[args.model], POLICIES["standard"], gain, many, rng, rounds))


def resolved(args: argparse.Namespace) -> dict[str, float]:
    """Per policy the gain that its confirming sessions resolve, with the median σ_AA of 40 calibrations."""
    out = {}
    for name in args.policy:
        setup = Setup(policy_of(name, args.aa_sessions), NOISES[args.model], NOISES[args.calibrated])
        rng = np.random.default_rng(stream(args.seed, name, "resolved"))
        sigma = float(np.median([calibrate(setup, rng).sigma_aa for _ in range(40)]))
        out[name] = round(stats.resolvable_pct(sigma, POLICIES[name]), 3)
    return out


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    p = argparse.ArgumentParser(prog="python -m turbo_optimize.simulation", description=__doc__)
    p.add_argument("--rounds", type=int, default=20000, help="null rounds; of every gain a quarter")
    p.add_argument("--gains", default="0,1,2,5,-1", help="true gains, percent")
    p.add_argument(
        "--policy", action="append", choices=sorted(POLICIES), help="again for more; default standard, precise"
    )
    p.add_argument("--model", choices=sorted(NOISES), default="h200", help="noise that rounds see")
    p.add_argument("--calibrated", choices=sorted(NOISES), help="noise that BASELINE saw (default: the same)")
    p.add_argument("--aa-sessions", type=int, help="of BASELINE (default: the policy's)")
    p.add_argument("--seed", type=int, default=1)
    p.add_argument("--processes", type=int, default=1)
    p.add_argument("--out", type=Path, help="folder for result.json and accept.svg")
    p.add_argument("--quick", action="store_true", help=f"{QUICK_ROUNDS} null rounds and one gain, in seconds")
    args = p.parse_args(argv)
    if args.quick:
        args.rounds, args.gains = QUICK_ROUNDS, QUICK_GAINS
    try:
        args.gains = [float(g) for g in args.gains.split(",")]
    except ValueError:
        p.error(f"--gains {args.gains!r}: expected percentages with commas between")
    if (
        min(args.rounds // CAMPAIGN, 1 if args.aa_sessions is None else args.aa_sessions, args.processes) < 1
        or min(args.gains) <= -100
    ):
        p.error(f"--rounds from {CAMPAIGN}, --aa-sessions and --processes from 1, --gains above -100")
    args.policy = args.policy or ["standard", "precise"]
    args.calibrated = args.calibrated or args.model
    return args


def write(args: argparse.Namespace, found: Sequence[Row], resolves: dict[str, float]) -> None:
    what = {k: getattr(args, k) for k in ("rounds", "gains", "model", "calibrated", "aa_sessions", "seed")}
    result = {**what, "resolvable_pct": resolves, "rows": [as_json(r) for r in found]}
    drawn = [r for r in found if r.rule != STORED_FIRST]
    args.out.mkdir(parents=True, exist_ok=True)
    (args.out / "result.json").write_text(json.dumps(result, indent=1) + "\n")
    (args.out / "accept.svg").write_text(svg(drawn, f"Accepted changes by their true gain ({args.model} noise)"))


def main(argv: Sequence[str] | None = None) -> None:
    args = parse(argv)
    with ProcessPoolExecutor(args.processes) as pool:
        found = []
        for row in rows(args, partial(pool.map, run) if args.processes > 1 else partial(map, run)):
            t = row.tally
            print(f"{row.rule} {row.gain_pct:+g}%: {t.accepted} of {t.rounds} accepted", file=sys.stderr, flush=True)
            found.append(row)
    print(table(found))
    resolves = resolved(args)
    for name, gain in resolves.items():
        print(f"{name}: its confirming sessions resolve {gain:.2f}% (80%)")
    if args.out:
        write(args, found, resolves)


if __name__ == "__main__":
    main()
