"""A row of benchmark.csv from timed blocks: what a disturbed block does to it, and what can't be told."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.factory import make_manifest
from turbo_optimize.campaign import Campaign
from turbo_optimize.core.errors import CsvError
from turbo_optimize.core.events import Created
from turbo_optimize.core.models import CheckRow, Sample
from turbo_optimize.effects.layout import Layout
from turbo_optimize.effects.repo import Repo
from turbo_optimize.effects.store import MemoryJournal


def row(tmp_path: Path, forward_ms: list[float], step_ms: list[float]) -> dict[str, float]:
    manifest = make_manifest("cpu")
    c = Campaign(Layout(tmp_path), Repo(tmp_path, tmp_path), MemoryJournal([Created(manifest=manifest)]))
    shape = manifest.target_shapes[0]
    blocks = [
        Sample(
            level="screen", session=1, shape=shape.label, quad=i, slot=0, role="B", calls=1, step_ms=step,
            forward_ms=forward_ms[i] if i < len(forward_ms) else None, wall_ms=99.0,
        )
        for i, step in enumerate(step_ms)
    ]  # fmt: skip
    snr = dict.fromkeys(c.schema.correctness, 30.0)
    return c._row(shape, blocks, CheckRow(shape=shape.label, check="PASS", metrics=snr)).values


def test_forward_and_backward_make_the_step(tmp_path: Path) -> None:
    values = row(tmp_path, [1.0, 1.2], [3.0, 3.4])
    assert values["Forward Time (ms)"] + values["Backward Time (ms)"] == pytest.approx(3.2)


def test_a_disturbed_forward_block_does_not_reject(tmp_path: Path) -> None:
    values = row(tmp_path, [1.0, 9.0], [3.0, 3.2, 3.4])
    assert values["Forward Time (ms)"] == 1.0
    assert values["Backward Time (ms)"] == pytest.approx(2.2)


def test_a_forward_that_always_takes_the_whole_step_is_a_named_error(tmp_path: Path) -> None:
    with pytest.raises(CsvError, match="C19"):
        row(tmp_path, [3.5, 3.6], [3.0, 3.2, 3.4])
