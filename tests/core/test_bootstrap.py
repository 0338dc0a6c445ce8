"""The bootstrap remembers its draws and its answers: neither may change a digit, or old journals would be re-decided."""

from __future__ import annotations

import random
import statistics
import time

import pytest

from turbo_optimize.core import stats
from turbo_optimize.core.models import Session


def plainly(session: Session, trim: int) -> float:
    """The definition: every resample draws each shape's quads anew, from a stream that the session's name seeds."""
    rng = random.Random(f"{session.level}/{session.index}")
    quads = session.quads.values()
    estimates = [
        statistics.fmean(stats.trimmed_mean(rng.choices(q, k=len(q)), trim) for q in quads)
        for _ in range(stats.BOOTSTRAP)
    ]
    return statistics.pstdev(estimates)


@pytest.mark.parametrize("trim", [0, 1, 2])
def test_remembering_changes_no_digit(trim: int) -> None:
    rng = random.Random(trim)
    for index in range(1, 7):
        quads = {
            str(i): tuple(rng.gauss(0, 0.01) for _ in range(rng.choice((1, 2, 4, 5, 8, 14)))) for i in range(index)
        }
        for level in ("screen", "confirm"):
            s = Session(level=level, index=index, quads=quads)
            assert stats.bootstrap_se(s, trim) == plainly(s, trim)
            assert stats.bootstrap_se(s, trim) == plainly(s, trim)  # the remembered one


def test_the_next_step_of_a_decision_pays_nothing() -> None:
    rng = random.Random(7)
    s = Session(level="screen", index=1, quads={str(i): tuple(rng.gauss(0, 0.01) for _ in range(8)) for i in range(5)})

    def seconds(times: int) -> float:
        start = time.perf_counter()
        for _ in range(times):
            stats.bootstrap_se(s, 1)
        return time.perf_counter() - start

    first = seconds(1)
    assert seconds(20) < first
