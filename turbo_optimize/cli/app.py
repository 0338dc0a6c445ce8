"""turbo-opt: the command line, and the one place where an error becomes a line and an exit code.

Imports nothing heavy: a command's module is imported when the command runs, so `--help` answers at once.
"""

from __future__ import annotations

import functools
import importlib
import os
import sys
import tempfile
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import typer

from turbo_optimize.core.errors import TurboOptError

# command -> (module under turbo_optimize.cli, help line). The module's function is `command`.
COMMANDS: dict[str, tuple[str, str]] = {
    "start": ("start", "Define a target, measure its baseline, optimize, report."),
    "resume": ("resume", "Go on after a crash, a ^C or a spent budget."),
    "validate": ("validate", "Measure and decide the open round; or measure a closed one again."),
    "report": ("report", "Rebuild every log, table and page from the journal."),
    "status": ("status", "Where a campaign stands."),
    "list": ("listing", "All campaigns of this repository."),
    "show": ("show", "One round in full."),
    "diff": ("diff", "Kernel diff and per-shape table between two rounds."),
    "log": ("log", "The journal as a table."),
    "stop": ("stop", "End after the present step, then report."),
    "undo": ("undo", "Take an accepted round back by a revert commit."),
    "recover": ("recover", "Bring any attempt back as a branch."),
    "replay": ("replay", "Re-decide a campaign from its samples under another policy."),
    "verify": ("verify", "Re-score, re-hash, re-decide; check the lineage."),
    "ops": ("ops", "The operator × backend × GPU table, with reasons."),
    "bench": ("bench", "One operator's full benchmark, or the suite beside torch."),
    "rules": ("rules", "The rules that decide, one page a code."),
    "tips": ("tips", "Lessons of earlier campaigns."),
    "nightly": ("nightly", "Many campaigns, gated against the last good night."),
    "doctor": ("doctor", "This machine: each finding with its mend."),
}


# Set inside hooks and aliases, they would point git at the user's index (`git rev-parse --local-env-vars`).
GIT_LOCAL = (
    "GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE", "GIT_OBJECT_DIRECTORY", "GIT_ALTERNATE_OBJECT_DIRECTORIES", "GIT_COMMON_DIR",
    "GIT_NAMESPACE", "GIT_PREFIX", "GIT_CONFIG", "GIT_CONFIG_PARAMETERS", "GIT_CONFIG_COUNT", "GIT_GRAFT_FILE",
    "GIT_NO_REPLACE_OBJECTS", "GIT_REPLACE_REF_BASE", "GIT_SHALLOW_FILE", "GIT_IMPLICIT_WORK_TREE",
)  # fmt: skip


def _bug() -> Path:
    """Writes the traceback where the user can find it."""
    fd, name = tempfile.mkstemp(prefix="turbo-opt-bug-", suffix=".log")
    with os.fdopen(fd, "w") as f:
        traceback.print_exc(file=f)
    return Path(name)


def edge(command: Callable[..., Any]) -> Callable[..., None]:
    """The error boundary: 0 success, 1 known error, 2 usage, 3 bug, 4 gate failed, 130 interrupted."""

    @functools.wraps(command)
    def wrapped(*args: Any, **kwargs: Any) -> None:
        try:
            command(*args, **kwargs)
            sys.stdout.flush()
            return
        except TurboOptError as e:
            print(f"turbo-opt: {e}", file=sys.stderr)
            code = e.exit_code
        except KeyboardInterrupt:
            code = 130
        except BrokenPipeError:
            # The reader left (`| head`): quiet, and nothing more may be written on the way out.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return
        except typer.Exit:
            raise
        except Exception:
            print(f"turbo-opt: a bug; the traceback is in {_bug()} — please report it", file=sys.stderr)
            code = 3
        raise typer.Exit(code)

    return wrapped


def _listed() -> None:
    """Stands for a command that wasn't asked for: only its name and line are shown."""


def _root(version: bool = typer.Option(False, "--version", help="Print the version.")) -> None:
    if version:
        from turbo_optimize.effects.probe import version as installed

        typer.echo(f"turbo-opt {installed('turbo-optimize').replace('not installed', '(a checkout, not installed)')}")
        raise typer.Exit


def build(asked: str | None) -> typer.Typer:
    """The command line with the asked command imported and all others only listed."""
    app = typer.Typer(
        no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False,
        help="Unattended, honest optimization campaigns for GPU kernels.",
    )  # fmt: skip
    app.callback(invoke_without_command=True)(_root)
    for name, (module, line) in COMMANDS.items():
        function = edge(importlib.import_module(f"turbo_optimize.cli.{module}").command) if name == asked else _listed
        app.command(name, help=line)(function)
    return app


def main() -> None:
    for key in GIT_LOCAL:
        os.environ.pop(key, None)
    build(next((a for a in sys.argv[1:] if not a.startswith("-")), None))()


if __name__ == "__main__":
    main()
