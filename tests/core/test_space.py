"""The search space: what is near, what fits, and edits that touch one section alone."""

from __future__ import annotations

import json
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from turbo_optimize.core import space as spaces
from turbo_optimize.core.errors import ConfigError, UsageError
from turbo_optimize.core.models import Direction, ParamSpace, Space

TILE = Direction(name="tile", params=("BLOCK_M", "BLOCK_N", "num_warps"))
STAGES = Direction(name="stages", params=("num_stages",), sections=("forward",))
SPACE = Space(
    file="configs/sm_90.json",
    sections=("forward", "dgrad"),
    params={
        "BLOCK_M": ParamSpace(values=(64, 128, 256)),
        "BLOCK_N": ParamSpace(values=(64, 128, 256)),
        "BLOCK_K": ParamSpace(values=(32, 64, 128)),
        "num_warps": ParamSpace(values=(4, 8)),
        "num_stages": ParamSpace(values=(1, 2, 3, 4)),
        "ORDER": ParamSpace(values=("row", "column")),
    },
    directions=(TILE, STAGES),
    fits="gemm_tile",
    operand_bytes=2,
)
CONFIG: spaces.Config = {"BLOCK_M": 64, "BLOCK_N": 64, "BLOCK_K": 32, "num_warps": 4, "num_stages": 2}
TEXT = json.dumps({"forward": CONFIG, "dgrad": CONFIG, "quant": {"num_warps": 4}}, indent=2) + "\n"
ONE_LINE = '{\n  "forward": {"BLOCK_M": 64, "x":  1},\n  "dgrad": {"BLOCK_M": 64},\n  "note": "ü, }"\n}\n'


def pick(seed: int, limit: int = 6, arch: str = "sm_90") -> list[spaces.Config]:
    return spaces.candidates(SPACE, CONFIG, TILE, "forward", arch, random.Random(seed), limit=limit)


def test_candidates_repeat_for_a_seed_and_differ_between_seeds() -> None:
    assert pick(7) == pick(7)
    assert len({json.dumps(pick(seed)) for seed in range(10)}) > 1


def test_candidates_are_the_joint_product_without_the_present_one() -> None:
    every = pick(1, limit=1000)
    assert CONFIG not in every
    assert (
        len(every)
        == len({json.dumps(c) for c in every})
        == len([c for c in spaces.product(SPACE, CONFIG, TILE.params) if spaces.fits(SPACE, c, "sm_90") is None])
    )
    assert all(c["BLOCK_K"] == 32 and c["num_stages"] == 2 for c in every)
    assert all(spaces.fits(SPACE, c, "sm_90") is None for c in every)
    assert not any((c["BLOCK_M"], c["BLOCK_N"], c["num_warps"]) == (256, 256, 8) for c in every)


def test_candidates_put_near_ones_first_and_reach_farther() -> None:
    steps = [spaces.distance(SPACE, CONFIG, c) for c in pick(3)]
    assert steps == sorted(steps)
    assert steps[:3] == [1, 1, 1]
    assert max(steps) > 1


def test_places_that_one_kind_cannot_fill_go_to_the_other() -> None:
    assert len(pick(3, limit=12)) == 12  # 3 near ones exist
    only_near = spaces.candidates(
        SPACE, CONFIG, Direction(name="w", params=("num_warps",)), "forward", "sm_90", random.Random(0), limit=4
    )
    assert [c["num_warps"] for c in only_near] == [8]


def test_direction_of_another_section_is_refused() -> None:
    with pytest.raises(UsageError, match="stages doesn't apply to section dgrad"):
        spaces.candidates(SPACE, CONFIG, STAGES, "dgrad", "sm_90", random.Random(0), limit=4)


def test_neighbours_are_one_value_away() -> None:
    got = spaces.neighbours(SPACE, CONFIG | {"BLOCK_M": 128}, ("BLOCK_M", "num_warps"))
    assert [(c["BLOCK_M"], c["num_warps"]) for c in got] == [(64, 4), (256, 4), (128, 8)]
    undeclared = spaces.neighbours(SPACE, CONFIG | {"BLOCK_M": 96}, ("BLOCK_M",))
    assert [c["BLOCK_M"] for c in undeclared] == [64, 128]


@pytest.mark.parametrize(
    ("arch", "changes", "reason"),
    [
        ("sm_90", {"BLOCK_M": 128, "BLOCK_N": 256, "num_warps": 8}, None),
        ("sm_90", {"BLOCK_M": 256, "BLOCK_N": 256, "num_warps": 8}, "accumulator registers"),
        ("sm_90", {"BLOCK_M": 128, "BLOCK_N": 256, "num_warps": 4}, "accumulator registers"),
        ("gfx942", {"BLOCK_M": 256, "BLOCK_N": 256, "num_warps": 4}, None),  # 256 a lane, and all of 256 are there
        ("gfx942", {"BLOCK_M": 256, "BLOCK_N": 256, "num_warps": 2}, "accumulator registers"),
        # 4 stages of (128 + 128)·128·2 B: 262144 B; AMD keeps 3 of them in LDS
        ("sm_90", {"BLOCK_M": 128, "BLOCK_N": 128, "BLOCK_K": 128, "num_stages": 4}, "262144 B of shared memory"),
        ("gfx950", {"BLOCK_M": 128, "BLOCK_N": 128, "BLOCK_K": 128, "num_stages": 4}, "196608 B of shared memory"),
        ("gfx950", {"BLOCK_M": 128, "BLOCK_N": 128, "BLOCK_K": 128, "num_stages": 3}, None),
        ("gfx942", {"BLOCK_M": 128, "BLOCK_N": 128, "BLOCK_K": 128, "num_stages": 3}, "gfx942 has 65536 B"),
        ("gfx942", {"BLOCK_M": 128, "BLOCK_N": 128, "BLOCK_K": 128, "num_stages": 1}, None),
        ("gfx942", {"num_warps": 32}, "at most 16"),
        ("sm_90", {"num_warps": 32}, None),
        ("sm_90", {"BLOCK_M": 32}, "wgmma"),
        ("sm_90", {"BLOCK_M": 32, "num_warps": 2}, None),
        ("cpu", {"BLOCK_M": 4096, "num_warps": 64}, None),
    ],
)
def test_what_fits(arch: str, changes: dict[str, int], reason: str | None) -> None:
    got = spaces.fits(SPACE, CONFIG | changes, arch)
    assert got is None if reason is None else reason in (got or "")


def test_fits_needs_what_it_reads() -> None:
    assert spaces.fits(SPACE, {"num_warps": 4}, "sm_90") is None  # no tile in that section
    with pytest.raises(ConfigError, match="BLOCK_N"):
        spaces.fits(SPACE, {"BLOCK_M": 64, "BLOCK_K": 32, "num_warps": 4, "num_stages": 2}, "sm_90")
    with pytest.raises(ConfigError, match="none, gemm_tile"):
        spaces.fits(SPACE.model_copy(update={"fits": "magic"}), CONFIG, "sm_90")
    with pytest.raises(UsageError, match="gfx90a"):
        spaces.fits(SPACE, CONFIG, "gfx90a")
    assert spaces.fits(SPACE.model_copy(update={"fits": "none"}), {}, "sm_90") is None


def test_current_reads_the_declared_sections() -> None:
    assert spaces.current(SPACE, TEXT) == {"forward": CONFIG, "dgrad": CONFIG}


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("{", "not JSON"),
        ("[]", "not an object"),
        ('{"forward": {}}', "lacks BLOCK_M"),
        (TEXT.replace('"dgrad"', '"other"'), "no section 'dgrad'"),
        (TEXT.replace('"dgrad"', '"forward"'), "a key stands twice"),
        (TEXT.replace('"num_stages": 2', '"num_stages": [2]'), "forward.num_stages is"),
    ],
)
def test_current_refuses(text: str, what: str) -> None:
    with pytest.raises(ConfigError, match=r"configs/sm_90\.json") as e:
        spaces.current(SPACE, text)
    assert what in str(e.value)


def test_edit_changes_one_section_alone() -> None:
    new = spaces.edit(SPACE, TEXT, "dgrad", {"BLOCK_M": 128})
    assert json.loads(new) == json.loads(TEXT) | {"dgrad": CONFIG | {"BLOCK_M": 128}}
    changed = [(a, b) for a, b in zip(TEXT.splitlines(), new.splitlines(), strict=True) if a != b]
    assert changed == [('    "BLOCK_M": 64,', '    "BLOCK_M": 128,')]
    assert new.endswith("}\n")


def test_edit_keeps_a_one_line_section_on_one_line() -> None:
    new = spaces.edit(SPACE, ONE_LINE, "dgrad", {"BLOCK_M": 128})
    assert new == ONE_LINE.replace('"dgrad": {"BLOCK_M": 64}', '"dgrad": {"BLOCK_M": 128}')
    assert spaces.edit(SPACE, TEXT.rstrip("\n"), "dgrad", {}) == TEXT


@given(st.sampled_from(["forward", "dgrad"]), st.sampled_from([TEXT, ONE_LINE]), st.sampled_from([64, 128, 256]))
def test_edit_is_idempotent(section: str, text: str, block: int) -> None:
    once = spaces.edit(SPACE, text, section, {"BLOCK_M": block, "ORDER": "column"})
    assert spaces.edit(SPACE, once, section, {"BLOCK_M": block, "ORDER": "column"}) == once
    assert json.loads(once)[section]["BLOCK_M"] == block


def test_edit_refuses_what_is_not_declared() -> None:
    with pytest.raises(ConfigError, match="'BLOCK_X' isn't declared"):
        spaces.edit(SPACE, TEXT, "forward", {"BLOCK_X": 1})
    with pytest.raises(ConfigError, match="no section 'quant'"):
        spaces.edit(SPACE, TEXT, "quant", {"num_warps": 8})


def test_diff_config() -> None:
    assert spaces.diff_config(CONFIG, CONFIG | {"BLOCK_M": 128, "num_warps": 8}) == "BLOCK_M 64→128, num_warps 4→8"
    assert spaces.diff_config({"a": 1}, {"b": True}) == "a 1→—, b —→True"
    assert spaces.diff_config(CONFIG, dict(CONFIG)) == ""


def test_directions_left() -> None:
    names = [spaces.identity(s, d) for s, d in spaces.directions_left(SPACE, set())]
    assert names == ["forward/tile", "dgrad/tile", "forward/stages"]
    assert [spaces.identity(s, d) for s, d in spaces.directions_left(SPACE, {"forward/tile", "forward/stages"})] == [
        "dgrad/tile"
    ]
