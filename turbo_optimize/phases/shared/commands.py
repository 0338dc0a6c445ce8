"""A project's own commands: the full test and the full benchmark. They pick shapes and accept the end; nothing else."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from turbo_optimize.campaign import Campaign
from turbo_optimize.core.errors import TurboOptError, WorkerError
from turbo_optimize.core.models import GateResult
from turbo_optimize.effects.bench import Tree, timed
from turbo_optimize.effects.proc import run_command
from turbo_optimize.effects.store import disk_errors, write_atomic


def _fill(c: Campaign, command: str, out: Path) -> str:
    shapes = ",".join(s.label for s in c.manifest.target_shapes)
    values = {
        "python": _quoted(sys.executable), "tree": ".", "out": _quoted(str(out)), "shapes": shapes,
        "device": "cpu" if c.manifest.target_gpu == "cpu" else "cuda", "variant": c.manifest.target_variant,
        "dtype": c.manifest.dtype, "op": c.manifest.target_op,
    }  # fmt: skip
    return command.format(**values)  # PLACEHOLDERS of prerequisites.py, which has looked at every command


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "'\\''") + "'"


def _run(
    c: Campaign, tree: Tree, command: str, log: Path, out: Path, timeout_s: float, writable: Sequence[Path] = ()
) -> GateResult:
    roots = ":".join(str(tree.path / r) for r in c.op.import_roots)
    env = {"PYTHONPATH": roots} | ({"TRITON_INTERPRET": "1"} if c.manifest.target_gpu == "cpu" else {})
    written = tree.scratch / "out" / out.name  # the only other place that a command may write to is its scratch
    try:
        with disk_errors(written):
            written.parent.mkdir(parents=True, exist_ok=True)
            written.unlink(missing_ok=True)
        done = run_command(_fill(c, command, written), tree.path, tree.scratch, log, timeout_s, env, writable)
        if written.is_file():
            write_atomic(out, written.read_bytes())
    except WorkerError as e:
        return GateResult(code="G03", ok=False, detail=str(e))
    if done.timed_out:
        return GateResult(code="G04", ok=False, detail=f"`{command}` took longer than {timeout_s:.0f} s (log: {log})")
    if done.code:
        lines = [x for x in done.output.splitlines() if x.strip()]
        last = lines[-1].strip() if lines else "no output"
        return GateResult(code="G04", ok=False, detail=f"`{command}` ended with exit {done.code}: {last} (log: {log})")
    return GateResult(code="G04", ok=True, detail=f"`{command}` passed")


def rebuild(c: Campaign, tree: Tree, key: str, parts: dict[str, float]) -> GateResult:
    """The project's rebuild command in the tree, where it has one."""
    if not c.manifest.rebuild_command:
        return GateResult(code="G03", ok=True, detail="nothing to build")
    log = c.layout.artifacts(key) / "build.log"
    with timed(parts, "compile"):
        done = _run(
            c, tree, c.manifest.rebuild_command, log, log.with_suffix(".out"), c.policy.compile_timeout_s, (tree.path,)
        )
    return done.model_copy(update={"code": "G03"})


def full_test(c: Campaign, tree: Tree, key: str, parts: dict[str, float]) -> GateResult:
    c.say("the project's full test")
    log = c.layout.artifacts(key) / "test.log"
    with timed(parts, "check"):
        return _run(c, tree, c.manifest.test_command, log, log.with_suffix(".out"), c.policy.compile_timeout_s)


def full_benchmark(c: Campaign, tree: Tree, key: str, parts: dict[str, float]) -> GateResult:
    """Runs it and reads its CSV strictly; its numbers are never compared with the paired bench's."""
    c.say("the project's full benchmark")
    folder = c.layout.artifacts(key)
    out = folder / "timer_benchmark.csv"
    with timed(parts, "measure"):
        done = _run(c, tree, c.manifest.benchmark_command, folder / "benchmark.log", out, c.policy.compile_timeout_s)
    if not done.ok:
        return done
    try:
        rows = c.read_csv(out, c.manifest.target_shapes)
    except TurboOptError as e:
        return GateResult(code="G05", ok=False, detail=str(e))
    failed = [r.label for r in rows if r.check != "PASS"]
    return GateResult(code="G04", ok=not failed, detail=f"full benchmark: {', '.join(failed) or 'all PASS'}")
