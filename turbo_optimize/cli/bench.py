"""turbo-opt bench: one operator's full benchmark, or the suite. Both are commands of the project's own Python, on a GPU that
nobody else measures on meanwhile."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

if TYPE_CHECKING:
    from turbo_optimize.core.models import Op
    from turbo_optimize.effects.devices import Device

SUITE_ONLY = ("group", "folder", "plot", "quick", "backend", "budget")


def command(
    op: str | None = typer.Argument(None, help="The operator; with --suite several, comma-separated."),
    op_option: str | None = typer.Option(None, "--op", help="The same."),
    suite: bool = typer.Option(
        False, "--suite", help="All operators beside torch's own calls, on public models' shapes."
    ),
    group: str | None = typer.Option(None, "--group", "-g", help="Of the suite: dense, moe, …"),
    variant: str | None = typer.Option(None, "--variant", help="One variant; the suite takes all of them."),
    dtype: str | None = typer.Option(None, "--dtype", help="One dtype."),
    shapes: str | None = typer.Option(
        None, "--shapes", help='Of one operator: "4096x4096x4096,…"; else the project\'s.'
    ),
    backend: str | None = typer.Option(None, "--backend", help="Of the suite: this backend instead of the default."),
    quick: bool = typer.Option(False, "--quick", help="Of the suite: a few shapes of each group."),
    budget: float | None = typer.Option(None, "--budget", help="Of the suite: stop after so many seconds."),
    out: Path | None = typer.Option(None, "--csv", "-o", help="The CSV goes here."),
    folder: Path | None = typer.Option(None, "--dir", "-d", help="Of the suite: suite.csv and suite.svg go here."),
    plot: Path | None = typer.Option(None, "--plot", help="Of the suite: an SVG of the ratios."),
    gpu: str | None = typer.Option(None, "--gpu", help="A number or UUID, or cpu (miniatures, interpreted)."),
    project: Path | None = typer.Option(None, "--project", help="A project file (docs/projects.md)."),
    as_json: bool = typer.Option(False, "--json", help="The rows as JSON."),
) -> None:
    from turbo_optimize.core.errors import UsageError

    name = op or op_option
    given = {"group": group, "folder": folder, "plot": plot, "quick": quick, "backend": backend, "budget": budget}
    if not suite and (wrong := [k for k in SUITE_ONLY if given[k]]):
        flag = {"folder": "dir"}.get(wrong[0], wrong[0])
        raise UsageError(f"--{flag} is the suite's", "add --suite, or leave it out")
    if suite and folder:
        folder.mkdir(parents=True, exist_ok=True)
        out, plot = out or folder / "suite.csv", plot or folder / "suite.svg"
    if suite:
        options = {"op": name, "group": group, "variant": variant, "dtype": dtype, "backend": backend, "csv": out,
                   "plot": plot, "budget": budget}  # fmt: skip
        _suite(options, [f"--{n}" for n, on in (("quick", quick), ("json", as_json)) if on], gpu)
    elif name:
        _single(name, variant, dtype, shapes, out, gpu, project, as_json)
    else:
        raise UsageError("no operator given", "name one (`turbo-opt ops` lists them), or ask for the --suite")


def _suite(options: Mapping[str, object], flags: Sequence[str], gpu: str | None) -> None:
    from turbo_optimize.data import data_path

    words = [w for k, v in options.items() if v is not None for w in (f"--{k}", str(v))]
    models = data_path("SHAPES.yaml")
    argv = [sys.executable, "-m", "turbo_kernels.suite", *words, *flags, "--models", str(models)]
    _finish(_run(argv, Path.cwd(), _library(models.parent), gpu))


def _library(shipped: Path) -> list[Path]:
    """Where the operator library lies: in the repository that we stand in, else beside the product; [] once installed."""
    from turbo_optimize.cli.console import here
    from turbo_optimize.core.errors import RepoError

    tops = [shipped]
    with contextlib.suppress(RepoError):
        tops.insert(0, here().top)
    return [top / "kernels" for top in tops if (top / "kernels" / "turbo_kernels").is_dir()][:1]


def _single(name: str, variant: str | None, dtype: str | None, shapes: str | None, out: Path | None, gpu: str | None,
            project: Path | None, as_json: bool) -> None:  # fmt: skip
    from turbo_optimize.cli.console import print_json
    from turbo_optimize.cli.ops import _project_file
    from turbo_optimize.core.errors import UsageError
    from turbo_optimize.projects.loader import load_project, nearest

    path = _project_file(project)
    known = load_project(path).ops
    if name not in known:
        raise UsageError(f"no op {name!r} in {path}{nearest(name, known)}")
    with tempfile.TemporaryDirectory(prefix="turbo-opt-bench-") as scratch:
        written = (out or Path(scratch) / "benchmark.csv").resolve()
        line = _filled(known[name], name, variant, dtype, shapes, written, _device(gpu))
        roots = [path.parent / r for r in known[name].import_roots]
        code = _run(["/bin/sh", "-c", line], path.parent, roots, gpu, quiet=as_json)
        if as_json and written.is_file():
            header, *lines = written.read_text().splitlines()
            print_json([dict(zip(header.split(","), row.split(","), strict=True)) for row in lines])
    _finish(code)


def _filled(
    op: Op, name: str, variant: str | None, dtype: str | None, shapes: str | None, out: Path, device: Device
) -> str:
    """The op's benchmark command. What it has no place for is put behind it: --variant, --dtype."""
    import shlex

    own = op.gpu_shapes if device.visible else op.cpu_shapes
    values: dict[str, Any] = {
        "python": shlex.quote(sys.executable), "tree": ".", "out": shlex.quote(str(out)), "op": name,
        "shapes": shlex.quote(shapes or ",".join("x".join(map(str, s[1:] if s[0] == 1 else s)) for s in own)),
        "device": "cuda" if device.visible else "cpu", "variant": variant or op.variants[0], "dtype": dtype or op.dtypes[0],
    }  # fmt: skip
    more = {"variant": variant, "dtype": dtype}
    extra = "".join(f" --{k} {shlex.quote(v)}" for k, v in more.items() if v and f"{{{k}}}" not in op.benchmark_command)
    return op.benchmark_command.format(**values) + extra


def _device(gpu: str | None) -> Device:
    """The one asked for; else the first visible GPU; else the CPU."""
    from turbo_optimize.core.errors import UsageError
    from turbo_optimize.effects.devices import CPU, devices
    from turbo_optimize.effects.probe import gpus

    visible = devices(gpus(), os.environ)
    if gpu == "cpu" or (gpu is None and not visible):
        return CPU
    for device in visible:
        if gpu in (None, device.visible, device.uuid):
            return device
    raise UsageError(f"no GPU {gpu} here", f"there are {', '.join(d.visible for d in visible) or 'none'}, and cpu")


def _run(argv: Sequence[str], cwd: Path, roots: Sequence[Path], gpu: str | None, quiet: bool = False) -> int:
    """The exit code of a command that sees this device alone, whose lock is held meanwhile."""
    from turbo_optimize.effects.devices import hold

    device = _device(gpu)
    path = os.pathsep.join([*map(str, roots), *filter(None, [os.environ.get("PYTHONPATH")])])
    env = os.environ | {"PYTHONPATH": path} | device.environment
    if not device.visible:
        env |= {"TRITON_INTERPRET": "1", "CUDA_VISIBLE_DEVICES": "", "HIP_VISIBLE_DEVICES": ""}
    with hold(device) if device.visible else contextlib.nullcontext():
        return subprocess.run(argv, cwd=cwd, env=env, check=False, stdout=sys.stderr if quiet else None).returncode


def _finish(code: int) -> None:
    """The command's own exit code, which means the same here; it has said why."""
    from turbo_optimize.core.errors import TurboOptError

    if code < 0:
        raise TurboOptError(f"the benchmark was ended by signal {-code}")
    if code:
        raise typer.Exit(code)
