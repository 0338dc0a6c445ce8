"""What a user types wrong: one line, an exit code of 1 or 2, and not a byte written."""

from __future__ import annotations

import hashlib
import importlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from tests import toy
from tests.core.test_schema import FAULTS
from tests.effects.test_store import fill, mounted
from tests.toy import TOY, git, run
from turbo_optimize.cli import app
from turbo_optimize.core.schema import DEFECTS
from turbo_optimize.effects.layout import Layout
from turbo_optimize.effects.probe import gpus
from turbo_optimize.effects.store import Lock, read_events


@pytest.fixture(scope="module")
def repo(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A toy repository that every refusal must leave as it is; `other` is a second branch, without a commit of its own."""
    top = toy.make(tmp_path_factory.mktemp("refused"))
    git(top, "branch", "other/branch")
    return top


def picture(repo: Path) -> dict[str, str]:
    """Every file outside .git by its hash, and every ref. A lock file holds whoever looked last: not part of it."""
    files = (
        p for p in repo.rglob("*") if p.is_file() and ".git" not in p.relative_to(repo).parts and p.name != ".lock"
    )
    found = {str(p.relative_to(repo)): hashlib.sha256(p.read_bytes()).hexdigest() for p in files}
    if (repo / ".git").is_dir():
        found["refs"] = git(repo, "for-each-ref")
    return found


def one_line(done: subprocess.CompletedProcess[str], *said: str, code: int | None = None) -> str:
    """What a refusal says: one line of ours, or the box that the command line's parser prints (exit 2)."""
    text = re.sub(r"[│\s]+", " ", done.stderr)
    assert done.returncode in ((1, 2) if code is None else (code,)), text
    assert done.stdout == ""
    if "Usage: " in text:
        assert done.returncode == 2
    else:
        assert done.stderr.startswith("turbo-opt: ")
        assert done.stderr.count("\n") == 1, done.stderr
    assert "Traceback" not in text
    assert "a bug" not in text
    for words in said:
        assert words in text, text
    return text


COMMAND_MODULES = tuple(f"turbo_optimize.cli.{module}" for module, _ in app.COMMANDS.values())


def forked(where: Path, *args: str) -> subprocess.CompletedProcess[str]:
    """`turbo-opt ARGS` in a process that begins with everything imported: ten refusals in the time of one start."""
    for name in ("git.cmd", "typer.rich_utils", "turbo_optimize.phases.define", *COMMAND_MODULES):
        importlib.import_module(name)
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err:
        pid = os.fork()
        if pid == 0:
            code = 70
            try:
                os.chdir(where)
                os.dup2(out.fileno(), 1)
                os.dup2(err.fileno(), 2)
                os.environ.clear()
                os.environ.update(toy.environment())
                sys.argv = ["turbo-opt", *args]
                with open(1, "w", closefd=False) as sys.stdout, open(2, "w", closefd=False) as sys.stderr:
                    code = _exit_of(app.main)
            finally:
                os._exit(code)
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        out.seek(0)
        err.seek(0)
        return subprocess.CompletedProcess(["turbo-opt", *args], code, out.read(), err.read())


def _exit_of(main: Callable[[], None]) -> int:
    try:
        main()
    except SystemExit as e:
        return e.code if isinstance(e.code, int) else 70
    return 0


def refused(where: Path, args: Sequence[str], *said: str, code: int | None = None) -> None:
    """The command is refused in one line that has all that is `said`, and everything stays as it was."""
    before = picture(where)
    one_line(forked(where, *args), *said, code=code)
    assert picture(where) == before


# -- words of the command line -----------------------------------------------------------------------------------------
WORDS: list[tuple[str, tuple[str, ...]]] = [
    ("--op toyy", ("unknown op 'toyy'", "did you mean toy?")),
    ("--op toy --backend TRITN", ("unknown backend 'TRITN' for toy", "did you mean TRITON?")),
    ("--op toy --gpu H20", ("no GPU called 'H20'", "did you mean H200?")),
    ("--op toy --gpu abacus", ("no GPU called 'abacus'", "one of gfx942,")),
    ("--op toy --variant defalt", ("unknown variant 'defalt' for toy", "did you mean default?")),
    ("--op toy --dtype bf61", ("unknown dtype 'bf61' for toy", "did you mean bf16?")),
    ("--op toy --metric step_tflop", ("unknown metric 'step_tflop' for toy", "did you mean step_tflops")),
    ("--op toy --metric gbps", ("unknown metric 'gbps' for toy", "step_tflops")),
    ("--op toy --metric ''", ("unknown metric ''",)),
    ("--op toy --proposer serch", ("unknown proposer 'serch'", "did you mean search?")),
    ("--op toy --policy stndard", ("unknown policy 'stndard'", "did you mean standard?", "YAML file")),
    ("--op toy --policy ''", ("unknown policy ''", "standard, precise, cpu")),
    ("--op toy --policy nowhere.yaml", ("unknown policy 'nowhere.yaml'",)),
    ("--op toy --mode workspace", ("unknown mode 'workspace'", "there is repo")),
    ("--op toy --max-rounds 0", ("--max-rounds 0", "1 to 119")),
    ("--op toy --max-rounds 120", ("--max-rounds 120", "1 to 119")),
    ("--op toy --max-rounds -1", ("--max-rounds -1", "1 to 119")),
    ("--op toy --max-rounds abc", ("--max-rounds", "valid integer")),
    ("--op toy --seed abc", ("--seed", "valid integer")),
    *((f"--op toy --max-duration {x}", ("--max-duration", "90s, 30m, 2h")) for x in ("soon", "0s", "-5m", "1.5h", "2", "''")),
    *((f"--op toy --target '{x}'", (">500 TFLOPS",)) for x in ("", "500", ">", ">500", ">x TFLOPS", "<5 TFLOPS", ">-5 TFLOPS")),
    *((f"--op toy --target '{x}'", ("out of range",)) for x in (">0 TFLOPS", ">100% peak")),
    ("--op toy --target '>5 GB/s'", ("step_tflops is in TFLOPS", "name a number of TFLOPS")),
    ("--op toy --shapes ''", ("--shapes: '' is not a shape", "4096x4096x4096")),
    ("--op toy --shapes 8x8x8,", ("--shapes: '' is not a shape",)),
    ("--op toy --shapes axbxc", ("'axbxc' is not a shape", "MxNxK or BxMxNxK")),
    ("--op toy --shapes ٣x8x8", ("'٣x8x8' is not a shape",)),
    ("--op toy --shapes -8x8x8", ("dimensions must be ≥ 1", "'M': -8")),
    ("--op toy --shapes 8x0x8", ("dimensions must be ≥ 1", "'N': 0")),
    ("--op toy --shapes 9999999999x8x8", ("below 2³¹", "'M': 9999999999")),
    ("--op toy --shapes 8x8", ("8x8 has 2 dimensions", "expected MxNxK or BxMxNxK")),
    ("--op toy --shapes 1x2x3x4x5", ("has 5 dimensions",)),
    ("--op toy --shapes 8x8x8,1x8x8x8", ("--shapes names 8x8x8 twice",)),
    ("--op toy --shapes nowhere.yaml", ("nowhere.yaml: no such file", "`shapes`")),
    ("--op toy --branch ''", ("--branch '' is not a branch name",)),
    *((f"--op toy --branch '{x}'", (f"--branch '{x}' is not a branch name",)) for x in ("a..b", "a b", "-x")),
    *((f"--op toy --branch {x}", (f"--branch '{x}' is not a branch name",)) for x in ("@", "@{-1}", "HEAD", "refs/heads/x")),
    ("--op toy --branch main", ("branch main exists", "choose another --branch")),
    ("--op toy --branch main/sub", ("branch main is in its way",)),
    ("--op toy --branch other", ("branch other/branch is in its way",)),
    *((f"--op toy --name '{x}'", (f"--name '{x}'",)) for x in ("", "Up", "a/b", "../x", "-x", "a..b", "a.", "a.lock", "a" * 90)),
    ("--op toy --name tips", ("--name 'tips'", "another use")),
    ("--op toy --name a..b --branch none", ("--name 'a..b'",)),
    ("--op toy --proposer patches", ("--patches SOURCE", "a folder of patches or a branch")),
    ("--op toy --proposer manual --patches .", ("--patches SOURCE",)),
    ("--op toy --patches ''", ("--patches '': neither a folder nor a branch",)),
    ("--op toy --patches nowhere", ("--patches 'nowhere': neither a folder nor a branch",)),
    ("--op toy --patches other/branch", ("no commit after", "ahead of HEAD")),
    ("--op toy --patches kernels", ("kernels holds no *.patch or *.diff", "git format-patch")),
    ("--op toy --project nowhere.yaml", ("nowhere.yaml: no such file", "docs/projects.md")),
    ("--op toy --project kernels", ("kernels: can't be read",)),
    ("--backend TRITON", ("Missing option '--op'",)),
    ("--op toy --sed 1", ("No such option: --sed", "--seed")),
    ("--op toy extra", ("unexpected extra argument", "extra")),
]  # fmt: skip


@pytest.mark.parametrize(("words", "said"), WORDS, ids=[words for words, _ in WORDS])
def test_a_wrong_word(repo: Path, words: str, said: tuple[str, ...]) -> None:
    args = [w.strip("'") for w in re.findall(r"'[^']*'|\S+", words)]
    gpu = () if "--gpu" in args else ("--gpu", "cpu")
    refused(repo, ["start", *args, *gpu], *said, code=1 if "--project" in words or "--shapes nowhere" in words else 2)


def test_a_wrong_word_in_a_process_of_its_own(repo: Path) -> None:
    before = picture(repo)
    one_line(run(repo, "start", "--op", "toyy"), "unknown op 'toyy'", "did you mean toy?", code=2)
    one_line(run(repo, "start", *TOY, "--max-rounds", "abc"), "--max-rounds", "valid integer", code=2)
    assert picture(repo) == before


def test_a_patch_that_is_no_text(repo: Path, tmp_path: Path) -> None:
    (tmp_path / "1.patch").write_bytes(b"Subject: \xe9t\xe9\n")
    refused(repo, ["start", *TOY, "--patches", str(tmp_path)], "1.patch: can't be read", "UTF-8")


def test_another_branch_in_the_way_of_every_campaigns_branch(tmp_path: Path) -> None:
    repo = toy.make(tmp_path)
    git(repo, "branch", "optimize")
    refused(repo, ["start", *TOY], "branch optimize is in its way", "--branch, or none")


def test_a_gpu_that_is_not_here(repo: Path, tmp_path: Path) -> None:
    found = sorted({g.arch for g in gpus()})
    absent = next(a for a in ("gfx942", "gfx950", "sm_90") if a not in found)
    project = project_with(repo, tmp_path, "gpus: [cpu]", f"gpus: [cpu, {absent}]")
    said = (f"no {absent} on this machine", f"found {', '.join(found) or 'no GPU'}", "--gpu cpu")
    refused(repo, ["start", "--op", "toy", "--gpu", absent, "--project", str(project)], *said)


def test_a_backend_that_is_not_for_this_gpu(repo: Path, tmp_path: Path) -> None:
    project = project_with(repo, tmp_path, "gpus: [cpu]", "gpus: [gfx942]")
    refused(
        repo, ["start", *TOY, "--project", str(project)], "not available on cpu", "it is for gfx942", "turbo-opt ops"
    )
    why = project_with(repo, tmp_path, "gpus: [cpu]", "gpus: [cpu]\n        unavailable: needs its vendor's package")
    refused(repo, ["start", *TOY, "--project", str(why)], "not available on cpu: needs its vendor's package")


# -- files -------------------------------------------------------------------------------------------------------------
SHAPES: list[tuple[str, tuple[str, ...]]] = [
    ("shapes: [{M: -8, N: 8, K: 8}]", ("shapes[0]", "dimensions must be ≥ 1", "'M': -8")),
    ("shapes: [8x8x8, {M: 8, N: 8}]", ("shapes[1]: K is missing", "B, M, N, K")),
    ("shapes: [{M: 8, N: 8, K: 8, L: 1}]", ("shapes[0]: L: no such dimension",)),
    ("shapes: [{M: eight, N: 8, K: 8}]", ("shapes[0]", "is not a shape", "expected integers")),
    ("shapes: [[8, 8, 8.5]]", ("shapes[0]", "is not a shape")),
    ("shapes: [[8, 8, true]]", ("shapes[0]", "is not a shape")),
    ("shapes: [8x8]", ("shapes[0]", "2 dimensions")),
    ("shapes: [null]", ("shapes[0]: None is not a shape",)),
    ("shapes: [[8, 8, 8], 8x8x8]", ("shapes.yaml names 8x8x8 twice",)),
    ("shapes: []", ("expected the one key `shapes`, a list of at least one",)),
    ("shapes: {M: 8}", ("expected the one key `shapes`",)),
    ("shape: [8x8x8]", ("shape ", "expected the one key `shapes`")),
    ("shapes: [8x8x8]\nmore: 1", ("expected the one key `shapes`",)),
    ("shapes: [8x8x8]\nshapes: [4x4x4]", ("line 2: key 'shapes' stands twice",)),
    ("- 8x8x8", ("a list at the top",)),
    ("", ("nothing in it",)),
    ("shapes: [8x8x8", ("line 1: not YAML",)),
    ("a: b: c", ("line 1: not YAML",)),
]


@pytest.mark.parametrize(("text", "said"), SHAPES, ids=[text for text, _ in SHAPES])
def test_a_wrong_file_of_shapes(repo: Path, tmp_path: Path, text: str, said: tuple[str, ...]) -> None:
    path = tmp_path / "shapes.yaml"
    path.write_text(text)
    refused(repo, ["start", *TOY, "--shapes", str(path)], str(path), *said)


POLICY: list[tuple[str, tuple[str, ...]]] = [
    ("veto_pc: 3", ("veto_pc: no such key", "did you mean veto_pct")),
    ("veto_pct: much", ("veto_pct: input should be a valid number",)),
    ("veto_pct: -1", ("veto_pct: input should be greater than 0",)),
    ("min_gain_pct: .nan", ("min_gain_pct: input should be a finite number",)),
    ("quads: 3.5", ("quads: input should be a valid integer",)),
    ("quads: 2\ntrim: 1", ("trim 1 leaves nothing of 2 quads",)),
    ("block_timeout_s: 0", ("block_timeout_s: input should be greater than 0",)),
    ("base: stndard", ("base: no policy 'stndard'", "did you mean standard?")),
    ("quads: 4\nquads: 6", ("line 2: key 'quads' stands twice",)),
    ("- quads", ("a list at the top", "a mapping of policy fields")),
    ("", ("nothing in it",)),
    ("quads: [", ("line 1: not YAML",)),
]


@pytest.mark.parametrize(("text", "said"), POLICY, ids=[text for text, _ in POLICY])
def test_a_wrong_policy_file(repo: Path, tmp_path: Path, text: str, said: tuple[str, ...]) -> None:
    path = tmp_path / "own.yaml"
    path.write_text(text)
    refused(repo, ["start", *TOY, "--policy", str(path)], str(path), *said)


def project_with(repo: Path, tmp_path: Path, old: str, new: str) -> Path:
    """A copy of the toy's project file with one place changed; `$` stands for the rest of the old line."""
    text = (repo / "project.yaml").read_text()
    changed, count = re.subn(re.escape(old).replace(r"\$", "[^\n]*"), lambda _: new, text, count=1)
    assert count, old
    path = tmp_path / "own-project.yaml"
    path.write_text(changed)
    return path


PROJECT: list[tuple[str, str, tuple[str, ...]]] = [
    ("name: toys", "name: [toys", ("line ", "not YAML")),
    ("name: toys", "name: toys\nname: toys", ("line 2: key 'name' stands twice",)),
    ("name: toys", "nam: toys", ("nam: no such key", "did you mean name?")),
    ("metric:", "metrc:", ("ops.toy.metrc: no such key", "did you mean metric?")),
    ("lang:", "lng:", ("ops.toy.backends.TRITON.lng: no such key", "did you mean lang?")),
    ("adapter: $", "", ("ops.toy.adapter: required, and missing",)),
    ("test_command: $", "test_command: 3", ("ops.toy.test_command: input should be a valid string",)),
    ("gpus: [cpu]", "gpus: cpu", ("TRITON.gpus: input should be a valid list",)),
    ("schema_class: gemm", "schema_class: gem", ("ops.toy.schema_class: input should be 'gemm', 'memory' or",)),
    ("metric: step_tflops", "metric: step_tflop", ("ops.toy.metric: no metric 'step_tflop'", "step_tflops")),
    ("metric: $", "metric: step_tflops\n    peak: bf61", ("ops.toy.peak", "no 'bf61' peak", "bf16")),
    ("metric: $", "metric: step_tflops\n    variants: []", ("ops.toy.variants: list should have at least 1",)),
    ("  toy:", "  my toy:", ("ops.my toy",)),
    ("editable: $", "editable: []", ("editable: list should have at least 1 item",)),
    ("z_accept: 1.0", "z_acept: 1.0", ("policy: z_acept: no such key", "did you mean z_accept")),
    ("cpu_shapes: $", "cpu_shapes: []", ("ops.toy.cpu_shapes: no target shapes", "--shapes")),
    ("cpu_shapes: $", "cpu_shapes: [[8, 8, -8]]", ("ops.toy.cpu_shapes[0]", "'K': -8")),
    ("cpu_shapes: $", "cpu_shapes: [[8, 8, 8], [8]]", ("ops.toy.cpu_shapes[1]", "1 dimensions")),
    ("cpu_shapes: $", "cpu_shapes: [[8, 8, 8], [1, 8, 8, 8]]", ("ops.toy.cpu_shapes names 8x8x8 twice",)),
    ("kernel_source: $", "kernel_source: [kernels/gone.py]", ("kernel source kernels/gone.py is not in commit",)),
    ("adapter: $", "adapter: bench/gone.py", ("adapter bench/gone.py is not in commit",)),
    ("frozen: $", "frozen: [gone.py]", ("harness gone.py is not in commit",)),
    ("quick_template: $", "quick_template: gone.j2", ("quick_template gone.j2 is neither shipped nor in commit",)),
    ("test_command: $", 'test_command: ""', ("test_command is empty",)),
    ("test_command: $", 'test_command: "{pyton} x"', ("test_command", "no {pyton}", "{python}")),
    ("{out}", "{out", ("benchmark_command", "a brace of its own is written twice")),
    ("configs/{gpu}.json\"\n          sections", "configs/{gp}.json\"\n          sections", ("no {gp}", "{gpu}")),
    ("configs/{gpu}.json\"\n          sections", "configs/x.json\"\n          sections", ("configs/x.json is not in commit",)),
    ("sections: [step]", "sections: [stp]", ("space: ", "no section 'stp'")),
    ("params: [SPEED]", "params: [SPED]", ("direction speed: no param 'SPED'", "SPEED, LANES")),
    ("sections: [step]", "fits: gemm_til\n          sections: [step]", ("fits 'gemm_til' is unknown", "gemm_tile")),
]  # fmt: skip


@pytest.mark.parametrize(("old", "new", "said"), PROJECT, ids=[new or old for old, new, _ in PROJECT])
def test_a_wrong_project_file(repo: Path, tmp_path: Path, old: str, new: str, said: tuple[str, ...]) -> None:
    path = project_with(repo, tmp_path, old, new)
    refused(repo, ["start", *TOY, "--project", str(path)], str(path), *said)


def test_search_without_a_space(repo: Path, tmp_path: Path) -> None:
    path = tmp_path / "own.yaml"
    path.write_text((repo / "project.yaml").read_text().partition("        space:")[0])
    refused(
        repo, ["start", *TOY, "--project", str(path)], "backends.TRITON.space: missing", "--proposer patches or manual"
    )


NIGHT: list[tuple[str, tuple[str, ...]]] = [
    ("name: [n", ("line 1: not YAML",)),
    ("name: n", ("targets: required, and missing",)),
    ("name: n\ntargets: [{op: gemm, backend: T, max_round: 4}]", ("targets.0.max_round", "did you mean max_rounds")),
    (
        "name: n\ntargets: [{op: gemm, backend: T, max_rounds: x}]",
        ("targets.0.max_rounds: input should be a valid integer",),
    ),
    ("name: n\ntargets: []", ("targets: at least one target",)),
]


@pytest.mark.parametrize(("text", "said"), NIGHT, ids=[text for text, _ in NIGHT])
def test_a_wrong_nightly_file(repo: Path, tmp_path: Path, text: str, said: tuple[str, ...]) -> None:
    path = tmp_path / "night.yaml"
    path.write_text(text)
    refused(repo, ["nightly", str(path)], str(path), *said)


# -- places ------------------------------------------------------------------------------------------------------------
EVERYWHERE = (("start", *TOY), ("status",), ("resume",), ("list",), ("undo", "2"), ("tips",), ("stop",))


@pytest.mark.parametrize("args", EVERYWHERE, ids=" ".join)
def test_outside_a_repository(tmp_path: Path, args: tuple[str, ...]) -> None:
    shutil.copy(toy.FILES / "project.yaml", tmp_path)
    refused(tmp_path, args, "is not inside a git checkout", "cd into a clone", code=1)


def test_a_repository_without_a_commit(tmp_path: Path) -> None:
    git(tmp_path, "init", "--quiet")
    shutil.copy(toy.FILES / "project.yaml", tmp_path)
    refused(tmp_path, ["start", *TOY], "has no commit yet", "commit the kernels first")


def test_a_bare_repository(repo: Path, tmp_path: Path) -> None:
    git(tmp_path, "clone", "--quiet", "--bare", str(repo), "bare.git")
    refused(tmp_path / "bare.git", ["start", *TOY], "is not inside a git checkout", "must be run in a work tree")
    assert git(tmp_path / "bare.git", "for-each-ref", "refs/turbo-opt") == ""


def test_a_repository_without_a_project_file(tmp_path: Path) -> None:
    repo = toy.make(tmp_path)
    (repo / "project.yaml").unlink()
    refused(repo, ["start", *TOY], "has no project.yaml", "--project")


@pytest.mark.parametrize(
    "args", [("status",), ("status", "x"), ("show", "1"), ("resume",), ("undo", "1"), ("verify",), ("replay", "--policy", "cpu")]
)  # fmt: skip
def test_no_campaign_yet(repo: Path, args: tuple[str, ...]) -> None:
    refused(repo, args, "no campaign in", "turbo-opt start")


# -- a campaign that is there ------------------------------------------------------------------------------------------
AFTER: list[tuple[str, tuple[str, ...]]] = [
    *((f"{c} dome", ("unknown campaign 'dome'", "did you mean done?")) for c in ("status", "resume", "report", "log", "verify", "stop")),
    ("replay dome --policy cpu", ("unknown campaign 'dome'", "did you mean done?")),
    ("show 2 -c dome", ("unknown campaign 'dome'", "did you mean done?")),
    ("show 99", ("no round 99 in done", "rounds: 1 to 5")),
    ("show 0", ("no round 0 in done",)),
    ("show two", ("'N'", "valid integer")),
    ("validate --round 99", ("no round 99 in done", "rounds: 1 to 5")),
    ("validate --round 2 --level deep", ("--level 'deep'", "quick or full")),
    ("validate", ("Missing option '--round'",)),
    ("undo 1", ("round 1 is not an accepted round", "accepted are: 2, 5")),
    ("undo 3", ("round 3 is not an accepted round", "accepted are: 2, 5")),
    ("undo 77", ("round 77 is not an accepted round",)),
    ("recover 77", ("no round 77 in done", "rounds: 1 to 5")),
    ("recover 2 --attempt 9", ("round 2 left no attempt 9",)),
    ("diff 1 99", ("no round 99 in done",)),
    ("diff 1", ("Missing argument 'M'",)),
    ("replay --policy nope", ("unknown policy 'nope'", "standard, precise, cpu")),
    ("replay", ("Missing option '--policy'",)),
    ("resume --max-rounds 0", ("--max-rounds 0", "1 to 119")),
    ("resume --max-duration soon", ("--max-duration 'soon'", "90s, 30m, 2h")),
    ("resume --max-duration ''", ("--max-duration ''",)),
    ("rules NOPE", ("no rule 'NOPE'", "G01")),
    ("rules D2", ("no rule 'D2'", "did you mean D02")),
    ("ops --gpu H20", ("no GPU called 'H20'", "H200")),
    ("tips --gpu H20", ("no GPU called 'H20'", "H200")),
    ("start --op toy --gpu cpu --name done", ("campaign done exists", "turbo-opt resume")),
    ("start --op toy --gpu cpu --branch optimize/done", ("branch optimize/done exists",)),
    ("statsu", ("No such command 'statsu'", "status")),
    ("--nope", ("No such option: --nope",)),
]  # fmt: skip


def test_a_wrong_word_about_a_campaign(finished: Path) -> None:
    before = picture(finished)
    for words, said in AFTER:
        one_line(forked(finished, *(w.strip("'") for w in words.split())), *said, code=2)
        assert picture(finished) == before, words


def edited_line(path: Path, old: str, new: str) -> None:
    """One line of a file, found by how it begins, replaced."""
    text = path.read_text()
    assert len(re.findall(rf"^{old}.*$", text, re.MULTILINE)) == 1
    path.write_text(re.sub(rf"^{old}.*\n", lambda _: new, text, flags=re.MULTILINE))


MANIFEST: list[tuple[str, str, tuple[str, ...]]] = [
    ("max_rounds:", "max_rounds: many\n", ("max_rounds: expected a valid integer", "'many'")),
    ("max_rounds:", "max_rounds: 120\n", ("max_rounds: expected less than 120",)),
    ("max_rounds:", "max_round: 30\n", ("max_round: unknown key", "did you mean max_rounds?")),
    ("max_rounds:", "", ("max_rounds: expected a value, the key is missing",)),
    ("max_rounds:", "max_rounds: [\n", ("line ",)),
    ("max_rounds:", "max_rounds: 30\nmax_rounds: 31\n", ("key 'max_rounds' stands twice",)),
    ("target_gpu:", "target_gpu: gfx942\n", ("target_gpu: is 'gfx942'", "defined with 'cpu'", "turbo-opt report")),
    ("seed:", "seed: 2\n", ("seed: is 2", "defined with 1", "frozen")),
]


def test_a_wrong_manifest_of_a_campaign(finished: Path) -> None:
    path = finished / "campaigns/done/manifest.yaml"
    good = path.read_text()
    for old, new, said in MANIFEST:
        edited_line(path, old, new)
        refused(finished, ["resume"], f"{path}: ", *said, code=1)
        refused(finished, ["undo", "2"], f"{path}: ", *said, code=1)
        path.write_text(good)
    path.write_text("")
    refused(finished, ["resume"], f"{path}: expected a mapping of keys, got nothing")


GARBAGE: dict[str, Callable[[bytes], bytes]] = {
    "not a journal line": lambda line: b"\x00\xff garbage",
    "not an event of this version": lambda line: line.replace(b'"kind":"', b'"kind":"un'),
    "doesn't follow from the line before it": lambda line: line.replace(b'"round":', b'"round": '),
    "is numbered 13, expected 12: a line is missing": lambda line: line.replace(b'"n":12,', b'"n":13,'),
}


def test_a_journal_with_garbage_in_the_middle(finished: Path) -> None:
    path = finished / "campaigns/done/journal.jsonl"
    good = path.read_bytes()
    for problem, spoil in GARBAGE.items():
        lines = good.split(b"\n")
        lines[11] = spoil(lines[11])
        path.write_bytes(b"\n".join(lines))
        assert path.read_bytes() != good
        for args in (("status",), ("resume",), ("log",), ("show", "2"), ("report",), ("undo", "2")):
            refused(finished, args, f"{path} line 12: {problem}", "turbo-opt verify", code=1)
        before = picture(finished)
        told = run(finished, "verify")
        assert told.returncode == 1
        assert "line 12" in told.stdout
        assert "MISMATCH" in told.stdout
        assert told.stderr.startswith("turbo-opt: ")
        assert told.stderr.count("\n") == 1
        assert picture(finished) == before


def test_a_second_runner_names_the_first(finished: Path) -> None:
    with Lock(Layout(finished / "campaigns/done").lock, "campaign done"):
        for args in (("resume",), ("undo", "2"), ("validate", "--round", "2")):
            refused(finished, args, f"campaign done is held by process {os.getpid()}", "turbo-opt stop", code=1)


# -- file systems that refuse ------------------------------------------------------------------------------------------
READS = (
    ("status",),
    ("list",),
    ("log",),
    ("show", "2"),
    ("diff", "1", "2"),
    ("verify",),
    ("replay", "--policy", "cpu"),
)
WRITES = (("resume",), ("report",), ("undo", "2"), ("recover", "3"), ("stop",), ("start", *TOY))


def test_a_read_only_checkout_can_be_read(finished: Path, tmp_path: Path) -> None:
    with mounted(tmp_path / "small", "size=32m") as small:
        repo = moved(finished, small)
        remount(small, "ro")
        for args in READS:
            done = run(repo, *args)
            assert done.returncode == 0, f"{args}: {done.stderr}"
        remount(small, "rw")
        (repo / "campaigns/done/logs/cost.md").unlink()  # else `report` would have nothing to write
        remount(small, "ro")
        for args in WRITES:
            refusal = "unable to create" if args[0] == "recover" else "ead-only file system"  # git's words, ours
            one_line(run(repo, *args), refusal, code=1)


def test_a_full_disk_is_one_line_and_leaves_what_was_there(finished: Path, tmp_path: Path) -> None:
    with mounted(tmp_path / "small", "size=32m") as small:
        repo = moved(finished, small)
        report = repo / "campaigns/done/report/report.md"
        before = report.read_bytes()
        (repo / "campaigns/done/logs/cost.md").unlink()
        ballast = fill(small)
        one_line(run(repo, "report"), "no space left on device", "free some space", code=1)
        assert report.read_bytes() == before
        assert run(repo, "status").returncode == 0
        ballast.unlink()
        assert run(repo, "report").returncode == 0


def remount(where: Path, how: str) -> None:
    subprocess.run(["mount", "-o", f"remount,{how}", str(where)], check=True)


def moved(finished: Path, to: Path) -> Path:
    """The repository on another file system; git is told where its worktree stands now."""
    repo = shutil.copytree(finished, to / "toy", symlinks=True)
    git(repo, "worktree", "repair", str(repo / "campaigns/done/worktree"))
    return repo


# -- a benchmark command that writes something else --------------------------------------------------------------------
# code -> what becomes of the good file's bytes `b`; `cell(column, text)` replaces one cell of the first row
SPOILT: dict[str, str] = {
    "C01": r"b + b'\xff,1\n'",
    "C02": r"b'\xef\xbb\xbf' + b",
    "C03": r"b.replace(b'\n', b'\r\n')",
    "C04": "b[:-1]",
    "C05": "b''",
    "C06": "b.replace(b',db_snr', b'')",
    "C07": r"b.replace(b'db_snr\n', b'db_snr,clock_mhz\n')",
    "C08": "b.replace(b'Forward Time (ms)', b'Forward Time (us)')",
    "C09": "b.replace(b'M,N,', b'N,M,')",
    "C10": "b.replace(b'M,N,', b'M,M,')",
    "C11": r"b + b'\n'",
    "C12": r"b'\n'.join(b.split(b'\n')[:2]) + b'\n'",
    "C13": r"b + b.split(b'\n')[1] + b'\n'",
    "C14": r"b.replace(b'\n8x8x8,', b'\n9x9x9,')",
    "C15": "cell('Forward TFLOPS', '')",
    "C16": "cell('Forward TFLOPS', 'fast')",
    "C17": "cell('out_snr', 'nan')",
    "C18": "cell('Forward TFLOPS', 'inf')",
    "C19": "cell('Backward Time (ms)', '-1.0')",
    "C20": "cell('Check', 'pass')",
    "C21": "cell('M', '9')",
    "C22": "cell('Forward TFLOPS', '1024e6', 'Forward Time (ms)', '1e-15', 'Backward TFLOPS', '2048e6', 'Backward Time (ms)', '1e-15')",
    "C23": "cell('Forward TFLOPS', '99.0')",
}
SCRIPT = """
import runpy, sys
from pathlib import Path

out, shapes = sys.argv[1:]
sys.argv = ["bench/benchmark.py", "--csv", out, "--shapes", shapes]
runpy.run_path("bench/benchmark.py", run_name="__main__")
b = Path(out).read_bytes()


def cell(*pairs):
    lines = b.decode().split("\\n")
    cells = lines[1].split(",")
    for column, text in zip(pairs[::2], pairs[1::2]):
        cells[lines[0].split(",").index(column)] = text
    return "\\n".join([lines[0], ",".join(cells), *lines[2:]]).encode()


"""


def test_every_defect_of_a_benchmark_csv_is_covered() -> None:
    assert set(SPOILT) == set(DEFECTS)
    assert {code for code, _ in FAULTS} | {"C22"} == set(DEFECTS)  # at the reader's own level


@pytest.mark.parametrize("code", SPOILT)
def test_a_benchmark_csv_with_a_defect_stops_the_start(tmp_path: Path, code: str) -> None:
    repo = toy.make(tmp_path)
    script = tmp_path / "spoil.py"
    script.write_text(f"{SCRIPT}Path(out).write_bytes({SPOILT[code]})\n")
    project = project_with(
        repo, tmp_path, "benchmark_command: $", f'benchmark_command: "{{python}} {script} {{out}} {{shapes}}"'
    )
    done = run(repo, "start", *TOY, "--project", str(project), "--name", "c")
    assert done.returncode == 1, done.stderr
    ours = [line for line in done.stderr.splitlines() if line.startswith("turbo-opt: ")]
    assert ours == done.stderr.splitlines()[-1:]
    assert f"{code}: {DEFECTS[code]}" in ours[0]
    assert "Traceback" not in done.stderr
    kinds = [e.kind for e in read_events(repo / "campaigns/c/journal.jsonl")]
    assert kinds[-1] == "learned"  # the checks need no benchmark; the baseline does
    assert "baselined" not in kinds
    assert git(repo, "rev-parse", "optimize/c") == git(repo, "rev-parse", "main")
