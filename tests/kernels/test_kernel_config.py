"""Configurations, the registry, the benchmark command and the project file: one table, told the same everywhere."""

from __future__ import annotations

import copy
import csv
import importlib
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from turbo_kernels import arch, bench, config
from turbo_kernels.registry import FAMILIES, family

ROOT = Path(__file__).parents[2]
NAMES = [f.name for f in FAMILIES]
NO_CAMPAIGN = {"quantization"}  # its outputs are codes and scales: no class of columns has an SNR of those
ADAPTER = ("make_inputs", "rewrite", "forward", "step", "reference", "check", "try_config")


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("architecture", arch.ARCHITECTURES)
def test_every_family_ships_a_configuration_for_every_architecture(name: str, architecture: str) -> None:
    assert set(config.read(name, architecture)) == set(family(name).sections)


@pytest.mark.parametrize("name", NAMES)
def test_every_family_is_public_and_has_an_adapter(name: str) -> None:
    from turbo_kernels import ops

    assert all(callable(getattr(ops, function)) for function in family(name).functions())
    cases = importlib.import_module(f"turbo_kernels.{name}.cases")
    assert all(callable(getattr(cases, f)) for f in ADAPTER)


def test_unknown_names_list_what_there_is() -> None:
    from turbo_kernels import ops

    with pytest.raises(AttributeError, match="gemm, gemm_fp8"):
        _ = ops.gemn
    with pytest.raises(ValueError, match="no operator 'gemn'; there are gemm, gemm_fp8"):
        family("gemn")
    with pytest.raises(config.ConfigError, match=r"gfx90a\.json: no configuration of gemm for gfx90a"):
        config.read("gemm", "gfx90a")


FAULTS = {
    "unknown section 'fwd'; there are forward": lambda c: c.update(fwd=c.pop("forward")),
    "section 'wgrad' is missing": lambda c: c.pop("wgrad"),
    "unknown parameter 'BLOCK_Q'": lambda c: c["dgrad"].update(BLOCK_Q=1),
    "parameter 'GROUP_M' is missing": lambda c: c["dgrad"].pop("GROUP_M"),
    "dgrad.BLOCK_M = 48: legal are 16, 32, 64, 128, 256": lambda c: c["dgrad"].update(BLOCK_M=48),
    "dgrad.num_warps = True": lambda c: c["dgrad"].update(num_warps=True),
    "dgrad.PERSISTENT_TMA = 1: legal are False, True": lambda c: c["dgrad"].update(PERSISTENT_TMA=1),
    "expected {param: value}": lambda c: c.update(quant=4),
}


@pytest.mark.parametrize("said", FAULTS)
def test_a_wrong_configuration_is_an_error_by_name(said: str) -> None:
    content = copy.deepcopy(config.read("gemm_fp8", "sm_90"))
    FAULTS[said](content)
    with pytest.raises(config.ConfigError, match=re.escape(said)):
        config.validate("gemm_fp8", content, "here")


def test_override_is_a_scope() -> None:
    before = config.load("gemm_fp8")
    with config.override("gemm_fp8", "dgrad", {"BLOCK_M": 128}):
        with config.override("gemm_fp8", "dgrad", {"BLOCK_N": 16}):
            inner = config.section("gemm_fp8", "dgrad")
            assert (inner["BLOCK_M"], inner["BLOCK_N"]) == (128, 16)
        assert config.section("gemm_fp8", "dgrad")["BLOCK_N"] == before["dgrad"]["BLOCK_N"]
        assert config.section("gemm_fp8", "forward") == before["forward"]
        assert config.section("gemm", "dgrad") == config.load("gemm")["dgrad"]
    assert config.load("gemm_fp8") == before
    for section, params in (("dgrad", {"BLOCK_M": 17}), ("dgrad", {"X": 1}), ("other", {"BLOCK_M": 16})):
        with pytest.raises(config.ConfigError), config.override("gemm_fp8", section, params):
            pass
    assert config.load("gemm_fp8") == before


def test_the_registry_needs_no_torch() -> None:
    code = (
        "import sys, turbo_kernels.registry, turbo_kernels; sys.exit('torch' in sys.modules or 'triton' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT / "kernels", check=False).returncode == 0


@pytest.mark.skipif(torch.cuda.is_available(), reason="a GPU needs no interpreter")
def test_without_a_gpu_the_interpreter_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arch, "INTERPRET", False)
    with pytest.raises(RuntimeError, match="TRITON_INTERPRET=1"):
        arch.require_runnable(torch.zeros(1))


def test_the_project_file_says_what_the_library_has() -> None:
    from turbo_optimize.core import space as spaces
    from turbo_optimize.projects.loader import load_project

    project = load_project(ROOT / "project.yaml")
    assert list(project.ops) == [name for name in NAMES if name not in NO_CAMPAIGN]
    for name, op in project.ops.items():
        spec = family(name)
        assert (op.variants, op.dtypes) == (spec.variants, spec.dtypes)
        assert {b: v.gpus for b, v in op.backends.items()}.items() <= dict(spec.backends).items()
        for file in (op.adapter, *op.frozen, *op.backends["TRITON"].kernel_source):
            assert (ROOT / file).is_file(), file
        space = op.backends["TRITON"].space
        assert space
        assert set(space.sections) <= set(spec.sections)
        for gpu in op.backends["TRITON"].gpus:
            text = (ROOT / space.file.replace("{gpu}", gpu)).read_text()
            assert all(spaces.fits(space, c, gpu) is None for c in spaces.current(space, text).values())
        for direction in space.directions:
            for section in direction.sections or space.sections:
                for param in direction.params:
                    assert set(space.params[param].values) <= set(spec.sections[section][param]), (
                        direction.name,
                        param,
                    )


def test_the_benchmark_command_writes_the_frozen_columns(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from turbo_optimize.core.schema import schema_for

    for name, layout in bench.LAYOUTS.items():
        schema = schema_for(name, "training")
        assert schema.names() == layout.columns
        assert all(schema.work_of(w, dict.fromkeys(layout.dims, 3)) == getattr(layout, w)(dict.fromkeys(layout.dims, 3))
                   for w in schema.passes)  # fmt: skip
    out = tmp_path / "rows.csv"
    assert (
        bench.main(["gemm", "--dtype", "fp32", "--shapes", "16x24x8,1x17x9x33", "--csv", str(out), "--seconds", "0.01"])
        == 0
    )
    rows = list(csv.DictReader(out.open()))
    assert [(r["label"], r["B"], r["M"], r["N"], r["K"]) for r in rows] == [
        ("16x24x8", "1", "16", "24", "8"),
        ("1x17x9x33", "1", "17", "9", "33"),
    ]
    assert all(r["Check"] == "PASS" and float(r["Backward Time (ms)"]) > 0 for r in rows)
    assert bench.main(["normalization", "--shapes", "5x24", "--csv", str(out), "--seconds", "0.01"]) == 0
    (row,) = csv.DictReader(out.open())
    assert (row["label"], row["rows"], row["cols"], row["Check"]) == ("5x24", "5", "24", "PASS")
    assert float(row["Forward GB/s"]) > 0
    shapes = tmp_path / "shapes.json"
    shapes.write_text(json.dumps([{"label": "mine", "dims": {"B": 1, "M": 2, "N": 3, "K": 4}}]))
    assert bench.parse_shapes(str(shapes)) == [("mine", {"B": 1, "M": 2, "N": 3, "K": 4})]
    wrong = {
        "gemn": "no operator",
        "gemm --dtype fp8": "no dtype 'fp8'",
        "gemm --shapes 4x4": "no shape",
        "gemm --variant x": "no variant",
    }
    for arguments, said in wrong.items():
        assert bench.main([*arguments.split(), "--csv", str(out)]) == 2
        assert said in capsys.readouterr().err
