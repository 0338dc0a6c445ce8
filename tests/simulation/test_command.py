"""The command, its numbers and its picture."""

from __future__ import annotations

import json
from pathlib import Path
from xml.etree import ElementTree

import pytest

from turbo_optimize.simulation.__main__ import main
from turbo_optimize.simulation.driver import Tally
from turbo_optimize.simulation.plot import svg
from turbo_optimize.simulation.summary import Row, as_json, table, wilson


def test_wilson() -> None:
    assert wilson(5, 10) == pytest.approx((0.2366, 0.7634), abs=1e-4)
    assert wilson(0, 20000) == pytest.approx((0.0, 1.92e-4), abs=1e-6)
    assert wilson(10, 10)[1] == 1.0


def test_a_row_of_null_rounds_counts_campaigns_too() -> None:
    row = as_json(Row("standard", 0.0, Tally(rounds=300, accepted=3, campaigns=[0, 3, 0])))
    assert row["per_100_rounds"] == pytest.approx(1.0)
    assert row["any_in_campaign"] == pytest.approx(1 / 3)


def test_table_is_narrow() -> None:
    row = Row("stored CSV", 0.0, Tally(rounds=20000, accepted=333, sessions=65432, campaigns=[1] * 200))
    assert max(map(len, table([row, row]).splitlines())) <= 80


def test_plot_is_well_formed_and_has_each_rule() -> None:
    rules = ["standard", "precise", "stored CSV"]
    rows = [Row(r, g, Tally(rounds=100, accepted=n)) for r in rules for g, n in ((-1.0, 0), (0.0, 1), (2.0, 99))]
    root = ElementTree.fromstring(svg(rows, "Accepted"))
    ns = "{http://www.w3.org/2000/svg}"
    texts = [t.text for t in root.iter(f"{ns}text")]
    assert all(r in texts for r in rules)
    assert len(list(root.iter(f"{ns}circle"))) == 9


def test_the_same_seed_gives_the_same_numbers_whatever_the_processes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = []
    for i, processes in enumerate("112"):
        out = tmp_path / str(i)
        what = ["--rounds", "100", "--gains", "1", "--policy", "standard", "--seed", "5" if i else "4"]
        main([*what, "--processes", processes, "--out", str(out)])
        found.append(json.loads((out / "result.json").read_text())["rows"])
    assert found[1] == found[2] != found[0]
    assert "standard" in capsys.readouterr().out


@pytest.mark.parametrize("wrong", [["--gains", "a"], ["--rounds", "50"], ["--gains", "-100"], ["--aa-sessions", "0"]])
def test_wrong_input_is_refused_before_anything_runs(wrong: list[str]) -> None:
    with pytest.raises(SystemExit):
        main(wrong)
