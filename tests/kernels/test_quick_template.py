"""The rendered quick_test_bench.py, driven as the runner and as a person drive it: real processes, the interpreter."""

from __future__ import annotations

import csv
import io
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import jinja2
import pytest
import torch

ROOT = Path(__file__).parents[2]
SHAPE = {"label": "tiny", "dims": {"B": 1, "M": 16, "N": 32, "K": 16}}
COLUMNS = (
    "label,B,M,N,K,Check,Forward TFLOPS,Forward TFLOPS_stddev,Backward TFLOPS,Backward TFLOPS_stddev,"
    "Forward Time (ms),Backward Time (ms),out_snr,da_snr,db_snr"
)
VARIANTS = {"gemm": "default", "gemm_fp8": "blockwise"}

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="renders for the cpu target")


def render(folder: Path, op: str, shapes: list[dict[str, Any]], **changes: Any) -> Path:
    text = (ROOT / "templates" / "quick_test_bench.py.j2").read_text(encoding="utf-8")
    values = {
        "op": op, "variant": VARIANTS[op], "dtype": "bf16", "gpu": "cpu", "execution_mode": "training",
        "adapter": f"kernels/turbo_kernels/{op}/cases.py", "import_roots": ["kernels"],
        "import_name": f"turbo_kernels.{op}.ops", "shapes": shapes, "representative": ["tiny"], "schema_class": "gemm",
        "columns": COLUMNS.split(","), "unit": "TFLOPS", "worktree": str(ROOT),
    }  # fmt: skip
    script = folder / "quick_test_bench.py"
    environment = jinja2.Environment(undefined=jinja2.StrictUndefined, keep_trailing_newline=True)
    script.write_text(environment.from_string(text).render(values | changes), encoding="utf-8")
    return script


class Process:
    """The script in worker or checker mode: `ask` sends one request and reads one answer."""

    def __init__(self, script: Path, mode: str, tree: Path) -> None:
        ours, theirs = os.pipe()
        self.process = subprocess.Popen(
            [sys.executable, "-I", str(script), f"--{mode}", "--tree", str(tree), "--reply-fd", str(theirs)],
            stdin=subprocess.PIPE, pass_fds=[theirs], stderr=subprocess.DEVNULL,
        )  # fmt: skip
        os.close(theirs)
        self.replies = os.fdopen(ours, encoding="utf-8")

    def ask(self, cmd: str, **request: Any) -> dict[str, Any]:
        assert self.process.stdin
        self.process.stdin.write(json.dumps({"cmd": cmd, **request}).encode() + b"\n")
        self.process.stdin.flush()
        return json.loads(self.replies.readline())


@contextmanager
def running(script: Path, mode: str, tree: Path = ROOT) -> Iterator[Process]:
    p = Process(script, mode, tree)
    try:
        yield p
    finally:
        assert p.process.stdin
        p.process.stdin.close()
        p.process.wait(timeout=20)
        p.replies.close()


@pytest.mark.parametrize("op", ["gemm", "gemm_fp8"])
def test_worker_and_checker_speak_the_protocol(op: str, tmp_path: Path) -> None:
    script = render(tmp_path, op, [])
    with running(script, "worker") as worker, running(script, "checker") as checker:
        hello = worker.ask("hello")
        assert hello["ok"]
        assert hello["device"] == "cpu"
        assert hello["imported"] == str(ROOT / f"kernels/turbo_kernels/{op}/ops.py")
        assert hello["versions"]["torch"] == torch.__version__
        assert checker.ask("hello")["imported"] == hello["imported"]

        worker.process.send_signal(signal.SIGINT)  # ^C is the runner's: the worker lives on
        ready = worker.ask("prepare", shape=SHAPE, seed=1)
        assert ready["ok"]
        assert ready["ring"] == 2
        assert ready["step_ms"] > 0
        start = time.perf_counter()
        step = worker.ask("block", label="tiny", what="step", calls=2, seed=2)["ms"]
        assert step * 2 <= (time.perf_counter() - start) * 1e3
        assert 0 < worker.ask("block", label="tiny", what="forward", calls=2, seed=3)["ms"] < step

        made = worker.ask("outputs", shape=SHAPE, seed=7, dir=str(tmp_path))
        assert set(made["tensors"]) == {"out", "da", "db"}
        assert made["tensors"]["da"] == {"file": "da.bin", "dtype": "bfloat16", "shape": [16, 16]}
        request = {"shape": SHAPE, "dir": str(tmp_path), "tensors": made["tensors"]}
        judged = checker.ask("check", seed=7, **request)
        assert (judged["check"], judged["detail"]) == ("PASS", "")
        assert set(judged["metrics"]) == {"out_snr", "da_snr", "db_snr"}
        assert checker.ask("check", seed=8, **request)["check"] == "FAIL"  # another seed's outputs
        assert_damage_fails(checker, tmp_path, request)

        tried = worker.ask("try", label="tiny", section="forward", config={"BLOCK_M": 16}, ms=1)
        assert tried["ms"] > 0
        refused = worker.ask("try", label="tiny", section="forward", config={"BLOCK_Q": 16}, ms=1)
        assert (refused["ok"], refused["kind"]) == (False, "build")
        assert "BLOCK_Q" in refused["error"]
        assert worker.ask("release", label="tiny") == {"ok": True}
        gone = worker.ask("block", label="tiny", what="step", calls=1, seed=1)
        assert (gone["ok"], gone["kind"]) == (False, "run")
        assert not worker.ask("check")["ok"]  # a worker never judges
    assert worker.process.returncode == checker.process.returncode == 0  # both end with their stdin


def assert_damage_fails(checker: Process, folder: Path, request: dict[str, Any]) -> None:
    """Every way in which outputs can be off is a FAIL, not an error of the checker."""
    file = folder / "out.bin"
    good = file.read_bytes()
    row = 32 * 2
    for damage in (good[:-2], good[: row * 3] + bytes(row) + good[row * 4 :], b"\xc0\x7f" + good[2:]):
        file.write_bytes(damage)
        judged = checker.ask("check", seed=7, **request)
        assert (judged["ok"], judged["check"]) == (True, "FAIL")
        assert judged["detail"]
    file.write_bytes(good)
    lacking = {k: v for k, v in request["tensors"].items() if k != "db"}
    assert checker.ask("check", seed=7, **(request | {"tensors": lacking}))["check"] == "FAIL"


def broken_tree(folder: Path, body: str) -> Path:
    """A tree with an adapter of its own: what a measured repository may get wrong."""
    (folder / "src").mkdir()
    (folder / "src" / "mine.py").write_text("")
    (folder / "adapter.py").write_text(
        "import torch\n"
        "def make_inputs(dims, dtype, variant, seed, device):\n"
        "    g = torch.Generator().manual_seed(seed)\n"
        "    return {'a': torch.randn(dims['M'], dims['K'], generator=g, requires_grad=True)}\n"
        "def rewrite(inputs, seed): inputs['a'].normal_()\n"
        "def forward(inputs): return {'out': inputs['a'].detach() * 2}\n"
        "step = forward\n"
        "def reference(inputs): return {'out': inputs['a'].detach() * 2}\n"
        "def check(outputs, expected, dtype, variant):\n"
        "    return torch.equal(outputs['out'], expected['out']), {'out_snr': 99.0}, 'differs'\n" + body
    )
    return folder


# Which step runs is told by M; None where nothing is wrong.
STEPS = {
    1: ("i['a'].detach().zero_(); return forward(i)", "changed its input a"),
    2: ("KEPT.copy_(i['a'].detach() * 2); return {'out': KEPT}", "overwrote output out"),
    3: ("return {'out': torch.nn.Parameter(i['a'].detach())}", "not a plain tensor"),
    4: ("raise SystemExit(0)", "SystemExit"),
    5: ("return {'out': torch.empty(5, 16)}", None),
    6: ("return timed(i)", None),
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
    + "".join(f"def step{m}(i):\n    {body}\n" for m, (body, _) in STEPS.items())
    + "def step(i): return globals()[f\"step{i['a'].shape[0]}\"](i)\n"
)


def test_a_faulty_step_is_told_and_the_worker_goes_on(tmp_path: Path) -> None:
    tree = broken_tree(tmp_path, ADAPTER)
    script = render(tmp_path, "gemm", [], adapter="adapter.py", import_roots=["src"], import_name="mine")
    shapes = {m: {"label": f"m{m}", "dims": {"B": 1, "M": m, "N": 8, "K": 16}} for m in STEPS}
    with running(script, "worker", tree) as worker, running(script, "checker", tree) as checker:
        assert worker.ask("hello")["imported"] == str(tree / "src" / "mine.py")
        for m, (_, said) in STEPS.items():
            if said:
                reply = worker.ask("outputs", shape=shapes[m], seed=1, dir=str(tmp_path))
                assert (reply["ok"], reply["kind"]) == (False, "run")
                assert said in reply["error"]
                assert "\n" not in reply["error"]
        request = {"shape": shapes[5], "seed": 1, "dir": str(tmp_path)}  # an output that nobody wrote
        judged = checker.ask("check", tensors=worker.ask("outputs", **request)["tensors"], **request)
        assert judged["check"] == "FAIL"
        assert "non-finite" in judged["detail"]
        assert worker.ask("prepare", shape=shapes[6], seed=1)["ok"]  # every call: fresh leaves, a new version
        assert worker.ask("block", label="m6", what="step", calls=7, seed=2)["ok"]


def test_an_import_error_is_a_build_failure_and_the_worker_goes_on(tmp_path: Path) -> None:
    tree = broken_tree(tmp_path, "def step(:\n")
    script = render(tmp_path, "gemm", [], adapter="adapter.py", import_roots=["src"], import_name="mine")
    with running(script, "worker", tree) as worker:
        for _ in range(2):
            reply = worker.ask("hello")
            assert (reply["ok"], reply["kind"]) == (False, "build")
        assert not worker.ask("nonsense")["ok"]


def run_for_people(script: Path, *options: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(script), *options], capture_output=True, text=True, timeout=300, check=False
    )


def test_people_get_a_csv_of_the_frozen_columns(tmp_path: Path) -> None:
    other = {"label": "other", "dims": {"B": 1, "M": 33, "N": 17, "K": 20}}
    script, out = render(tmp_path, "gemm_fp8", [SHAPE, other]), tmp_path / "rows.csv"
    done = run_for_people(script, "--summary-csv", str(out), "--repeats", "3", "--iters-per-repeat", "1")
    assert done.returncode == 0, done.stdout + done.stderr
    text = out.read_bytes().decode()
    assert text.startswith(COLUMNS + "\n")
    assert text.endswith("\n")
    assert "\r" not in text
    rows = list(csv.DictReader(io.StringIO(text)))
    assert [(r["label"], r["M"], r["Check"]) for r in rows] == [("tiny", "16", "PASS"), ("other", "33", "PASS")]
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

    text = (ROOT / "templates" / "quick_test_bench.py.j2").read_text(encoding="utf-8")
    table = text[text.index("WORK: dict") : text.index("UNITS =")].split("=", 1)[1]
    mine = eval(table)
    assert set(mine) == set(WORK)
    for name, (forward, backward) in mine.items():
        dims = {d: 3 + i for i, d in enumerate(SCHEMAS[name].dims)}
        assert forward(dims) == WORK[name].forward(dims)
        assert backward(dims) == WORK[name].backward(dims)
