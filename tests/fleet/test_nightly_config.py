"""The nightly file: what it says, and one line about what it says wrongly."""

from __future__ import annotations

import inspect
from pathlib import Path

import pytest

from turbo_optimize.cli import start
from turbo_optimize.core.errors import ConfigError
from turbo_optimize.fleet.config import FLAGS, load_night

GOOD = "name: n\ndefaults: {backend: TRITON, max_rounds: 4}\ntargets: [{op: gemm, max_rounds: 9}, {op: gemm_fp8}]\n"

ONE = "name: n\ntargets: [{op: gemm, backend: T"


def load(tmp_path: Path, text: str):
    path = tmp_path / "night.yaml"
    path.write_text(text)
    return load_night(path)


def test_defaults_fill_what_a_target_leaves_open(tmp_path: Path):
    night = load(tmp_path, GOOD)
    assert [(t.backend, t.max_rounds) for t in night.targets] == [("TRITON", 9), ("TRITON", 4)]
    assert [t.label for t in night.targets] == ["gemm_triton", "gemm_fp8_triton"]
    assert night.regression_pct == 5
    assert night.timeout_s == 12 * 3600


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("name: [n\n", "line 2: not YAML"),
        ("- a\n", "a list at the top"),
        ("name: n\n", "targets: required, and missing"),
        ("name: n\ntargets: []\n", "targets: at least one target"),
        ("name: n\ntargets: 3\n", "targets: "),
        ("name: n\ntargets: [{op: gemm, backend: T}]\nregresion_pct: 4\n", "did you mean regression_pct?"),
        (f"{ONE}, max_round: 4}}]\n", "targets.0.max_round: no such key; did you mean max_rounds"),
        (f"{ONE}}}]\ndefaults: {{polcy: cpu}}\n", "defaults.polcy: no such key; did you mean policy"),
        (f"{ONE}, max_rounds: many}}]\n", "targets.0.max_rounds: input should be a valid integer"),
        (f"{ONE}, max_rounds: 120}}]\n", "targets.0.max_rounds: input should be less than 120"),
        (f"{ONE}, max_duration: soon}}]\n", "targets.0.max_duration: 'soon': expected a duration"),
        ("name: n\ntargets: [{op: gemm, backend: T, gpu: H20}]\n", "no GPU called 'H20'"),
        ("name: n\ntargets: [{op: gemm}]\n", "targets.0.backend: required, here or under defaults"),
        ("name: n\ntargets: [{backend: T}]\n", "targets.0.op: required, here or under defaults"),
        (f"{ONE}}}]\nregression_pct: 0\n", "regression_pct: input should be greater than 0"),
        ("name: n\ntimeout: 5\ntargets: [{op: gemm, backend: T}]\n", "timeout: "),
        ("name: n\ntargets: [{op: g, backend: T}, {op: g, backend: t}]\n", "targets.1: is called g_t, as targets.0 is"),
        ("name: n\ntargets: [{name: x, op: g, backend: T}, {name: X, op: h, backend: T}]\n", "targets.1: is called X"),
        ("name: n\ntargets: [{name: ../x, op: g, backend: T}]\n", "targets.0.name: "),
    ],
)  # fmt: skip
def test_a_malformed_file_is_one_line(tmp_path: Path, text: str, said: str):
    with pytest.raises(ConfigError) as raised:
        load(tmp_path, text)
    line = str(raised.value)
    assert said in line
    assert "night.yaml" in line
    assert "\n" not in line
    assert raised.value.hint


def test_no_such_file(tmp_path: Path):
    with pytest.raises(ConfigError, match="no such file"):
        load_night(tmp_path / "nothing.yaml")


def test_a_made_label_is_a_file_name(tmp_path: Path):
    (target,) = load(tmp_path, 'name: n\ntargets: [{op: "../../x y", backend: T, gpu: auto}]\n').targets
    assert target.label == "..-..-x-y_t"


def test_every_option_is_one_of_start():
    known = {p.default.param_decls[0] for p in inspect.signature(start.command).parameters.values()}
    assert set(FLAGS.values()) <= known


def test_the_shipped_example_is_good():
    night = load_night(Path(__file__).parents[2] / "campaigns" / "nightly.yaml")
    assert {(t.op, t.backend) for t in night.targets} == {("gemm", "TRITON"), ("gemm_fp8", "TRITON")}
