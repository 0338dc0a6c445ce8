"""The static audit: what a change brings in, by whatever name; what a kernel honestly does is no finding."""

from __future__ import annotations

from pathlib import Path

import pytest

from turbo_optimize.core.audit import FINDINGS, audit
from turbo_optimize.core.errors import WorkerError

HONEST = """
from __future__ import annotations
import functools, json, os, time
import torch
import triton
import triton.language as tl
from functools import lru_cache

CONFIG = {"BLOCK_M": 64}

@functools.cache
def sm_count(device: int) -> int:
    return torch.cuda.get_device_properties(device).multi_processor_count

@lru_cache(maxsize=None)
def tile(m: int, n: int, dtype: "torch.dtype | None" = None, shape: tuple[int, ...] = ()) -> int:
    return m * n

@triton.jit
def kernel(a_ptr, c_ptr, M, K, BLOCK_M: tl.constexpr, BLOCK_K: tl.constexpr):
    pid = tl.program_id(0)
    acc = tl.zeros((BLOCK_M, BLOCK_K), dtype=tl.float32)
    for k in tl.range(0, K, BLOCK_K):
        acc += tl.load(a_ptr + k)
    tl.store(c_ptr + pid, acc.to(tl.bfloat16))

class Gemm(torch.autograd.Function):
    @staticmethod
    def forward(ctx, a, b):
        ctx.save_for_backward(a, b)
        ctx.shape = a.shape
        out = torch.empty(a.shape[0], b.shape[0], device=a.device)
        assert a.data_ptr() % 16 == 0
        grid = (sm_count(a.device.index),)
        kernel[grid](a, out, a.shape[0], a.shape[1], **CONFIG)
        return out

class Linear(torch.nn.Module):
    def __init__(self, n):
        super().__init__()
        self.bias = torch.nn.Parameter(torch.zeros(n))
        self.parts = {}
        self.parts["bias"] = self.bias

    def forward(self, x, out=None):
        sizes = {}
        sizes["n"] = x.shape[0]
        total = torch.zeros(4)
        total.add_(1).copy_(x)
        rows = []
        rows.append(sizes)
        out[0] = x
        view = out
        view[1] = x
        y = self.bias.add(x)
        t0 = time.perf_counter()
        return torch.add(y, x) if os.environ.get("DEBUG") else json.dumps(rows)
"""


def found(after: str, before: str | None = None) -> list[tuple[str, int]]:
    return [(f.code, f.line) for f in audit("kernel.py", before, after)]


def test_honest_code_has_no_finding() -> None:
    assert audit("kernel.py", None, HONEST) == ()


BAD: dict[str, list[str]] = {
    "A01": [
        "def f(a): return id(a)",
        "ident = id\ndef f(a): return ident(a)",
        "from builtins import id as who\ndef f(a): return who(a)",
        "def f(a):\n    me = id\n    return me(a)",
        "def f(xs): return tuple(map(id, xs))",
        "def f(a): return a.data_ptr()",
        "def f(a, table): return table.get(a.data_ptr())",
        "def f(a): return (a.shape, a.untyped_storage())",
        "def f(a): return a._version",
        "def f(a): return getattr(a, '_version')",
        "import weakref",
        "from weakref import ref as r\ndef f(a): return r(a)",
        "def f(a): return getattr(a, '_ver' + 'sion')",
        "def f(a): return getattr(a, f'data{\"_ptr\"}')",
        "import operator\nwhich = operator.attrgetter('_version')",
        "from operator import methodcaller as m\nwhich = m('data_ptr')",
        "def f(a): return object.__getattribute__(a, '_version')",
        "def f(a): return hash(a)",
        "def f(xs): return tuple(map(hash, xs))",
        "def f(a): return a.__hash__()",
    ],
    "A02": [
        "import functools\n@functools.lru_cache(maxsize=8)\ndef f(a): return a",
        "from functools import cache as c\n@c\ndef f(a: 'torch.Tensor', n: int): return a",
        "from functools import lru_cache as c\ndef f(a): return a\ng = c(f)",
        "from functools import lru_cache\ng = lru_cache(None)(lambda a: a)",
        "import functools\nmemo = functools.cache\n@memo\ndef f(a): return a",
        "_C = {}\ndef f(a):\n    _C[a.shape] = a",
        "_C = {}\ndef f(a):\n    c = _C\n    c[a.shape] = a",
        "_C = {}\ndef f(a): return _C.setdefault(a.shape, a)",
        "_L = []\ndef f(a): _L.append(a)",
        "_last = None\ndef f(a):\n    global _last\n    _last = a",
        "def f(a, _c={}):\n    _c[a.shape] = a",
        "def make():\n    c = {}\n    def f(a):\n        c[a.shape] = a\n    return f",
        "class G:\n    seen = {}\n    def f(self, a): G.seen[a.shape] = a",
        "class G:\n    def f(self, a): self.seen[a.shape] = a",
        "def f(a):\n    f.last = a",
        "def f(a): a.quantized = 1",
        "def f(a): setattr(a, 'quantized', 1)",
        "_C = {}\ndef f(a):\n    x, _C[0] = a, a",
        "_C = {}\ndef f(a):\n    _C['n'] += 1",
        "_L = []\nput = _L.append\ndef f(a): put(a)",
        "def g():\n    while True:\n        x = yield\n_g = g()\ndef f(a): _g.send(a)",
        "import operator\n_C = {}\ndef f(a): operator.setitem(_C, 'x', a)",
        "import torch\n_buffer = torch.empty(4)\ndef f(a): _buffer.copy_(a)",
        "import torch\n_buffer = torch.empty(4)\ndef f(a): _buffer[:] = a",
        "def f(w): w.register_hook(lambda g: g)",
        "def make():\n    last = None\n    def f(a):\n        nonlocal last\n        last = a\n    return f",
        "import types\nS = types.SimpleNamespace(q=None)\ndef f(a): S.q = a",
        "def f(a): a.__dict__['q'] = 1",
        "def f(a): vars(a)['q'] = 1",
        "_last = [None]\ndef f(a):\n    if a is _last[0]: return a\n    _last[0] = a",
    ],
    "A03": [
        "import torch\ntorch.backends.cuda.matmul.allow_tf32 = True",
        "import torch as t\ndef f(): t.backends.cudnn.benchmark = True",
        "from torch import backends as b\nb.cudnn.benchmark = True",
        "import torch\ndef f():\n    b = torch.backends\n    b.cudnn.benchmark = True",
        "import torch\ntorch.use_deterministic_algorithms(False)",
        "from torch import set_float32_matmul_precision as p\np('medium')",
        "import os\nos.environ['X'] = '1'",
        "from os import environ\nenviron.update(X='1')",
        "import time\ntime.perf_counter = lambda: 0",
        "import time\nsetattr(time, 'perf_counter', lambda: 0)",
        "def f():\n    import torch\n    torch.cuda.synchronize = lambda: None",
        "import torch\ndel torch.cuda.Event",
    ],
    "A04": [
        "import subprocess",
        "from concurrent.futures import ThreadPoolExecutor",
        "def f():\n    import gc",
        "import ctypes as c",
        "from threading import Thread",
        "import socket, json",
        "import inspect",
        "import contextvars",
        "__import__('gc')",
        "def f(s): exec(s)",
        "import sys\ndef f(): return sys._getframe(1)",
        "def f(): return globals()",
        "import os\nos.system('true')",
    ],
    "A05": [
        "def f(): return open('/x').read()",
        "import torch\ndef f(a): torch.save(a, 'x')",
        "from pathlib import Path\ndef f(): return Path('x').read_text()",
        "import numpy as np\ndef f(): return np.load('x')",
        "import os\ndef f(): os.remove('x')",
        "import shutil as s\ndef f(): s.rmtree('x')",
        "o = open\ndef f(): return o('x')",
    ],
}


@pytest.mark.parametrize(("code", "source"), [(c, s) for c, sources in BAD.items() for s in sources])
def test_finding(code: str, source: str) -> None:
    assert code in [c for c, _ in found(source)]


def test_every_finding_has_its_page() -> None:
    assert set(BAD) == set(FINDINGS)
    rules = Path(__file__).parents[2] / "rules"
    for code, title in FINDINGS.items():
        page = (rules / f"{code}-{title.lower().replace(' ', '-')}.md").read_text()
        heads = [line for line in page.splitlines() if line.startswith("#")]
        assert heads == [f"# {code} {title}", "## What", "## Why", "## Example", "## Mend"]


OLD = "_C = {}\ndef f(n, a):\n    _C[n] = a\n    return id(a)\n"


def test_only_what_is_new_counts() -> None:
    assert found(OLD, None) == [("A02", 3), ("A01", 4)]
    assert found(OLD, OLD) == []
    assert found("# moved\n\n" + OLD, OLD) == []
    assert found(OLD + "def g(b): return id(b)\n", OLD) == [("A01", 5)]
    assert found(OLD + "def g(a): return id(a)\n", OLD) == [("A01", 5)]  # once more than before
    assert found("def f(n, a): return a\n", OLD) == []


def test_findings_say_what_and_why() -> None:
    (finding,) = audit("kernel.py", "", "import time\ntime.perf_counter = None\n")
    assert (finding.code, finding.line, finding.what) == ("A03", 2, "time.perf_counter written")
    assert "measurement" in finding.why


def test_other_languages_are_left_to_behaviour() -> None:
    assert audit("kernel.hip", None, "static float cache[16];") == ()


def test_a_file_that_is_not_python_fails_the_build() -> None:
    with pytest.raises(WorkerError, match=r"kernel.py:2: not Python") as e:
        audit("kernel.py", None, "x = 1\ndef f(:\n")
    assert e.value.kind == "build"
