"""turbo-opt start."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path

import typer

from turbo_optimize.cli.console import here, print_json, progress, stop_on_sigint
from turbo_optimize.cli.outcome import finish
from turbo_optimize.core.errors import TurboOptError


def command(
    op: str = typer.Option(..., "--op", help="Operator, e.g. gemm_fp8 (`turbo-opt ops`)."),
    backend: str = typer.Option("TRITON", "--backend", help="Backend of that operator."),
    gpu: str = typer.Option("auto", "--gpu", help="auto, gfx942, gfx950, sm_90, a product name, or cpu."),
    variant: str | None = typer.Option(None, "--variant", help="blockwise, rowwise, tensorwise, …"),
    dtype: str | None = typer.Option(None, "--dtype", help="Input type, e.g. bf16."),
    shapes: str | None = typer.Option(None, "--shapes", help='all, a YAML file, or "4096x4096x4096,…".'),
    metric: str | None = typer.Option(None, "--metric", help="Primary metric."),
    target: str | None = typer.Option(None, "--target", help='">500 TFLOPS" or ">60% peak": ends the campaign.'),
    max_rounds: int | None = typer.Option(None, "--max-rounds", help="1 to 119; the baseline is round 1."),
    max_duration: str | None = typer.Option(None, "--max-duration", help="90s, 30m, 2h."),
    proposer: str | None = typer.Option(None, "--proposer", help="search, patches or manual."),
    patches: str | None = typer.Option(None, "--patches", help="A folder of patches or a branch, one a round."),
    policy: str | None = typer.Option(None, "--policy", help="standard, precise, cpu, or a YAML file."),
    mode: str = typer.Option("repo", "--mode", help="repo: a worktree of this repository."),
    branch: str = typer.Option("auto", "--branch", help="auto, none, or a name."),
    no_commit: bool = typer.Option(False, "--no-commit", help="Keep accepted changes under refs only; no branch."),
    project: Path | None = typer.Option(None, "--project", help="A project file (docs/projects.md)."),
    name: str | None = typer.Option(None, "--name", help="The campaign's name."),
    seed: int | None = typer.Option(None, "--seed", help="Seed of the proposer's choices."),
    yes: bool = typer.Option(False, "--yes", "-y", help="Don't ask."),
    dry_run: bool = typer.Option(False, "--dry-run", help="Print the filled manifest; touch nothing."),
    as_json: bool = typer.Option(False, "--json", help="The outcome as one JSON object on the last line."),
) -> None:
    from turbo_optimize import engine
    from turbo_optimize.core.errors import UsageError
    from turbo_optimize.effects.devices import held_gpu
    from turbo_optimize.phases.define import Request, define_target
    from turbo_optimize.reports.manifest import manifest_yaml

    if mode != "repo":
        raise UsageError(f"unknown mode {mode!r}", "there is repo")
    repo = here()
    request = Request(
        op=op, backend=backend, gpu=gpu, variant=variant, dtype=dtype, shapes=shapes, metric=metric, target=target,
        max_rounds=max_rounds, max_duration=max_duration, proposer=proposer, patches=patches, policy=policy,
        branch=branch, commit=not no_commit, project=project, name=name, seed=seed,
    )  # fmt: skip
    plan = define_target(request, repo)
    for warning in plan.warnings:
        print(f"note: {warning}", file=sys.stderr)
    if dry_run:
        print_json(plan.manifest.model_dump(mode="json")) if as_json else print(manifest_yaml(plan.manifest), end="")
        return
    if not yes and not as_json and sys.stdin.isatty() and sys.stdout.isatty():
        plan = _confirm(plan)
    with held_gpu(plan.manifest.target_gpu), progress() as say, stop_on_sigint(say) as stop:
        campaign, lock = engine.create(plan, repo, say, stop=stop)
        with lock:
            engine.begin(campaign, "start")
            engine.run(campaign)
    finish(campaign, as_json)


def _confirm(plan):
    """Shows the filled manifest: accept, edit in $EDITOR, or abort."""
    from turbo_optimize.reports.manifest import load_manifest, manifest_yaml

    while True:
        print(manifest_yaml(plan.manifest), end="")
        answer = typer.prompt("accept / edit / abort", default="accept").strip().lower()
        if answer in ("a", "accept", "y", "yes"):
            return plan
        if answer in ("abort", "q", "n", "no"):
            raise typer.Abort
        if answer in ("e", "edit"):
            with tempfile.NamedTemporaryFile("w+", suffix=".yaml", encoding="utf-8") as f:
                f.write(manifest_yaml(plan.manifest))
                f.flush()
                editor = os.environ.get("VISUAL") or os.environ.get("EDITOR") or "vi"
                subprocess.run([*shlex.split(editor), f.name], check=True)
                try:
                    edited = load_manifest(Path(f.name).read_text(encoding="utf-8"), "the edited manifest")
                    plan = plan.model_copy(update={"manifest": edited})
                except TurboOptError as e:
                    print(f"turbo-opt: {e}", file=sys.stderr)
