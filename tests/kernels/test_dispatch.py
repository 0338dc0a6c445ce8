"""The dispatcher: who decides, what is refused and how, what autotune measures and keeps, what other packages would run."""

from __future__ import annotations

import json
import logging
import re
import subprocess
import sys
import time
import types
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from kernel_helpers import DEVICE
from turbo_kernels import autotune as tuner
from turbo_kernels import backends, external, log
from turbo_kernels.backends import MANAGER, BackendError, SettingError, parse
from turbo_kernels.dispatch import AutoKernelDispatcher, Backend

VARIABLES = [
    prefix + name
    for prefix in ("", "PRIMUS_")
    for name in ("TURBO_AUTO_TUNE", *(f"TURBO_{group}_BACKEND" for group in backends.GROUPS))
]


@pytest.fixture(autouse=True)
def _clean(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    for variable in VARIABLES:
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("TURBO_CACHE_DIR", str(tmp_path))
    backends.reset()
    yield
    backends.reset()


def x(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.ones(shape or (16, 16), dtype=dtype, device=DEVICE)


@dataclass
class Fake:
    """A backend that counts its calls, takes its time and multiplies by `factor`."""

    name: str
    factor: float = 2.0
    seconds: float = 0.0
    refuses: str | None = None
    raises: str | None = None
    calls: int = 0

    def run(self, a: torch.Tensor, *rest: Any) -> torch.Tensor:
        self.calls += 1
        time.sleep(self.seconds)
        if self.raises:
            raise RuntimeError(self.raises)
        return a * self.factor

    def backend(self) -> Backend:
        return Backend(self.name, self.run, lambda *args: self.refuses)


def dispatcher(*fakes: Fake, op: str = "gemm", group: str = "GEMM", precision: Any = "bf16",
               **options: Any) -> AutoKernelDispatcher:  # fmt: skip
    fakes = fakes or (Fake("TRITON"), Fake("HIPBLASLT"), Fake("TORCH"), Fake("CK"))
    return AutoKernelDispatcher(op, group, precision, tuple(f.backend() for f in fakes), **options)


def name(d: AutoKernelDispatcher, *args: Any) -> str:
    return d.select(*(args or (x(),))).name


# Who decides


def test_each_level_beats_the_ones_below(monkeypatch: pytest.MonkeyPatch) -> None:
    d = dispatcher(
        Fake("TRITON", seconds=0.02), Fake("HIPBLASLT"), Fake("TORCH", seconds=0.02), Fake("CK", seconds=0.02)
    )
    assert name(d) == "TRITON"
    backends.autotune(True)
    assert name(d) == "HIPBLASLT"
    monkeypatch.setenv("TURBO_GEMM_BACKEND", "CK")
    assert name(d) == "CK"
    backends.set_backend("TORCH", op="gemm")
    assert name(d) == "TORCH"
    backends.set_backend(None, op="gemm")
    assert name(d) == "CK"
    monkeypatch.delenv("TURBO_GEMM_BACKEND")
    assert name(d) == "HIPBLASLT"
    backends.reset()
    assert name(d) == "TRITON"


def test_the_default_goes_by_architecture(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr("turbo_kernels.arch.detect", lambda: "gfx950")
    assert name(dispatcher(default={"gfx950": "HIPBLASLT", "sm_90": "TORCH"})) == "HIPBLASLT"
    assert not caplog.messages
    assert name(dispatcher(default={"sm_90": "TORCH"})) == "TRITON"
    assert caplog.messages == ["gemm: no default for this architecture; TRITON runs it instead"]


@pytest.mark.parametrize("default", ["HIP", {"sm_90": "HIP"}])
def test_a_default_that_is_no_backend_is_refused_at_once(default: Any) -> None:
    with pytest.raises(ValueError, match="gemm: its default HIP is none of its backends TRITON"):
        dispatcher(default=default)


def test_setters_from_narrow_to_wide() -> None:
    kernels = {op: dispatcher(op=op, group=group, precision=precision) for op, group, precision in (
        ("gemm", "GEMM", "bf16"), ("gemm_wgrad", "GEMM", "bf16"), ("gemm_fp8", "GEMM", "fp8"), ("norm", "", "fp32"))}  # fmt: skip

    def chosen() -> list[str]:
        return [name(d) for d in kernels.values()]

    backends.set_backend("ck")
    assert chosen() == ["CK", "CK", "CK", "CK"]
    backends.set_backend("HIPBLASLT", group="gemm")
    assert chosen() == ["HIPBLASLT", "HIPBLASLT", "HIPBLASLT", "CK"]
    backends.set_backend("TORCH", group="GEMM", precision="fp8")
    assert chosen() == ["HIPBLASLT", "HIPBLASLT", "TORCH", "CK"]
    backends.set_backend("TRITON", op="gemm")  # the family, so its wgrad too
    assert chosen() == ["TRITON", "TRITON", "TORCH", "CK"]
    backends.set_backend("CK", op="gemm_wgrad")
    assert chosen() == ["TRITON", "CK", "TORCH", "CK"]
    with backends.using("TORCH", op="gemm"):
        assert chosen() == ["TORCH", "CK", "TORCH", "CK"]
    assert chosen() == ["TRITON", "CK", "TORCH", "CK"]
    backends.reset()
    assert chosen() == ["TRITON"] * 4


def test_an_operator_may_have_another_name_than_its_family() -> None:
    d = dispatcher(op="rmsnorm_backward", group="", precision="bf16")
    for op, backend in (("normalization", "CK"), ("rmsnorm", "TORCH"), ("rmsnorm_backward", "HIPBLASLT")):
        backends.set_backend(backend, op=op)
        assert name(d) == backend


def test_using_restores_after_an_error() -> None:
    d = dispatcher()
    with pytest.raises(KeyError), backends.using("CK"):
        raise KeyError
    assert name(d) == "TRITON"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("CUTLASS",), "no backend 'CUTLASS'; there are TRITON, HIP, HIPBLASLT, TORCH, CK, AITER, DEEP_EP, FLYDSL"),
        (("TRITON", "gem"), "no op 'gem'; there are gemm, gemm_fp8, "),
        (("TRITON", None, "DENSE"), "no group 'DENSE'; there are GEMM, GROUPED_GEMM, ATTENTION, MOE_DISPATCH_COMBINE"),
        (("TRITON", None, None, "int8"), "no precision 'int8'; there are fp4, fp8, bf16, fp16, fp32"),
        (("TRITON", "gemm", "GEMM"), "give one of them"),
    ],
)
def test_setters_refuse_what_does_not_exist(arguments: tuple[Any, ...], message: str) -> None:
    settings = dict(zip(("op", "group", "precision"), arguments[1:], strict=False))
    with pytest.raises(SettingError, match=re.escape(message)) as error:
        backends.set_backend(arguments[0], **settings)
    assert "\n" not in str(error.value)


# The environment


@pytest.mark.parametrize("variable", ["TURBO_GEMM_BACKEND", "PRIMUS_TURBO_GEMM_BACKEND"])
@pytest.mark.parametrize(
    ("value", "fp8", "bf16"),
    [
        ("CK", "CK", "CK"),
        (" ck ", "CK", "CK"),
        ("fp8:CK", "CK", "TRITON"),
        ("fp8:CK,other:TORCH", "CK", "TORCH"),
        ("OTHER:TORCH, FP8:CK", "CK", "TORCH"),
        ("bf16:HIPBLASLT,other:CK", "CK", "HIPBLASLT"),
        ("", "TRITON", "TRITON"),
    ],
)
def test_environment(monkeypatch: pytest.MonkeyPatch, variable: str, value: str, fp8: str, bf16: str) -> None:
    monkeypatch.setenv(variable, value)
    assert (name(dispatcher(precision="fp8")), name(dispatcher(precision=lambda a: "bf16"))) == (fp8, bf16)


@pytest.mark.parametrize("group", backends.GROUPS)
def test_each_group_has_its_variable(monkeypatch: pytest.MonkeyPatch, group: str) -> None:
    monkeypatch.setenv(f"TURBO_{group}_BACKEND", "CK")
    assert {g: name(dispatcher(group=g)) for g in (*backends.GROUPS, "")} == {
        g: "CK" if g == group else "TRITON" for g in (*backends.GROUPS, "")
    }


def test_an_alias_gives_way(monkeypatch: pytest.MonkeyPatch) -> None:
    d = dispatcher()
    monkeypatch.setenv("PRIMUS_TURBO_GEMM_BACKEND", "CK")
    monkeypatch.setenv("TURBO_GEMM_BACKEND", "TORCH")
    assert name(d) == "TORCH"
    monkeypatch.delenv("TURBO_GEMM_BACKEND")
    assert name(d) == "CK"


@pytest.mark.parametrize(
    "value", ["CUTLASS", "fp8:", ":CK", "int8:CK", "fp8:CK,fp8:TORCH", "CK,", "CK TORCH", "fp8=CK"]
)
def test_a_malformed_backend_is_one_line(monkeypatch: pytest.MonkeyPatch, value: str) -> None:
    monkeypatch.setenv("TURBO_GEMM_BACKEND", value)
    with pytest.raises(SettingError) as error:
        dispatcher().select(x())
    text = str(error.value)
    assert text.startswith(f"TURBO_GEMM_BACKEND={value!r}: ")
    assert "TRITON, HIP, HIPBLASLT, TORCH, CK, AITER, DEEP_EP, FLYDSL, AUTOTUNE" in text
    assert "fp4, fp8, bf16, fp16, fp32, other" in text
    assert "\n" not in text


def test_a_malformed_switch_names_its_alias(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PRIMUS_TURBO_AUTO_TUNE", "maybe")
    with pytest.raises(
        SettingError, match=r"^PRIMUS_TURBO_AUTO_TUNE='maybe': 'maybe' isn't legal; a value is one of 1,"
    ):
        dispatcher().select(x())


@pytest.mark.parametrize(
    ("variable", "value", "fp8", "bf16"),
    [
        ("TURBO_AUTO_TUNE", "1", True, True),
        ("TURBO_AUTO_TUNE", "0", False, False),
        ("TURBO_AUTO_TUNE", "fp8:1", True, False),
        ("TURBO_AUTO_TUNE", "fp8:off,other:on", False, True),
        ("PRIMUS_TURBO_AUTO_TUNE", "1", True, True),
        ("TURBO_GEMM_BACKEND", "autotune", True, True),
        ("TURBO_GEMM_BACKEND", "fp8:autotune,other:TRITON", True, False),
    ],
)
def test_autotune_from_the_environment(
    monkeypatch: pytest.MonkeyPatch, variable: str, value: str, fp8: bool, bf16: bool
) -> None:
    monkeypatch.setenv(variable, value)
    for precision, tuned in (("fp8", fp8), ("bf16", bf16)):
        d = dispatcher(Fake("TRITON", seconds=0.01), Fake("TORCH"), precision=precision)
        assert name(d) == ("TORCH" if tuned else "TRITON"), precision


def test_code_turns_the_environments_autotune_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TURBO_AUTO_TUNE", "1")
    backends.autotune(False)
    d = dispatcher(Fake("TRITON", seconds=0.01), Fake("TORCH"))
    assert name(d) == "TRITON"
    backends.autotune(None)
    assert name(d) == "TORCH"


def test_a_launch_parses_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    parsed: list[str] = []
    monkeypatch.setattr(backends, "parse", lambda *args: parsed.append(args[0]) or parse(*args))
    monkeypatch.setenv("TURBO_GEMM_BACKEND", "CK")
    d = dispatcher()
    assert [name(d) for _ in range(100)] == ["CK"] * 100
    assert parsed == ["TURBO_GEMM_BACKEND"]
    monkeypatch.setenv("TURBO_GEMM_BACKEND", "TORCH")
    assert name(d) == "TORCH"


def test_without_cpythons_dict_the_environment_is_read_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backends.os, "environ", dict(TURBO_GEMM_BACKEND="CK"))
    assert name(dispatcher()) == "CK"


# What can't be run


@pytest.mark.parametrize("by", ["set_backend(op=gemm)", "TURBO_GEMM_BACKEND"])
def test_a_forced_backend_that_cannot_says_why(monkeypatch: pytest.MonkeyPatch, by: str) -> None:
    d = dispatcher(Fake("TRITON"), Fake("CK", refuses="K isn't a multiple of 128"), Fake("TORCH"))
    if by == "TURBO_GEMM_BACKEND":
        monkeypatch.setenv(by, "CK")
    else:
        backends.set_backend("CK", op="gemm")
    with pytest.raises(BackendError) as error:
        d(x())
    assert str(error.value) == (
        f"gemm: CK (asked for by {by}) can't run this input: K isn't a multiple of 128; TRITON, TORCH could"
    )


def test_a_forced_backend_that_the_operator_lacks() -> None:
    backends.set_backend("AITER")
    with pytest.raises(
        BackendError, match=r"gemm has no backend AITER \(asked for by set_backend\(\)\); there are TRITON"
    ):
        dispatcher().select(x())


def test_fallback_warns_once_and_names_both(caplog: pytest.LogCaptureFixture) -> None:
    d = dispatcher(Fake("TRITON", refuses="bf16 only"), Fake("HIPBLASLT", refuses="no library"), Fake("TORCH"))
    assert [name(d) for _ in range(3)] == ["TORCH"] * 3
    assert caplog.messages == ["gemm: TRITON can't run this input (bf16 only); TORCH runs it instead"]
    assert caplog.records[0].name == "turbo_kernels"
    assert caplog.records[0].levelno == logging.WARNING


def test_nothing_can() -> None:
    d = dispatcher(Fake("TRITON", refuses="bf16 only"), Fake("TORCH", refuses="too old"))
    with pytest.raises(
        BackendError, match=r"^gemm: no backend can run this input \(TRITON: bf16 only; TORCH: too old\)$"
    ):
        d(x())


def test_a_backend_can_be_added_once() -> None:
    d = dispatcher(Fake("TRITON", refuses="never"))
    d.add(Fake("MINE", factor=5.0).backend())
    assert d(x()).eq(5.0).all()
    backends.set_backend("mine", op="gemm")
    assert name(d) == "MINE"
    with pytest.raises(ValueError, match="gemm: the backend name MINE is taken"):
        d.add(Fake("MINE").backend())


# Autotune


def tuned(*fakes: Fake, **options: Any) -> AutoKernelDispatcher:
    backends.autotune(True)
    return dispatcher(*fakes, **options)


def test_the_fastest_is_measured_once_a_process_and_once_a_machine(tmp_path: Path) -> None:
    slow, fast = Fake("TRITON", seconds=0.02), Fake("TORCH")
    d = tuned(slow, fast)
    assert d(x()).eq(2.0).all()
    measured = slow.calls
    assert measured >= 1 + tuner.LEAST_CALLS
    assert [name(d) for _ in range(5)] == ["TORCH"] * 5
    assert slow.calls == measured
    backends.reset()  # as in another process
    d = tuned(slow, fast)
    assert name(d) == "TORCH"
    assert slow.calls == measured
    (file,) = (p for p in tmp_path.rglob("*") if p.is_file())
    found = json.loads(file.read_text())
    assert found["backend"] == "TORCH"
    assert found["times_us"]["TRITON"] > found["times_us"]["TORCH"] > 0
    assert found["environment"]["torch"] == torch.__version__


@pytest.mark.parametrize(
    "other",
    [
        (x(16, 17),), (x(16, 16, dtype=torch.bfloat16),), (x(16, 32)[:, ::2],), (x(16, 16).t()[:, :8],),
        (torch.ones(16 * 16 + 1, device=DEVICE)[1:].view(16, 16),), (x(), True), (x(), 1), (x(), 1.0), (x(), "1"),
        (x(), (1, 2)), (x(), None), (x(), torch.float32),
    ],
)  # fmt: skip
def test_the_key_tells_inputs_apart(other: tuple[Any, ...]) -> None:
    one, another = tuner.describe((x(),)), tuner.describe(other)
    assert one != another
    assert repr(one) != repr(another)
    assert another == tuner.describe(other)
    assert hash(another) == hash(tuner.describe(other))


def test_the_key_of_equal_inputs_is_the_same() -> None:
    assert tuner.describe((x(),)) == tuner.describe((x() * 3,))
    column = x(16, 2)[:, :1]  # the stride over its one column says nothing
    assert tuner.describe(column) == tuner.describe(column.as_strided((16, 1), (2, 7)))
    assert tuner.describe(True) != tuner.describe(1)


def test_a_later_process_with_other_sources_measures_again(monkeypatch: pytest.MonkeyPatch) -> None:
    fake = Fake("TRITON")
    name(tuned(fake, Fake("TORCH", seconds=0.02)))
    measured = fake.calls
    environment = tuner.environment()
    monkeypatch.setattr(tuner, "environment", lambda: environment | {"turbo_kernels": "changed"})
    backends.reset()
    name(tuned(fake, Fake("TORCH", seconds=0.02)))
    assert fake.calls > measured


@pytest.mark.parametrize("content", ["", "{", "[]", '{"key": 1}', '{"key": "another", "backend": "TORCH"}', "\x00\xff"])
def test_a_corrupt_file_is_measured_again_with_one_line(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, content: str
) -> None:
    fakes = (Fake("TRITON"), Fake("TORCH", seconds=0.02))
    name(tuned(*fakes))
    (file,) = (p for p in tmp_path.rglob("*.json"))
    whole = json.loads(file.read_text())["key"]
    file.write_text(content)
    backends.reset()
    assert name(tuned(*fakes)) == "TRITON"
    assert len(caplog.messages) == 1
    assert str(file) in caplog.messages[0]
    assert json.loads(file.read_text())["key"] == whole
    assert [p for p in tmp_path.rglob("*") if p.is_file()] == [file]


def test_a_cache_that_cannot_be_written_costs_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("TURBO_CACHE_DIR", str(tmp_path / "file"))
    d = tuned(Fake("TRITON", seconds=0.02), Fake("TORCH"))
    assert [name(d), name(d)] == ["TORCH", "TORCH"]
    assert sum("can't be written" in m for m in caplog.messages) == 1


def test_where_the_cache_lies(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert tuner.cache_dir() == tmp_path / "autotune"
    monkeypatch.delenv("TURBO_CACHE_DIR")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert tuner.cache_dir() == tmp_path / "xdg" / "turbo_kernels" / "autotune"
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert tuner.cache_dir() == Path.home() / ".cache" / "turbo_kernels" / "autotune"


def test_a_backend_that_raises_is_left_out(caplog: pytest.LogCaptureFixture) -> None:
    d = tuned(Fake("TRITON", raises="out of LDS\nmore"), Fake("TORCH", seconds=0.01), Fake("CK", refuses="absent"))
    assert name(d) == "TORCH"
    assert caplog.messages == ["autotune: gemm (bf16): TRITON is left out: raised RuntimeError: out of LDS"]


def test_a_wrong_answer_is_left_out(caplog: pytest.LogCaptureFixture) -> None:
    d = tuned(Fake("TRITON", factor=2.1), Fake("CK", seconds=0.005), Fake("TORCH", seconds=0.02))
    assert name(d) == "CK"
    assert len(caplog.messages) == 1
    assert "gemm (bf16): TRITON is left out: disagrees with TORCH: tensor 0: SNR" in caplog.messages[0]


def test_without_a_reference_most_agree(caplog: pytest.LogCaptureFixture) -> None:
    wrong_default = tuned(Fake("TRITON", factor=3.0), Fake("CK", seconds=0.005), Fake("HIP", seconds=0.02))
    assert name(wrong_default) == "CK"
    assert "TRITON is left out: disagrees with CK" in caplog.messages[0]
    one_against_one = tuned(Fake("HIP", factor=3.0), Fake("TRITON", seconds=0.02), op="gemm_x")
    assert name(one_against_one) == "TRITON"


ROWS = torch.arange(64.0).repeat(64, 1) + torch.arange(64.0)[:, None]


def zeroed_row(t: torch.Tensor) -> torch.Tensor:
    return torch.where(torch.arange(64)[:, None] == 5, 0, t)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda t: t, None),
        (lambda t: t * 1.001, None),
        (lambda t: t.bfloat16(), "torch.bfloat16 (64, 64), not torch.float32 (64, 64)"),
        (lambda t: t[:32], "torch.float32 (32, 64), not torch.float32 (64, 64)"),
        (zeroed_row, "SNR"),
        (lambda t: t * 1.05, "SNR"),
        (lambda t: torch.where(t == 5, torch.nan, t), "other elements are infinite or no numbers"),
    ],
)
def test_answers_apart(change: Callable[[torch.Tensor], torch.Tensor], why: str | None) -> None:
    found = tuner.differs([change(ROWS)], [ROWS], "bf16")
    assert (found is None) if why is None else found is not None and why in found


def test_answers_with_codes_indices_and_infinities() -> None:
    codes = torch.arange(256, dtype=torch.uint8)
    nudged = codes.clone()
    nudged[7] += 1
    assert tuner.differs([nudged], [codes], "fp8") is None
    assert "elements differ" in str(tuner.differs([codes + 1], [codes], "fp8"))
    assert "elements differ" in str(tuner.differs([nudged.int()], [codes.int()], "fp8"))
    lse = torch.where(ROWS == 9, -torch.inf, ROWS)
    assert tuner.differs([lse], [lse.clone()], "bf16") is None
    assert tuner.differs([lse], [ROWS], "bf16") is not None
    assert tuner.differs([ROWS], [ROWS, ROWS], "bf16") == "1 tensors, not 2"
    assert tuner.differs([torch.empty(0, 4)], [torch.empty(0, 4)], "bf16") is None


def test_backends_that_write_into_an_argument_are_compared_too(caplog: pytest.LogCaptureFixture) -> None:
    def writes(factor: float, seconds: float) -> Callable[..., None]:
        def run(a: torch.Tensor, out: torch.Tensor) -> None:
            time.sleep(seconds)
            torch.mul(a, factor, out=out)

        return run

    backends.autotune(True)
    d = AutoKernelDispatcher("gemm", "GEMM", "bf16", (
        Backend("TRITON", writes(2.5, 0)), Backend("CK", writes(2, 0.005)), Backend("TORCH", writes(2, 0.02))))  # fmt: skip
    out = torch.zeros(16, 16, device=DEVICE)
    assert d(x(), out) is None
    assert out.eq(2.0).all()
    assert "TRITON is left out" in caplog.messages[0]


def test_where_all_fail_the_default_runs() -> None:
    d = tuned(Fake("TRITON", raises="broken"))
    with pytest.raises(RuntimeError, match="broken"):
        d(x())


def test_a_kept_winner_that_cannot_run_this_input_gives_way() -> None:
    fast = Fake("TORCH")
    d = tuned(Fake("TRITON", seconds=0.01), fast)
    assert name(d) == "TORCH"
    fast.refuses = "not today"
    assert name(d) == "TRITON"


def test_an_argument_without_a_key_means_the_default() -> None:
    d = tuned(Fake("TRITON", seconds=0.01), Fake("TORCH"))
    assert name(d, x(), object()) == "TRITON"


@pytest.mark.parametrize("options", [{"group": "MOE_DISPATCH_COMBINE"}, {"tunable": False}])
def test_collectives_are_not_measured(options: dict[str, Any], caplog: pytest.LogCaptureFixture) -> None:
    fakes = Fake("TRITON", seconds=0.01), Fake("TORCH")
    d = tuned(*fakes, **options)
    assert [name(d), name(d)] == ["TRITON", "TRITON"]
    assert fakes[1].calls == 0
    assert caplog.messages == ["gemm isn't autotuned (autotune()): its ranks must agree on a backend"]


def test_nothing_is_measured_while_a_graph_is_captured(monkeypatch: pytest.MonkeyPatch) -> None:
    fakes = Fake("TRITON", seconds=0.01), Fake("TORCH")
    d = tuned(*fakes)
    with monkeypatch.context() as capture:
        capture.setattr(torch.cuda, "is_initialized", lambda: True)
        capture.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
        assert name(d) == "TRITON"
        assert fakes[1].calls == 0
    assert name(d) == "TORCH"
    with monkeypatch.context() as capture:  # what is known already costs nothing
        capture.setattr(torch.cuda, "is_initialized", lambda: True)
        capture.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
        assert name(d) == "TORCH"


def test_nothing_is_measured_while_a_call_is_traced(monkeypatch: pytest.MonkeyPatch) -> None:
    fakes = Fake("TRITON", seconds=0.01), Fake("TORCH")
    d = tuned(*fakes)
    with torch._subclasses.FakeTensorMode():
        assert name(d, torch.empty(4, 4)) == "TRITON"
    with monkeypatch.context() as compiling:
        compiling.setattr(torch.compiler, "is_compiling", lambda: True)
        assert name(d) == "TRITON"
    assert fakes[1].calls == 0


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="CUDA graphs need a GPU")
def test_a_real_capture() -> None:
    d = tuned(Fake("TRITON", seconds=0.01), Fake("TORCH"))
    a, graph = x(), torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = d(a)
    graph.replay()
    torch.cuda.synchronize()
    assert out.eq(2.0).all()
    assert not MANAGER.tuned
    assert name(d) == "TORCH"


# Other packages


def plain(a: torch.Tensor, b: torch.Tensor, a_scale: torch.Tensor, b_scale: torch.Tensor) -> torch.Tensor:
    return (a.float() * a_scale) @ (b.float() * b_scale).t()


class Tgemm:
    @staticmethod
    def mm(
        inp: torch.Tensor, weights: torch.Tensor, bias: None = None, otype: torch.dtype | None = None
    ) -> torch.Tensor:
        return (inp.float() @ weights.float().t()).to(otype or inp.dtype)


def blocks(scale: torch.Tensor, rows: int, like: torch.Tensor) -> torch.Tensor:
    return scale.repeat_interleave(rows, 0).repeat_interleave(128, 1)[: like.shape[0], : like.shape[1]]


def fake_aiter() -> dict[str, types.ModuleType]:
    """What the published signatures promise, in plain torch."""

    def rowwise(XQ: Any, WQ: Any, x_scale: Any, w_scale: Any, bias: Any = None, dtype: Any = torch.bfloat16) -> Any:
        assert x_scale.shape == (XQ.shape[0], 1) and w_scale.shape == (1, WQ.shape[0]) and bias is None
        return plain(XQ, WQ, x_scale, w_scale.t()).to(dtype)

    def blockwise(XQ: Any, WQ: Any, x_scale: Any, w_scale: Any, dtype: Any = torch.bfloat16) -> Any:
        return plain(XQ, WQ, blocks(x_scale, 1, XQ), blocks(w_scale, 128, WQ)).to(dtype)

    def attention(q: Any, k: Any, v: Any, dropout_p: float = 0.0, softmax_scale: Any = None, causal: bool = False,
                  return_lse: bool = False) -> Any:  # fmt: skip
        scores = torch.einsum("bshd,bthd->bhst", q.float(), k.float()) * softmax_scale
        if causal:
            scores = scores.masked_fill(torch.ones_like(scores, dtype=torch.bool).triu(1), -torch.inf)
        out = torch.einsum("bhst,bthd->bshd", scores.softmax(-1), v.float()).to(q.dtype)
        return (out, scores.logsumexp(-1)) if return_lse else out

    aiter, tuned_gemm, ops, flydsl = (types.ModuleType(n) for n in ("aiter", "tuned_gemm", "ops", "flydsl"))
    vars(aiter).update(
        gemm_a8w8=rowwise, gemm_a8w8_CK=rowwise, gemm_a8w8_blockscale=blockwise, flash_attn_func=attention,
        gemm_a8w8_blockscale_ck=lambda a, b, sa, sb, out: out.copy_(blockwise(a, b, sa, sb, out.dtype)),
    )  # fmt: skip
    vars(tuned_gemm).update(tgemm=Tgemm())
    vars(flydsl).update(flydsl_hgemm=lambda a, b, out_dtype: Tgemm.mm(a, b, otype=out_dtype))
    return {"aiter": aiter, "aiter.tuned_gemm": tuned_gemm, "aiter.ops": ops, "aiter.ops.flydsl": flydsl,
            "flydsl": types.ModuleType("flydsl")}  # fmt: skip


@pytest.fixture
def packages(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for module, content in fake_aiter().items():
        monkeypatch.setitem(sys.modules, module, content)
    monkeypatch.setattr(external, "detect", lambda: "gfx950")
    external.missing.cache_clear()
    yield
    external.missing.cache_clear()


ALL = [(kind, adapter.backend) for kind, adapters in external.KINDS.items() for adapter in adapters]


def of(kind: str, backend: str, *adapt: Any) -> Backend:
    return next(b for b in external.external(kind, *adapt) if b.name == backend)


@pytest.mark.parametrize(("kind", "backend"), ALL, ids=lambda v: v)
def test_what_is_missing_is_said_before_the_arguments_are_looked_at(
    kind: str, backend: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(external.importlib.util, "find_spec", lambda module: None)
    external.missing.cache_clear()
    module, way = external.PACKAGES[backend][0].module, external.PACKAGES[backend][0].install
    try:
        assert of(kind, backend).can_handle() == f"package {module!r} isn't installed: {way}"
    finally:
        external.missing.cache_clear()


def operands(dtype: torch.dtype, m: int = 32, n: int = 256, k: int = 384) -> tuple[torch.Tensor, torch.Tensor]:
    g = torch.Generator().manual_seed(0)
    return torch.randn(m, k, generator=g).to(dtype), torch.randn(n, k, generator=g).to(dtype)


@pytest.mark.usefixtures("packages")
@pytest.mark.parametrize("backend", ["AITER", "FLYDSL"])
def test_external_gemm(backend: str) -> None:
    a, b = operands(torch.bfloat16)
    run = of("gemm", backend, lambda section, a, b: (a, b.t(), a.dtype))
    assert run.can_handle("forward", a, b.t()) is None
    torch.testing.assert_close(run.run("forward", a, b.t()), a @ b.t(), rtol=2e-2, atol=0.3)
    assert "it takes bf16 or fp16" in str(run.can_handle("forward", a.float(), b.t().float()))


@pytest.mark.usefixtures("packages")
@pytest.mark.parametrize("backend", ["AITER", "CK"])
@pytest.mark.parametrize("kind", ["gemm_fp8_rowwise", "gemm_fp8_blockwise"])
def test_external_fp8(kind: str, backend: str) -> None:
    a, b = (t.view(torch.uint8) for t in operands(external.fp8_dtype()))
    if kind == "gemm_fp8_rowwise":
        scales = torch.rand(32, 1) + 0.5, torch.rand(256, 1) + 0.5
        wide = scales
    else:
        scales = torch.rand(32, 3) + 0.5, torch.rand(2, 3) + 0.5
        wide = blocks(scales[0], 1, a), blocks(scales[1], 128, b)
    run = of(kind, backend)
    assert run.can_handle(a, b, *scales, torch.bfloat16) is None
    out = run.run(a, b, *scales, torch.bfloat16)
    expected = plain(a.view(external.fp8_dtype()), b.view(external.fp8_dtype()), *wide).bfloat16()
    assert torch.equal(out, expected)
    assert run.can_handle(a, b, *scales, torch.float32) == "it writes bf16 or fp16, not torch.float32"
    assert "it takes codes in" in str(run.can_handle(a.int(), b, *scales, torch.bfloat16))
    if kind == "gemm_fp8_blockwise":
        assert "steps of 128" in str(run.can_handle(a[:, :100], b[:, :100], *scales, torch.bfloat16))


@pytest.mark.usefixtures("packages")
def test_external_attention() -> None:
    q, k, v = (torch.randn(2, 8, 3, 16, dtype=torch.bfloat16) for _ in range(3))
    run = of("attention", "AITER")
    assert run.can_handle(q, k, v, 0.25, True) is None
    out, lse = run.run(q, k, v, 0.25, True)
    heads_first = [t.transpose(1, 2).float() for t in (q, k, v)]
    expected = torch.nn.functional.scaled_dot_product_attention(*heads_first[:3], is_causal=True, scale=0.25)
    torch.testing.assert_close(out.float(), expected.transpose(1, 2), rtol=1e-2, atol=2e-2)
    assert lse.shape == (2, 3, 8)
    assert "heads of up to 256" in str(run.can_handle(torch.empty(1, 1, 1, 320, dtype=torch.bfloat16), k, v, 1.0, True))


class FakeBuffer:
    """One rank of DeepEP: what is sent is received. Checks the order and names of its arguments."""

    made = 0

    class Config:
        def get_nvl_buffer_size_hint(self, hidden_bytes: int, ranks: int) -> int:
            return hidden_bytes * ranks

        def get_rdma_buffer_size_hint(self, hidden_bytes: int, ranks: int) -> int:
            return 0

    def __init__(self, group: Any, num_nvl_bytes: int = 0, num_rdma_bytes: int = 0) -> None:
        assert (num_nvl_bytes, num_rdma_bytes) == (64, 0)
        FakeBuffer.made += 1

    @staticmethod
    def get_dispatch_config(ranks: int) -> FakeBuffer.Config:
        return FakeBuffer.Config()

    get_combine_config = get_dispatch_config

    def get_dispatch_layout(self, topk_idx: torch.Tensor, num_experts: int) -> tuple[Any, ...]:
        counts = torch.bincount(topk_idx.flatten(), minlength=num_experts)
        return torch.tensor([len(topk_idx)]), None, counts, torch.ones(len(topk_idx), 1, dtype=torch.bool), None

    def dispatch(self, x: torch.Tensor, *, topk_idx: torch.Tensor, topk_weights: torch.Tensor,
                 num_tokens_per_rank: torch.Tensor, num_tokens_per_rdma_rank: None, is_token_in_rank: torch.Tensor,
                 num_tokens_per_expert: torch.Tensor) -> tuple[Any, ...]:  # fmt: skip
        assert is_token_in_rank.all() and num_tokens_per_rank.item() == len(x)
        return x, topk_idx, topk_weights, num_tokens_per_expert.tolist(), ("handle",), "event"

    def combine(self, x: torch.Tensor, handle: Any) -> tuple[Any, ...]:
        assert handle == ("handle",)
        return x, None, "event"


def test_external_dispatch_and_combine(monkeypatch: pytest.MonkeyPatch) -> None:
    deep_ep = types.ModuleType("deep_ep")
    vars(deep_ep).update(Buffer=FakeBuffer)
    monkeypatch.setitem(sys.modules, "deep_ep", deep_ep)
    monkeypatch.setattr(external, "detect", lambda: "sm_90")
    external.missing.cache_clear()
    external._buffer.cache_clear()
    group = type("Group", (), {"size": lambda self: 1})()
    tokens = torch.randn(4, 32).bfloat16()
    topk_idx, weights = torch.tensor([[0], [2], [2], [1]]), torch.rand(4, 1)
    dispatch, combine = of("moe_dispatch", "DEEP_EP"), of("moe_combine", "DEEP_EP")
    assert dispatch.can_handle(tokens, topk_idx, weights, 4, group) is None
    received, indices, received_weights, counts, handle = dispatch.run(tokens, topk_idx, weights, 4, group)
    assert counts == [1, 1, 2, 0]
    assert torch.equal(combine.run(received, handle, group), tokens)
    assert torch.equal(indices, topk_idx)
    assert torch.equal(received_weights, weights)
    assert FakeBuffer.made == 1
    assert dispatch.can_handle(tokens.float()) == "it moves bf16, got torch.float32"
    external._buffer.cache_clear()
    external.missing.cache_clear()


@pytest.mark.usefixtures("packages")
def test_external_kernels_of_a_family_that_writes_into_an_argument() -> None:
    def adapt(name: str, a: torch.Tensor, b: torch.Tensor, c: torch.Tensor, bias: Any = None) -> Any:
        return "it adds no bias" if bias is not None else (a, b.t(), c.dtype)

    a, b = operands(torch.bfloat16)
    c = torch.zeros(32, 256, dtype=torch.bfloat16)
    run = next(iter(external.external("gemm", adapt, lambda out, name, a, b, c: c.copy_(out))))
    assert run.can_handle("forward", a, b.t(), c, torch.zeros(256)) == "it adds no bias"
    assert run.can_handle("forward", a, b.t(), c) is None
    assert run.run("forward", a, b.t(), c) is c
    torch.testing.assert_close(c, a @ b.t(), rtol=2e-2, atol=0.3)


@pytest.mark.usefixtures("packages")
def test_external_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    assert of("gemm", "AITER", lambda *args: "it has no bias").can_handle(1) == "it has no bias"
    monkeypatch.setattr(external, "detect", lambda: "sm_90")
    assert of("gemm", "FLYDSL").can_handle() == "its kernels are for gfx950, this is sm_90"
    with pytest.raises(ValueError, match="no external kernels of kind 'conv'; there are gemm, gemm_fp8_rowwise"):
        external.external("conv")


def test_external_backends_join_a_dispatcher(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(external.importlib.util, "find_spec", lambda module: None)
    external.missing.cache_clear()
    d = AutoKernelDispatcher("gemm", "GEMM", "bf16", (Fake("TRITON").backend(), *external.external("gemm")))
    assert name(d, x(), x(), torch.bfloat16) == "TRITON"
    monkeypatch.setenv("TURBO_GEMM_BACKEND", "AITER")
    with pytest.raises(BackendError, match=r"gemm: AITER \(asked for by TURBO_GEMM_BACKEND\) can't run this input: package "
                       r"'aiter' isn't installed: pip install amd-aiter; TRITON could"):  # fmt: skip
        d(x(), x(), torch.bfloat16)
    external.missing.cache_clear()


# What an import costs, and the log


def test_settings_need_no_torch_and_kernels_no_other_package() -> None:
    source = (
        "import sys, turbo_kernels; from turbo_kernels import backends; backends.set_backend('TRITON', group='GEMM');"
        "assert not {'torch', 'triton'} & set(sys.modules);"
        "import turbo_kernels.external; turbo_kernels.external.external('gemm');"
        "assert not {'aiter', 'flydsl', 'deep_ep'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", source], check=True, env={"PYTHONPATH": ":".join(sys.path)})


@pytest.mark.parametrize("variable", log.VARIABLES)
def test_log_level(variable: str) -> None:
    before = log.LOG.level
    try:
        log.configure({variable: "debug"})
        assert log.LOG.level == logging.DEBUG
        with pytest.raises(ValueError, match=f"^{variable}='loud' is no log level; there are DEBUG, INFO, WARNING"):
            log.configure({variable: "loud"})
    finally:
        log.LOG.setLevel(before)


def test_the_log_reaches_a_terminal() -> None:
    source = "from turbo_kernels.log import LOG; LOG.info('seen'); LOG.debug('hidden')"
    environment = {"PYTHONPATH": ":".join(sys.path), "TURBO_LOG_LEVEL": "INFO"}
    done = subprocess.run([sys.executable, "-c", source], check=True, env=environment, capture_output=True, text=True)
    assert done.stderr == "turbo_kernels INFO: seen\n"
