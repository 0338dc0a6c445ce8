"""The checks of single trials: an honest trial passes, each damage has its code, and the base arms what it can pass."""

from __future__ import annotations

import math
import random
from collections.abc import Callable

import pytest

from turbo_optimize.core.checks import (
    CHECKS,
    LIMITS,
    REPAIRABLE,
    Call,
    Judged,
    Measure,
    Norm,
    Norms,
    heldout_dims,
    short_trial,
    whole_trial,
)
from turbo_optimize.core.trial_checks import (
    TRIAL_CHECKS,
    judge_trial,
    learn,
    repeats,
)

FILLS = ("normal", "ints", "outliers", "structured", "skewed")
Trial = list[tuple[Call, Judged]]


def measure(fill: str, sha: str = "") -> Measure:
    exact = fill == "ints"
    return Measure(snr_db=math.inf if exact else 44.0, tile_db=math.inf if exact else 42.0, of=1024, sha=sha)


def honest(seed: int = 1) -> Trial:
    """A trial of a kernel that does all of its work; its first and its last call have the same bits."""
    made = []
    for call in whole_trial(random.Random(seed), FILLS):
        outputs = {name: measure(call.fill, f"{name}/{call.seed}") for name in ("out", "da")}
        moved = {"out": 0.02, "da": 0.03} if call.how == "poke" else {}
        made.append((call, Judged(passed=True, metrics={"out_snr": 44.0}, outputs=outputs, moved=moved)))
    return made


NORMS = learn([honest(2), honest(3)])


def at(trial: Trial, **of: object) -> int:
    """The first call whose fields are these."""
    return next(i for i, (call, _) in enumerate(trial) if all(getattr(call, k) == v for k, v in of.items()))


def damaged(trial: Trial, i: int, **fields: object) -> Trial:
    call, judged = trial[i]
    return [*trial[:i], (call, judged.model_copy(update=fields)), *trial[i + 1 :]]


def output(trial: Trial, i: int, name: str = "out", **fields: object) -> Trial:
    outputs = dict(trial[i][1].outputs)
    outputs[name] = outputs[name].model_copy(update=fields)
    return damaged(trial, i, outputs=outputs)


def wrong(when: str) -> Callable[[Trial], Trial]:
    """Of the two calls on the same inputs, the one that was written then fails; the other's contents came later."""
    later = ("out",) if when == "now" else ()
    return lambda t: damaged(
        t, 0 if t[0][0].when == when else len(t) - 1, passed=False, detail="out_snr 0.1 dB", later=later
    )


def by_chance(trial: Trial) -> Trial:
    """Wrong at once and right at the end, and yet nothing came late: another call's result happened to be right."""
    return damaged(trial, 0 if trial[0][0].when == "now" else len(trial) - 1, passed=False, detail="out_snr 0.1 dB")


DAMAGES: dict[str, tuple[str, Callable[[Trial], Trial], str]] = {
    "input changed": ("K07", lambda t: damaged(t, 2, changed=("a",)), "a"),
    "late": ("K18", wrong("now"), "later"),
    "right by chance": ("G04", by_chance, "0.1 dB"),
    "overwritten": ("K08", wrong("end"), "overwrote"),
    "nan": ("K01", lambda t: output(t, 3, "da", finite=False, snr_db=math.nan), "da"),
    "shape": ("G04", lambda t: output(t, 1, ok=False), "another shape"),
    "stale": ("K04", lambda t: damaged(t, at(t, how="rewrite"), passed=False, detail="0.2 dB"), "0.2 dB"),
    "judge": ("K12", lambda t: damaged(t, 0, ruined_passes=True), "row of zeros"),
    "own check": ("G04", lambda t: damaged(t, at(t, fill="outliers"), passed=False, detail="3.1 dB"), "3.1 dB"),
    "poked": ("G04", lambda t: damaged(t, at(t, how="poke"), passed=False), "the project's check fails"),
    "tile": ("K02", lambda t: output(t, at(t, fill="structured"), tile_db=19.9), "19.9"),
    "tile of nan": ("K02", lambda t: output(t, 1, tile_db=math.nan), "nan"),
    "integers": ("K03", lambda t: output(t, at(t, fill="ints"), bad=3), "3 of 1024"),
    "element": ("K05", lambda t: damaged(t, at(t, how="poke"), moved={"out": 1.0, "da": 0.0}), "out"),
    "element nan": ("K05", lambda t: damaged(t, at(t, how="poke"), moved={"da": math.nan}), "da"),
    "precision": ("K15", lambda t: output(t, 0, snr_db=42.9), "42.9"),
    "outliers": ("K14", lambda t: output(t, at(t, fill="outliers"), snr_db=42.4), "42.4"),
    "adapter's fill": ("K14", lambda t: output(t, at(t, fill="skewed"), snr_db=math.nan), "skewed"),
    "other bits": ("K23", lambda t: output(t, len(t) - 1, sha="other"), "other bits"),
}  # fmt: skip


def test_an_honest_trial_passes_and_passes_what_it_taught() -> None:
    assert all(judge_trial(honest(seed), NORMS) is None for seed in range(20))


@pytest.mark.parametrize("name", DAMAGES)
def test_each_damage_has_its_code(name: str) -> None:
    code, damage, said = DAMAGES[name]
    for seed in range(4):  # whichever of the two equal calls is written first
        found = judge_trial(damage(honest(seed)), NORMS)
        assert found is not None
        assert found.code == code
        assert said in found.detail


def test_every_trial_check_is_damaged_above() -> None:
    assert {code for code, _ in TRIAL_CHECKS} == {code for code, _, _ in DAMAGES.values()}


@pytest.mark.parametrize(
    ("name", "damage"),
    [
        ("tile at 20 dB", lambda t: output(t, 1, tile_db=20.0)),
        ("1 dB less", lambda t: output(output(t, 0, snr_db=43.0), len(t) - 1, snr_db=43.0)),
        ("1.5 dB less on outliers", lambda t: output(t, at(t, fill="outliers"), snr_db=42.5)),
        ("half followed", lambda t: damaged(t, at(t, how="poke"), moved={"out": 0.5})),
        ("rounded normal results", lambda t: output(t, 1, bad=900)),
        ("less precise after a rewrite", lambda t: output(t, at(t, how="rewrite"), snr_db=30.0)),
    ],
)
def test_what_is_allowed(name: str, damage: Callable[[Trial], Trial]) -> None:
    assert judge_trial(damage(honest()), NORMS) is None


def test_causes_come_before_what_they_bring_about() -> None:
    both = damaged(output(honest(), 1, finite=False), 1, changed=("b",), passed=False)
    found = judge_trial(both, NORMS)
    assert found is not None
    assert found.code == "K07"
    late = wrong("now")(honest())  # it isn't its precision that is wrong
    found = judge_trial(output(late, 0, snr_db=0.0, tile_db=0.0), NORMS)
    assert found is not None
    assert found.code == "K18"


# -- what the base arms --------------------------------------------------------------------------------------------------
def armed_by(base: Trial) -> Norms:
    return learn([honest(2), base])


@pytest.mark.parametrize(
    ("name", "base"),
    [
        ("stale", lambda t: damaged(t, at(t, how="rewrite"), passed=False)),
        ("late", lambda t: damaged(t, 1, passed=False)),
        ("overwritten", lambda t: damaged(t, 1, passed=False)),
        ("judge", lambda t: damaged(t, 1, ruined_passes=True)),
        ("own check", lambda t: damaged(t, at(t, fill="outliers"), passed=False)),
        ("tile", lambda t: output(t, at(t, fill="structured"), tile_db=21.0)),
        ("integers", lambda t: output(t, at(t, fill="ints"), bad=1)),
        ("element", lambda t: damaged(t, at(t, how="poke"), moved={"out": 0.4})),
        ("precision", lambda t: output(t, at(t, how="rewrite"), snr_db=43.0)),
        ("outliers", lambda t: output(t, at(t, fill="outliers"), snr_db=42.0)),
        ("adapter's fill", None),
        ("other bits", lambda t: output(t, len(t) - 1, sha="other")),
    ],
)
def test_a_check_that_the_base_cant_pass_isnt_armed(name: str, base: Callable[[Trial], Trial] | None) -> None:
    code, damage, _ = DAMAGES[name]
    norms = armed_by(base(honest(5))) if base else NORMS
    trial = damage(honest())
    if name == "adapter's fill":  # a kind that the base has never seen
        norms = norms.model_copy(update={"fills": {k: v for k, v in norms.fills.items() if k != "skewed"}})
        trial = output(honest(), at(trial, fill="skewed"), snr_db=1.0)
    found = judge_trial(trial, norms)
    assert found is None or found.code != code
    assert judge_trial(trial, NORMS) is not None


def test_without_a_base_only_what_needs_none_is_armed() -> None:
    armed = {}
    for name, (_, damage, _) in DAMAGES.items():
        if name != "tile of nan":
            found = judge_trial(damage(honest()), Norms())
            armed |= {name: found.code} if found else {}
    # the adapter's fill is damaged to NaN there, which is less than any figure
    assert armed == {"input changed": "K07", "nan": "K01", "shape": "G04", "adapter's fill": "K14"}


@pytest.mark.parametrize("name", ["input changed", "nan", "shape", "tile of nan"])
def test_what_the_base_itself_does_is_no_candidates_fault(name: str) -> None:
    """Checks that ask the base for no figure are off where the base fails them, and only they."""
    code, damage, _ = DAMAGES[name]
    norms = armed_by(damage(honest(5)))
    assert code in norms.off
    assert judge_trial(damage(honest(5)), norms) is None  # what taught it
    assert judge_trial(damage(honest()), norms) is None
    for other, (its, harm, _) in DAMAGES.items():
        if name == "input changed" and other != name:  # it touches no figure: all the others stay armed
            found = judge_trial(harm(honest()), norms)
            assert found is not None
            assert found.code == its
    assert not NORMS.off


def test_learn_takes_the_worst_of_every_figure() -> None:
    base = honest(7)
    base = output(base, at(base, how="rewrite"), snr_db=41.0, tile_db=35.0)
    base = output(base, at(base, fill="ints"), name="da", bad=1)
    base = damaged(base, at(base, how="poke"), moved={"out": 0.2})
    norms = learn([honest(2), base, honest(3)])
    normal = norms.of("normal")
    assert normal.snr_db == {"out": 41.0, "da": 44.0}
    assert normal.tile_db == {"out": 35.0, "da": 42.0}
    assert normal.moved == pytest.approx(0.2)
    assert normal.passes
    assert not norms.of("ints").exact
    assert learn([honest(2)]).of("ints").exact
    assert set(norms.fills) == set(FILLS)
    assert norms.of("never seen") == Norm()
    assert norms.deterministic
    assert norms.rejects_ruined
    assert not learn([honest(2), damaged(honest(3), 0, ruined_passes=True)]).rejects_ruined
    assert not learn([honest(2), output(honest(3), 0, sha="other")]).deterministic


def test_an_element_that_no_output_shows_isnt_asked_for() -> None:
    t = honest()
    unseen = damaged(t, at(t, how="poke"), moved={})
    assert learn([unseen]).of("normal").moved == 1.0


def test_repeats_compares_fresh_calls_of_one_seed_and_kind() -> None:
    t = honest()
    assert repeats(t)
    first, other = t[0][0], Judged(passed=True, outputs={"out": measure("normal", "other")})
    for call in (first.model_copy(update={"how": "rewrite"}), first.model_copy(update={"fill": "ints"})):
        assert repeats([*t, (call, other)])
    assert not repeats(output(t, len(t) - 1, name="da", sha="other"))


# -- which calls ---------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("seed", range(8))
def test_a_whole_trial_has_every_kind_of_call(seed: int) -> None:
    calls = whole_trial(random.Random(seed), FILLS)
    first, rewritten, poked, alone, *others, again = calls
    assert (first.how, first.fill, first.inputs) == ("fresh", "normal", True)
    assert (rewritten.how, poked.how) == ("rewrite", "poke")  # of the first call's tensors, in this order
    assert (alone.what, alone.how, alone.fill, alone.when) == ("forward", "fresh", "normal", "now")
    assert {c.what for c in calls if c != alone} == {"step"}
    assert (again.how, again.fill, again.seed) == ("fresh", "normal", first.seed)
    assert {first.when, again.when} == {"now", "end"}
    assert sorted(c.fill for c in others) == sorted(FILLS[1:])
    assert {c.how for c in others} == {"fresh"}
    assert len({c.seed for c in calls}) == len(calls) - 1
    assert sum(c.inputs for c in calls) == 1


def test_seeds_order_and_times_are_not_known_beforehand() -> None:
    trials = [whole_trial(random.Random(seed), FILLS) for seed in range(40)]
    assert len({t[0].seed for t in trials}) == len(trials)
    assert {t[0].when for t in trials} == {"now", "end"}
    assert len({tuple(c.fill for c in t) for t in trials}) > 5
    assert whole_trial(random.Random(3), FILLS) == trials[3]


def test_a_short_trial_keeps_one_call_to_the_end_and_judges_integers() -> None:
    for seed in range(8):
        normal, ints = short_trial(random.Random(seed))
        assert (normal.fill, normal.how, normal.when) == ("normal", "fresh", "end")
        assert (ints.fill, ints.how, ints.when) == ("ints", "rewrite", "now")
        assert normal.seed != ints.seed
    assert len({short_trial(random.Random(s))[0].seed for s in range(20)}) == 20


@pytest.mark.parametrize("largest", [24, 32, 400])
def test_heldout_sizes_are_odd_or_prime_and_bounded(largest: int) -> None:
    dims = {"B": 3, "H": 8, "S": 4096, "D": 128, "M": 4096, "N": 64, "K": 7168}
    found = [heldout_dims(dims, random.Random(seed), largest) for seed in range(200)]
    assert all((d["B"], d["H"], d["D"]) == (3, 8, 128) for d in found)
    sizes = {d[k] for d in found for k in "SMNK"}
    assert all(5 <= n <= largest and n % 2 for n in sizes)
    assert all(list(d) == list(dims) for d in found)
    assert len(sizes) > 5
    assert {n % 16 for n in sizes} >= {1, 15}  # one beside a multiple of a tile


def test_the_catalogue() -> None:
    codes = {code for code, _ in LIMITS.values()} | set(CHECKS)
    assert {f"K{i:02}" for i in range(1, 25)} == set(CHECKS)
    assert {code for code, _ in LIMITS.values()} == {f"L{i:02}" for i in range(1, 10)}
    assert {code for code in REPAIRABLE if not code.startswith("G")} <= codes
