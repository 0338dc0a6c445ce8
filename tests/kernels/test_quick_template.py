"""The rendered quick_test_bench.py, driven as the runner and as a person drive it: real processes, the interpreter."""

from __future__ import annotations

import base64
import csv
import io
import json
import math
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any

import jinja2
import pytest
import torch

from turbo_optimize.core.checks import Call, Judged, short_trial, whole_trial
from turbo_optimize.core.trial_checks import judge_trial, learn

ROOT = Path(__file__).parents[2]
SHAPE = {"label": "tiny", "dims": {"B": 1, "M": 16, "N": 24, "K": 16}}
COLUMNS = (
    "label,B,M,N,K,Check,Forward TFLOPS,Forward TFLOPS_stddev,Backward TFLOPS,Backward TFLOPS_stddev,"
    "Forward Time (ms),Backward Time (ms),out_snr,da_snr,db_snr"
)
VARIANTS = {"gemm": "default", "gemm_fp8": "blockwise"}
OUTPUTS = ("da", "db", "out")
Asked = dict[str, Any]

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="renders for the cpu target")


def render(folder: Path, op: str, shapes: list[Asked], **changes: Any) -> Path:
    values = {
        "op": op, "variant": VARIANTS[op], "dtype": "bf16", "gpu": "cpu", "execution_mode": "training",
        "adapter": f"kernels/turbo_kernels/{op}/cases.py", "import_roots": ["kernels"],
        "import_name": f"turbo_kernels.{op}.ops", "shapes": shapes, "representative": ["tiny"], "schema_class": "gemm",
        "columns": COLUMNS.split(","), "unit": "TFLOPS", "worktree": str(ROOT),
    }  # fmt: skip
    script = folder / "quick_test_bench.py"
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(ROOT / "templates"), undefined=jinja2.StrictUndefined, keep_trailing_newline=True
    )
    text = environment.get_template("quick_test_bench.py.j2").render(values | changes)
    script.write_text(text, encoding="utf-8")
    return script


class Process:
    """The script in worker or checker mode: `ask` sends one request and reads one answer."""

    def __init__(self, script: Path, mode: str) -> None:
        ours, theirs = os.pipe()
        self.process = subprocess.Popen(
            [sys.executable, "-I", str(script), f"--{mode}", "--reply-fd", str(theirs)],
            stdin=subprocess.PIPE, pass_fds=[theirs], stderr=subprocess.DEVNULL,
        )  # fmt: skip
        os.close(theirs)
        self.replies = os.fdopen(ours, encoding="utf-8")
        self.greeting: Asked = {}

    def ask(self, cmd: str, **request: Any) -> Asked:
        assert self.process.stdin
        self.process.stdin.write(json.dumps({"cmd": cmd, **request}).encode() + b"\n")
        self.process.stdin.flush()
        return json.loads(self.replies.readline())

    def block(self, label: str, **request: Any) -> Asked:
        """One block as the runner times it: armed, run, its receipt; `ms` is the worker's word, `wall_ms` ours."""
        assert self.ask("arm", label=label, **request) == {"ok": True}
        began = time.perf_counter()
        answer = self.ask("go")
        values = self.ask("receipt", at=77, count=32)["values"]
        return {**answer, "values": values, "wall_ms": 1e3 * (time.perf_counter() - began)}


@contextmanager
def running(script: Path, *modes: str, tree: Path = ROOT) -> Iterator[list[Process]]:
    """Started side by side, greeted, and ended by the end of their input."""
    started = [Process(script, mode) for mode in modes]
    try:
        for p in started:
            p.greeting = p.ask("hello", tree=str(tree))
        yield started
    finally:
        for p in started:
            assert p.process.stdin
            p.process.stdin.close()
            p.process.wait(timeout=20)
            p.replies.close()
    assert all(p.process.returncode == 0 for p in started)


def judged_trial(worker: Process, checker: Process, folder: Path, calls: tuple[Call, ...], shape: Asked = SHAPE) -> Any:
    """A trial through both processes: [(call, what the checker measured)]."""
    request = {"shape": shape, "dir": str(folder), "calls": [c.model_dump() for c in calls]}
    made = worker.ask("trial", **request)
    assert made["ok"], made
    judged = checker.ask("check", **request, answers=made["calls"])
    assert judged["ok"], judged
    return [(c, Judged.model_validate(j)) for c, j in zip(calls, judged["calls"], strict=True)]


@pytest.fixture(scope="module")
def gemm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Process]]:
    """Worker and checker of the in-tree GEMM: starting them takes longer than most of what is asked of them."""
    with running(render(tmp_path_factory.mktemp("gemm"), "gemm", []), "worker", "checker") as pair:
        yield pair


# -- an honest op passes everything ------------------------------------------------------------------------------------
def test_an_honest_gemm_passes_everything(gemm: list[Process], tmp_path: Path) -> None:
    assert_honest(*gemm, "gemm", tmp_path)


def test_an_honest_gemm_fp8_passes_everything(tmp_path: Path) -> None:
    with running(render(tmp_path, "gemm_fp8", []), "worker", "checker") as (worker, checker):
        assert_honest(worker, checker, "gemm_fp8", tmp_path)


def assert_honest(worker: Process, checker: Process, op: str, folder: Path) -> None:
    assert_identified(worker, checker, op)
    trial = judged_trial(worker, checker, folder, whole_trial(random.Random(1), worker.greeting["fills"]))
    normal = [j for c, j in trial if c.fill == "normal"]
    assert all(j.passed for j in normal)
    assert set(normal[0].metrics) == {"out_snr", "da_snr", "db_snr"}
    assert set(normal[0].outputs) == set(OUTPUTS)
    assert not any(j.changed or j.ruined_passes for _, j in trial)
    (alone,) = (j for c, j in trial if c.what == "forward")
    assert set(alone.outputs) == {"out"}
    (poked,) = (j for c, j in trial if c.how == "poke")
    assert set(poked.moved) == set(OUTPUTS)
    norms = learn([trial])
    assert norms.deterministic
    assert norms.rejects_ruined
    assert norms.of("ints").exact
    assert judge_trial(trial, norms) is None
    again = judged_trial(worker, checker, folder, short_trial(random.Random(2)))
    assert all(m.bad == 0 for c, j in again for m in j.outputs.values() if c.fill == "ints")
    assert_trains(worker, checker, folder)
    seen = worker.ask("observe", shape=SHAPE, seed=5)
    assert seen["kernels"]
    assert seen["state"] == []
    assert worker.ask("state")["state"] == []
    assert (worker.ask("weight_share", shape=SHAPE, seed=6)["pct"] > 0) == (op == "gemm_fp8")  # the other has none


def assert_identified(worker: Process, checker: Process, op: str) -> None:
    hello = worker.greeting
    assert hello["ok"]
    assert hello["device"] == "cpu"
    assert hello["imported"] == str(ROOT / f"kernels/turbo_kernels/{op}/ops.py")
    assert hello["versions"]["torch"] == torch.__version__
    assert hello["fills"][:4] == ["normal", "ints", "outliers", "structured"]
    assert checker.greeting["imported"] == hello["imported"]


def assert_trains(worker: Process, checker: Process, folder: Path) -> None:
    request = {"shape": SHAPE, "dir": str(folder), "steps": 4, "seed": 9}

    def passed(made: Asked, accumulate: bool) -> dict[str, bool]:
        judged = checker.ask("check_train", **request, accumulate=accumulate, answers=made)["steps"]
        return {k: v["passed"] for k, v in judged.items()}

    for accumulate in (False, True):
        made = worker.ask("train", **request, accumulate=accumulate, keep=[1, 3])
        assert len(set(made["launches"])) == 1
        assert made["launches"][0] > 0
        assert passed(made["steps"], accumulate) == {"1": True, "3": True}
        # the fourth step's gradient of the weight is a sum, or it isn't
        assert passed(made["steps"], not accumulate) == {"1": True, "3": False}
        # another step's outputs are those of another weight, and of other activations
        assert passed({"2": made["steps"]["1"]}, accumulate) == {"2": False}


# -- timed blocks and their receipts -----------------------------------------------------------------------------------
def test_blocks_and_their_receipts(gemm: list[Process]) -> None:
    worker, checker = gemm
    worker.process.send_signal(signal.SIGINT)  # ^C is the runner's: the worker lives on
    assert worker.ask("go") == {"ok": True, "ms": 0.0}  # nothing is armed: what the messages take by themselves
    ready = worker.ask("prepare", shape=SHAPE, seed=1)
    assert ready["step_ms"] > 0
    assert ready["ring"] == checker.ask("ring", shape=SHAPE)["ring"] == 2
    step = worker.block("tiny", what="step", calls=3, seed=20, start=1, keep=[1])
    assert 0 < step["ms"] * 3 <= step["wall_ms"]
    values = base64.b64decode(step["values"])
    assert len(values) == 4 * 32 * len(OUTPUTS) * 2  # fp32, places, outputs, the kept call and the last
    assert worker.ask("receipt", at=78, count=32)["values"] != step["values"]  # other places, other elements

    asked = {"shape": SHAPE, "start": 1, "ring": 2, "seed": 20, "what": "step", "kept": [1, 2], "at": 77, "count": 32}
    good = checker.ask("check_receipt", **asked, values=step["values"])["db"]
    assert good > 40
    for other in ({"seed": 21}, {"start": 0}, {"at": 78}, {"kept": [0, 2]}):
        assert checker.ask("check_receipt", **(asked | other), values=step["values"])["db"] < 10, other
    for damaged in (values[:-4], values + values[:4], b"\xff" * len(values)):
        found = checker.ask("check_receipt", **asked, values=base64.b64encode(damaged).decode())
        assert found["db"] == -math.inf
    assert checker.ask("check_receipt", **asked, values="")["db"] == -math.inf
    another = worker.block("tiny", what="step", calls=3, seed=20, start=0, keep=[1])
    assert checker.ask("check_receipt", **asked, values=another["values"])["db"] < 10

    trained = worker.block("tiny", what="train", calls=3, seed=20, start=1, keep=[1])
    assert checker.ask("check_receipt", **(asked | {"what": "train"}), values=trained["values"])["db"] > 40
    assert checker.ask("check_receipt", **asked, values=trained["values"])["db"] < 10  # its weight has changed
    forward = worker.block("tiny", what="forward", calls=3, seed=20, start=1, keep=[1])
    assert len(base64.b64decode(forward["values"])) == 4 * 32 * 2
    assert_configurations_and_release(worker)


def assert_configurations_and_release(worker: Process) -> None:
    assert worker.ask("try", label="tiny", section="forward", config={"BLOCK_M": 16}, ms=1)["ms"] > 0
    refused = worker.ask("try", label="tiny", section="forward", config={"BLOCK_Q": 16}, ms=1)
    assert (refused["ok"], refused["kind"]) == (False, "build")
    assert "BLOCK_Q" in refused["error"]
    assert worker.ask("release", label="tiny") == {"ok": True}
    gone = worker.ask("arm", label="tiny", what="step", calls=1, seed=1, start=0, keep=[0])
    assert (gone["ok"], gone["kind"]) == (False, "run")
    assert not worker.ask("check")["ok"]  # a worker never judges


# -- every way in which outputs can be off -----------------------------------------------------------------------------
ROW = 24 * 2  # bytes of a row of `out`
DAMAGES = {
    "truncated": lambda b: b[:-2],
    "longer": lambda b: b + b"\0\0",
    "a zeroed row": lambda b: b[: 3 * ROW] + bytes(ROW) + b[4 * ROW :],
    "a shifted tile": lambda b: b[2 : 8 * ROW] + b[:2] + b[8 * ROW :],
    "one NaN": lambda b: b"\xc0\x7f" + b[2:],
    "one infinity": lambda b: b"\x80\x7f" + b[2:],
}  # fmt: skip


def test_damaged_outputs_fail(gemm: list[Process], tmp_path: Path) -> None:
    worker, checker = gemm
    call = Call(seed=7).model_dump()
    request = {"shape": SHAPE, "dir": str(tmp_path), "calls": [call]}
    made = worker.ask("trial", **request)["calls"][0]
    assert made["tensors"]["da"] == {"file": "call0_da.bin", "dtype": "bfloat16", "shape": [16, 16]}

    def judge(answer: Asked, calls: list[Asked] | None = None) -> Asked:
        judged = checker.ask("check", **(request | {"calls": calls or [call]}), answers=[answer])
        assert judged["ok"], judged  # a FAIL, never an error of the checker
        return judged["calls"][0]

    assert judge(made)["passed"]
    assert not judge(made, [call | {"seed": 8}])["passed"]  # another seed's outputs
    assert not judge(made, [call | {"fill": "ints"}])["passed"]
    file = tmp_path / made["tensors"]["out"]["file"]
    good = file.read_bytes()
    for name, damage in DAMAGES.items():
        file.write_bytes(damage(good))
        found = judge(made)
        assert not found["passed"], name
        assert found["detail"], name
    file.write_bytes(good)

    def described(**changes: Any) -> Asked:
        out = made["tensors"]["out"] | changes
        return {**made, "tensors": {**made["tensors"], "out": out}}

    transposed = judge(described(shape=[24, 16]))
    assert not transposed["passed"]
    assert not transposed["outputs"]["out"]["ok"]
    for lie in ({"shape": [16, 25]}, {"shape": [-16, -24]}, {"dtype": "object"}, {"file": "../nothing.bin"}):
        assert not judge(described(**lie))["passed"], lie
    (tmp_path / "link.bin").symlink_to(file)
    assert not judge(described(file="link.bin"))["passed"]
    for tensors in ({k: v for k, v in made["tensors"].items() if k != "db"}, {}):
        assert not judge({**made, "tensors": tensors})["passed"]
    assert judge({**made, "changed": ["a"]})["changed"] == ["a"]
    given = {"inputs": {"a": made["tensors"]["da"]}}  # a's shape, other contents
    assert judge(made | given)["changed"] == ["a"]
    assert judge(made)["passed"]  # and the checker lives on


# -- the faults of the gate self-test ----------------------------------------------------------------------------------
WRONG = {
    "zeroed_row": {"G04", "K02"}, "shifted_tile": {"G04", "K02"}, "unwritten_tail": {"K01"}, "scale_error": {"G04", "K03"},
    "cached_output": {"G04"},
}  # fmt: skip


def test_each_planted_fault_changes_what_the_op_says(gemm: list[Process], tmp_path: Path) -> None:
    worker, checker = gemm
    norms = learn([judged_trial(worker, checker, tmp_path, short_trial(random.Random(3)))])
    faults = worker.ask("plant", name="")["faults"]
    assert set(faults) == {*WRONG, "added_sleep", "patched_timer"}
    refused = worker.ask("plant", name="nonsense")
    assert not refused["ok"]
    assert "zeroed_row" in refused["error"]
    for name, codes in WRONG.items():
        assert worker.ask("plant", name=name)["ok"]
        found = judge_trial(judged_trial(worker, checker, tmp_path, short_trial(random.Random(4))), norms)
        assert found is not None, name
        assert found.code in codes, (name, found)
    worker.ask("plant", name="")
    assert judge_trial(judged_trial(worker, checker, tmp_path, short_trial(random.Random(5))), norms) is None

    worker.ask("prepare", shape=SHAPE, seed=1)
    took = {"": [], "added_sleep": []}
    for _ in range(3):
        for name, found in took.items():
            worker.ask("plant", name=name)
            found.append(worker.block("tiny", what="step", calls=2, seed=2, start=0, keep=[0])["wall_ms"])
    assert median(took["added_sleep"]) > 1.3 * median(took[""])
    worker.ask("plant", name="patched_timer")
    lied = worker.block("tiny", what="step", calls=2, seed=2, start=0, keep=[0])
    assert lied["ms"] == 1e-3
    assert lied["wall_ms"] > 100 * lied["ms"]
    worker.ask("plant", name="")


# -- what a measured repository may get wrong --------------------------------------------------------------------------
def broken_tree(folder: Path, body: str) -> Path:
    """A tree with an adapter of its own."""
    (folder / "src").mkdir()
    (folder / "src" / "mine.py").write_text("")
    (folder / "adapter.py").write_text(
        "import time, torch\n"
        "def make_inputs(dims, dtype, variant, seed, device):\n"
        "    g = torch.Generator().manual_seed(seed)\n"
        "    return {'a': torch.randn(dims['M'], dims['K'], generator=g, requires_grad=True)}\n"
        "@torch.no_grad()\n"
        "def rewrite(inputs, seed): inputs['a'].normal_(generator=torch.Generator().manual_seed(seed))\n"
        "def forward(inputs): return {'out': inputs['a'].detach() * 2}\n"
        "step = forward\n"
        "def reference(inputs): return {'out': inputs['a'].detach() * 2}\n"
        "def check(outputs, expected, dtype, variant):\n"
        "    return torch.equal(outputs['out'], expected['out']), {'out_snr': 99.0}, 'differs'\n" + body
    )
    return folder


# Which step runs is told by M.
STEPS = {
    1: "i['a'].detach().zero_(); return forward(i)",
    2: "KEPT.copy_(i['a'].detach() * 2); return {'out': KEPT}",
    3: "return {'out': torch.nn.Parameter(i['a'].detach())}",
    4: "raise SystemExit(0)",
    5: "return {'out': torch.empty(5, 16)}",
    6: "return timed(i)",
    7: (
        "time.perf_counter = lambda: 0.0; torch.set_float32_matmul_precision('medium');"
        " globals()['check'] = lambda *_: (True, {}, ''); import sys, types;"
        " sys.modules['decimal'] = types.ModuleType('decimal'); return forward(i)"
    ),
    8: "return [forward(i)['out']]",
    9: "raise MemoryError('no')",
    10: "raise PermissionError(13, 'no')",
}
ADAPTER = (
    "KEPT = torch.zeros(2, 16)\nSEEN = set()\n"
    "def timed(i):\n"
    "    a = i['a']\n"
    "    assert a.is_leaf and a.grad is None and a.requires_grad, 'not a fresh leaf'\n"
    "    assert (a.data_ptr(), a._version) not in SEEN, 'same memory, same version'\n"
    "    SEEN.add((a.data_ptr(), a._version))\n"
    "    a.grad = torch.zeros_like(a)\n"
    "    return forward(i)\n"
    + "".join(f"def step{m}(i):\n    {body}\n" for m, body in STEPS.items())
    + "def step(i): return globals()[f\"step{i['a'].shape[0]}\"](i)\n"
)
SHAPES = {m: {"label": f"m{m}", "dims": {"B": 1, "M": m, "N": 8, "K": 16}} for m in STEPS}
KINDS = {
    3: ("K09", "not a plain tensor"),
    4: ("run", "SystemExit"),
    8: ("K09", "not a dict"),
    9: ("memory", "no"),
    10: ("denied", "no"),
}


def test_a_faulty_step_is_told_and_the_worker_goes_on(tmp_path: Path) -> None:
    tree = broken_tree(tmp_path, ADAPTER)
    script = render(tmp_path, "gemm", [], adapter="adapter.py", import_roots=["src"], import_name="mine")
    twice = (Call(seed=1, when="end"), Call(seed=2, when="now"))
    with running(script, "worker", "checker", tree=tree) as (worker, checker):
        assert worker.greeting["imported"] == str(tree / "src" / "mine.py")
        for m, (kind, said) in KINDS.items():
            request = {"shape": SHAPES[m], "dir": str(tmp_path), "calls": [Call(seed=1).model_dump()]}
            reply = worker.ask("trial", **request)
            assert reply["ok"] is False
            assert reply["kind"] == kind
            assert said in reply["error"]
            assert "\n" not in reply["error"]
        zeroed = judged_trial(worker, checker, tmp_path, twice, SHAPES[1])
        assert [j.changed for _, j in zeroed] == [("a",), ("a",)]
        overwritten = judged_trial(worker, checker, tmp_path, twice, SHAPES[2])
        assert [j.passed for _, j in overwritten] == [False, True]
        unwritten = judged_trial(worker, checker, tmp_path, twice, SHAPES[5])
        assert [(j.passed, j.outputs["out"].finite) for _, j in unwritten] == [(False, False)] * 2
        assert "non-finite" in unwritten[0][1].detail
        assert worker.ask("prepare", shape=SHAPES[6], seed=1)["ok"]  # every call: fresh leaves, a new version
        assert worker.block("m6", what="step", calls=7, seed=2, start=0, keep=[3])["ms"] > 0
        assert worker.ask("state")["state"] == []
        assert worker.ask("prepare", shape=SHAPES[7], seed=1)["ok"]
        changed = worker.ask("state")["state"]
        assert "time.perf_counter was replaced" in changed
        assert "float32_matmul_precision is 'medium', was 'highest'" in changed
        assert {"the adapter's check was replaced", "module decimal was replaced"} <= set(changed)
        assert worker.block("m7", what="step", calls=2, seed=2, start=0, keep=[0])["ms"] > 0  # its own clock stays


# An op with a weight, and contents of its own: skewed, as a routing is.
OPTIONAL = """
WEIGHTS = ("w",)
WITH = make_inputs
def make_inputs(dims, *rest):
    return {**WITH(dims, *rest), 'w': torch.randn(dims['K'], generator=torch.Generator().manual_seed(rest[2] + 1))}
def _skewed(inputs, seed):
    inputs['a'][:] = float(seed % 7)
FILLS = {"skewed": _skewed}
KEPT = {}
def kept(w):
    return KEPT.setdefault(w.shape, w.clone())
def forward(inputs): return {'out': inputs['a'].detach() * (kept(inputs['w']) if len(inputs['a']) == 3 else inputs['w'])}
step = forward
def reference(inputs): return {'out': inputs['a'].detach() * inputs['w']}
"""


def test_an_adapters_weights_and_fills(tmp_path: Path) -> None:
    tree = broken_tree(tmp_path, OPTIONAL)
    script = render(tmp_path, "gemm", [], adapter="adapter.py", import_roots=["src"], import_name="mine")
    with running(script, "worker", "checker", tree=tree) as (worker, checker):
        assert worker.greeting["fills"] == ["normal", "ints", "outliers", "structured", "skewed"]
        (first,) = judged_trial(worker, checker, tmp_path, (Call(seed=12, fill="skewed"),), SHAPES[2])
        assert first[1].passed
        for m, honest in ((2, True), (3, False)):  # the second keeps the first weight that it sees
            request = {"shape": SHAPES[m], "dir": str(tmp_path), "steps": 4, "seed": 9, "accumulate": True}
            made = worker.ask("train", **request, keep=[0, 2, 3])
            judged = checker.ask("check_train", **request, answers=made["steps"])["steps"]
            assert {v["passed"] for v in judged.values()} == {honest}


# Its step is right and its forward alone is not; a part of the step depends on the weight alone.
APART = """
def forward(inputs): return {'out': inputs['a'].detach() * 3}
def step(inputs):
    time.sleep(0.02)
    return {'out': inputs['a'].detach() * 2}
def weight_work(inputs): time.sleep(0.005)
"""


def test_the_forward_alone_is_judged_and_the_weights_share_timed(tmp_path: Path) -> None:
    tree = broken_tree(tmp_path, APART)
    script = render(tmp_path, "gemm", [], adapter="adapter.py", import_roots=["src"], import_name="mine")
    with running(script, "worker", "checker", tree=tree) as (worker, checker):
        trial = judged_trial(worker, checker, tmp_path, whole_trial(random.Random(1), ["normal", "ints"]), SHAPES[2])
        assert [j.passed for _, j in trial] == [c.what == "step" for c, _ in trial]
        assert sum(c.what == "forward" for c, _ in trial) == 1
        assert 15 < worker.ask("weight_share", shape=SHAPES[2], seed=1)["pct"] < 40


def test_an_import_error_is_a_build_failure_and_the_worker_goes_on(tmp_path: Path) -> None:
    tree = broken_tree(tmp_path, "def step(:\n")
    script = render(tmp_path, "gemm", [], adapter="adapter.py", import_roots=["src"], import_name="mine")
    with running(script, "worker", tree=tree) as (worker,):
        for reply in (worker.greeting, worker.ask("hello", tree=str(tree))):
            assert (reply["ok"], reply["kind"]) == (False, "build")
        assert not worker.ask("nonsense")["ok"]


# -- for people --------------------------------------------------------------------------------------------------------
def run_for_people(script: Path, *options: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(script), *options], capture_output=True, text=True, timeout=300, check=False
    )


def test_people_get_a_csv_of_the_frozen_columns(tmp_path: Path) -> None:
    other = {"label": "other", "dims": {"B": 1, "M": 23, "N": 17, "K": 20}}
    script, out = render(tmp_path, "gemm_fp8", [SHAPE, other]), tmp_path / "rows.csv"
    done = run_for_people(script, "--summary-csv", str(out), "--repeats", "2", "--iters-per-repeat", "1")
    assert done.returncode == 0, done.stdout + done.stderr
    text = out.read_bytes().decode()
    assert text.startswith(COLUMNS + "\n")
    assert text.endswith("\n")
    assert "\r" not in text
    rows = list(csv.DictReader(io.StringIO(text)))
    assert [(r["label"], r["M"], r["Check"]) for r in rows] == [("tiny", "16", "PASS"), ("other", "23", "PASS")]
    for row in rows:
        times = float(row["Forward Time (ms)"]), float(row["Backward Time (ms)"])
        assert min(times) > 0
        assert "e" not in row["Forward TFLOPS"]  # plain decimals however small
        assert float(row["out_snr"]) > 25
    done = run_for_people(script, "--summary-csv", str(out), "--repeats", "1", "--shapes", "representative")
    assert done.returncode == 0
    assert out.read_text().count("\n") == 2


def test_people_get_exit_1_on_a_fail_and_2_without_a_device(tmp_path: Path) -> None:
    tree, out = broken_tree(tmp_path, "def step(i): return {'out': torch.zeros(16, 16)}\n"), tmp_path / "rows.csv"
    changes = {"adapter": "adapter.py", "import_roots": ["src"], "import_name": "mine", "worktree": str(tree)}
    done = run_for_people(render(tmp_path, "gemm", [SHAPE], **changes), "--summary-csv", str(out))
    assert done.returncode == 1
    assert ",FAIL," in out.read_text()
    done = run_for_people(render(tmp_path, "gemm", [SHAPE], gpu="sm_90", **changes), "--summary-csv", str(out))
    assert done.returncode == 2
    assert "no GPU" in done.stderr


def test_work_is_the_runners() -> None:
    """The script stands alone, so it repeats the runner's formulas: they must agree."""
    from turbo_optimize.core.columns import SCHEMAS, WORK

    text = (ROOT / "templates" / "quick" / "state.py.j2").read_text(encoding="utf-8")
    table = text[text.index("WORK: dict") : text.index("UNITS =")].split("=", 1)[1]
    mine = eval(table)
    assert set(mine) == set(WORK)
    for name, (forward, backward) in mine.items():
        dims = {d: 3 + i for i, d in enumerate(SCHEMAS[name].dims)}
        assert forward(dims) == WORK[name].forward(dims)
        assert backward(dims) == WORK[name].backward(dims)
