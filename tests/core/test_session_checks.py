"""The checks of a candidate's processes: timed sessions, launches, training steps, files. Each with what it lets pass."""

from __future__ import annotations

import math

import pytest

from turbo_optimize.core.checks import Norms
from turbo_optimize.core.session_checks import (
    clock,
    crowd,
    events,
    launches,
    left_behind,
    receipts,
    training,
)


@pytest.mark.parametrize(
    ("incumbent", "candidate", "fine"),
    [
        (44.0, 44.0, True),
        (44.0, 41.0, True),
        (44.0, 40.9, False),
        (math.inf, 57.0, True),  # an exact incumbent asks for 60 dB, not for exactness
        (math.inf, 56.9, False),
        (math.inf, math.inf, True),
        (5.0, 3.0, True),
        (5.0, 2.9, False),  # under 3 dB it isn't the same result, whatever the incumbent has
        (-40.0, -40.0, False),
        (44.0, -math.inf, False),  # outputs of another length, or NaN among them
        (44.0, math.nan, False),
    ],
)
def test_receipts_are_as_good_as_the_incumbents(incumbent: float, candidate: float, fine: bool) -> None:
    assert (receipts(incumbent, candidate) is None) == fine


CLOCKS = [
    ("as the incumbent's", [0.95, 0.9, 0.97], [0.96, 0.94, 0.95], 50.0, True),
    ("every block a tenth short", [0.84, 0.85, 0.83], [0.95, 0.95, 0.95], 60.0, False),
    ("one block says the usual: the machine was disturbed", [0.5, 0.5, 0.94], [0.95, 0.95, 0.95], 200.0, True),
    ("says too much: that harms itself alone", [3.0, 3.1, 2.9], [0.95, 0.95, 0.95], 50.0, True),
    ("the incumbent disturbed too", [0.8, 0.7, 0.8], [0.2, 0.85, 0.86], 200.0, True),
    ("short by less than 5 ms of a block", [0.5, 0.5, 0.5], [0.95, 0.95, 0.95], 11.0, True),
    ("short by just over 5 ms", [0.5, 0.5, 0.5], [0.95, 0.95, 0.95], 11.2, False),
    ("a stopped clock", [1e-5, 1e-5], [0.95, 0.95], 10.0, False),
    ("nothing was claimed", [], [0.95], 50.0, True),
]


@pytest.mark.parametrize(("what", "candidate", "incumbent", "block_ms", "fine"), CLOCKS)
def test_a_clock_that_says_too_little(
    what: str, candidate: list[float], incumbent: list[float], block_ms: float, fine: bool
) -> None:
    assert (clock(candidate, incumbent, block_ms) is None) == fine, what


@pytest.mark.parametrize(
    ("ratio", "incumbent", "fine"),
    [
        (1.0, 1.0, True),
        (1.25, 1.0, True),
        (1.26, 1.0, False),
        (2.4, 2.0, True),
        (2.6, 2.0, False),
        (1.2, 0.5, True),
        (1.26, 0.5, False),
    ],
)
def test_work_beside_the_stream(ratio: float, incumbent: float, fine: bool) -> None:
    assert (events(ratio, incumbent) is None) == fine


BASE = Norms(kernels=("_matmul", "ampere_cublas_copy"), ops=("aten.empty", "aten.mm"))
LAUNCHES = [
    ("the base's own", ["_matmul"], ["aten.empty", "aten.mm"], BASE, None),
    ("another kernel of the target", ["_matmul_split", "_matmul"], ["aten.empty"], BASE, None),
    ("plain operations", ["_matmul"], ["aten.add", "aten.t", "aten.zeros"], BASE, None),
    ("a library's kernel that the base has, in other letters", ["Ampere_CUBLAS_copy"], [], BASE, None),
    ("a library's product", ["_matmul"], ["aten.linear"], BASE, "aten.linear"),
    ("scaled product", ["_matmul"], ["aten._scaled_mm"], BASE, "aten._scaled_mm"),
    ("a library's kernel", ["_matmul", "sm90_xmma_gemm_bf16"], [], BASE, "sm90_xmma_gemm_bf16"),
    ("an AMD library's", ["_matmul", "Cijk_Ailk_Bljk_BBS"], [], BASE, "Cijk_Ailk_Bljk_BBS"),
    ("no kernel at all", [], ["aten.empty"], BASE, "no kernel of the target ran"),
    ("nothing known of the base", [], ["aten.mm"], Norms(), None),
    ("a base without kernels of its own", [], ["aten.add"], Norms(ops=("aten.add",)), None),
]  # fmt: skip


@pytest.mark.parametrize(("what", "kernels", "ops", "norms", "said"), LAUNCHES)
def test_a_library_in_the_targets_place(
    what: str, kernels: list[str], ops: list[str], norms: Norms, said: str | None
) -> None:
    found = launches(kernels, ops, norms)
    assert (found is None) == (said is None), what
    assert said is None or (found and said in found)


PASSED = {"1": True, "4": True, "7": True}
EIGHT = [4, 4, 4, 4, 4, 4, 4, 4]
TRAINING = [
    ("honest", PASSED, EIGHT, False, None),
    ("a wrong step", PASSED | {"4": False}, EIGHT, False, "step 4"),
    ("a wrong step, with a weight cache", PASSED | {"7": False}, EIGHT, True, "step 7"),
    ("a hit", PASSED, [4, 4, 3, 4, 4, 4, 4, 4], False, "step 2 of a training run launches 3 kernels, others 4"),
    ("a hit while the weight changed", PASSED, [4, 4, 3, 4, 4, 4, 4, 4], True, "step 2"),
    ("accumulation", PASSED, [4, 4, 4, 3, 4, 4, 4, 3], True, None),
    ("accumulation, without having said so", PASSED, [4, 4, 4, 3, 4, 4, 4, 3], False, "step 3"),
    ("accumulation and more", PASSED, [4, 4, 4, 3, 4, 3, 4, 3], True, "step 5"),
    ("everything is kept after the first", PASSED, [4, 0, 0, 0, 0, 0, 0, 0], False, "step 1"),
    ("nothing is counted", PASSED, [0], False, None),
]


@pytest.mark.parametrize(("what", "passed", "counts", "weight_cache", "said"), TRAINING)
def test_training_steps(
    what: str, passed: dict[str, bool], counts: list[int], weight_cache: bool, said: str | None
) -> None:
    found = training(passed, counts, weight_cache)
    assert (found is None) == (said is None), what
    assert said is None or (found and said in found)


@pytest.mark.parametrize(
    ("before", "after", "said"),
    [
        ((4, 1), (4, 1), None),
        ((4, 1), (2, 1), None),
        ((4, 1), (5, 1), "1 new threads"),
        ((4, 1), (4, 2), "2 processes where there was 1"),
        ((4, 0), (4, 1), None),  # one is the worker itself
        ((4, 3), (4, 3), None),  # what compiling started was there before
    ],
)
def test_crowd(before: tuple[int, int], after: tuple[int, int], said: str | None) -> None:
    found = crowd(before, after)
    assert (found is None) == (said is None)
    assert said is None or (found and said in found)


COMPILERS = [
    "triton/AB12/kernel.cubin", "triton/AB12/kernel.json", "triton/AB12/kernel.ttir", "triton/AB12/kernel.hsaco",
    "triton/CD/__triton_launcher.cpython-311-x86_64-linux-gnu.so", "extensions/mine/mine.o", "inductor/ab/cab.py",
    "outputs/call0_out.bin", "home/.nv/ComputeCache/index", "home/.triton/dump/x", "home/.cache/mesa/a",
]  # fmt: skip


def test_what_compilers_write_is_no_finding() -> None:
    assert left_behind([]) is None
    assert left_behind(COMPILERS) is None


@pytest.mark.parametrize(
    "file",
    [
        "tmp/out.pt",
        "work/notes",
        "home/out.bin",
        "home/.bashrc",
        "home/.nvidia/x",
        "triton/AB12/answers.pt",
        "a.bin",
        "cache/x",
    ],
)
def test_what_else_is_left_is_one(file: str) -> None:
    found = left_behind([*COMPILERS, file])
    assert found is not None
    assert file in found
