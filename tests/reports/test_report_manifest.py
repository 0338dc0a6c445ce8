"""manifest.yaml: what is written is read back the same; what a person breaks is named in one line."""

from __future__ import annotations

import pytest
import yaml
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.factory import make_manifest
from turbo_optimize.core.errors import ConfigError
from turbo_optimize.core.models import Manifest, Policy
from turbo_optimize.reports.render import load_manifest, manifest_yaml

WORDS = st.text(st.characters(exclude_categories=["Cs"]), max_size=30)
TABLE = st.dictionaries(WORDS, WORDS, max_size=3)
CHANGES = st.fixed_dictionaries(
    {
        "campaign": WORDS,
        "test_command": WORDS,
        "performance_target": st.none() | WORDS,
        "base_commit": st.from_regex(r"[0-9]{1,6}e?[0-9]{1,6}", fullmatch=True) | st.just("0x1f") | st.just("on"),
        "created": st.sampled_from(["2026-06-01 08:00", "2026-06-01"]),
        "max_rounds": st.integers(1, 119),
        "max_duration": st.none() | st.floats(0.001, 1e9),
        "noise": st.dictionaries(WORDS, st.floats(0, 100), max_size=3),
        "sources": TABLE,
        "environment": TABLE,
        "proposer_args": TABLE,
        "editable": st.lists(WORDS, max_size=3),
        "git_commit": st.booleans(),
        "policy": st.builds(Policy, veto_pct=st.floats(0.1, 50), block_calls=st.integers(1, 99)),
    }
)


@settings(max_examples=60, deadline=None)
@given(CHANGES)
@example({"test_command": "a\x85b", "campaign": "größer — ≥"})
def test_what_is_written_is_read_back(changes: dict):
    m = make_manifest(**changes)
    assert load_manifest(manifest_yaml(m), "manifest.yaml") == m


def test_keys_stand_in_the_model_s_order_with_sources_last():
    keys = list(yaml.safe_load(manifest_yaml(make_manifest())))
    assert keys == list(Manifest.model_fields)
    assert keys[-1] == "sources"


def broken(**changes: object) -> str:
    data = yaml.safe_load(manifest_yaml(make_manifest()))
    for key, value in changes.items():
        if value is None:
            del data[key]
        else:
            data[key] = value
    return yaml.safe_dump(data, sort_keys=False)


CASES = {
    "syntax": ("target_op: [gemm\nseed: 1\n", ["line 2"]),
    "tab": ("target_op: gemm\n\tseed: 1\n", ["line 2"]),
    "twice": ("seed: 1\nseed: 2\n", ["line 2", "'seed' stands twice"]),
    "empty": ("", ["expected a mapping", "nothing"]),
    "list": ("- 1\n", ["expected a mapping", "list"]),
    "unknown": (broken(target_opp="gemm"), ["target_opp: unknown key", "did you mean target_op?"]),
    "far": (broken(zzzzzz=1), ["zzzzzz: unknown key", "known: campaign"]),
    "misspelt": (broken(max_rounds=None, max_round=5), ["max_round: unknown", "mean max_rounds?", "1 more"]),
    "type": (broken(max_rounds="many"), ["max_rounds: expected a valid integer", "got 'many'"]),
    "range": (broken(max_rounds=500), ["max_rounds: expected less than 120, got 500"]),
    "missing": (broken(target_gpu=None), ["target_gpu: expected a value, the key is missing"]),
    "nested": (broken(policy={"vetopct": 3}), ["policy.vetopct: unknown key", "did you mean veto_pct?"]),
    "rule": (broken(policy={"quads": 2, "trim": 1}), ["policy: trim 1 leaves nothing of 2 quads"]),
    "item": (broken(target_shapes=[{"label": "a", "dims": {"M": "x"}}]), ["target_shapes[0].dims.M: expected a valid"]),
    "choice": (broken(schema_class="conv"), ["schema_class: expected 'gemm', 'memory' or 'attention', got 'conv'"]),
    "code": ("a: !!python/object/apply:os.system ['true']\n", ["line 1"]),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_a_defect_is_one_line_with_file_key_and_expectation(name: str):
    text, words = CASES[name]
    with pytest.raises(ConfigError) as e:
        load_manifest(text, "my/manifest.yaml")
    said = str(e.value)
    assert said.startswith("my/manifest.yaml: ")
    assert "\n" not in said
    for word in words:
        assert word in said
