"""Whatever state the user's checkout is in: a campaign works or says in one line why not, and leaves every byte of it."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.toy import CONFIG, KERNEL, TOY, command, config_text, environment, git, make, patch_text, run

NAME = "c"


def seen(top: Path) -> dict[str, str]:
    """Everything of the user's under `top` (the checkout or what holds it): content, mode, time of each file. Left out is
    what is a campaign's own: `campaigns/`, its refs and their logs, its worktree's folder in .git, objects."""
    mine = {p.parent for p in top.rglob(".git/worktrees/*/gitdir") if "/campaigns/" in p.read_text()}
    own = ("refs/turbo-opt", f"refs/heads/optimize/{NAME}", f"refs/heads/optimize/{NAME}.lock")
    found: dict[str, str] = {}
    for path in sorted(top.rglob("*")):
        text = path.relative_to(top).as_posix()
        inside = text.partition(".git/")[2]
        if "campaigns" in path.relative_to(top).parts or mine & {path, *path.parents} or inside.startswith("objects/"):
            continue
        if inside.removeprefix("logs/").startswith(own):
            continue
        if path.is_symlink():
            found[text] = os.readlink(path)
        elif path.is_file():
            stat = path.stat()
            found[text] = f"{hashlib.sha256(path.read_bytes()).hexdigest()} {stat.st_mode:o} {stat.st_mtime_ns}"
    return found


def asked(repo: Path) -> dict[str, str]:
    """What git itself says, campaigns/ and the campaign's refs apart. Takes no lock, refreshes no index."""
    env = {"GIT_OPTIONAL_LOCKS": "0"}
    config = ("-c", "core.hooksPath=/dev/null", "-c", "core.fsmonitor=false")
    refs = git(repo, *config, "for-each-ref", "--format=%(refname) %(objectname)", env=env).splitlines()
    trees = git(repo, "worktree", "list", "--porcelain", env=env).strip().split("\n\n")
    return {
        "status": git(repo, *config, "status", "--porcelain=v2", "--branch", "--untracked-files=all", env=env),
        "stash": git(repo, *config, "stash", "list", env=env),
        "refs": "\n".join(r for r in refs if not r.startswith(("refs/turbo-opt/", f"refs/heads/optimize/{NAME} "))),
        "worktrees": "\n".join(x for x in trees if "/campaigns/" not in x),
    }


@dataclass
class Case:
    """A checkout in some state: where to start from, with what environment, and how that must end."""

    repo: Path  # where the command runs
    top: Path  # what is compared
    env: dict[str, str] = field(default_factory=dict)
    says: str = ""  # the one line, where it must refuse


def _busy(tmp: Path) -> Case:
    """Staged, unstaged, untracked, ignored edits and a stash, all of the kernel's own files too."""
    repo = make(tmp)
    (repo / KERNEL).write_text("stashed\n")
    git(repo, "stash", "--quiet")
    (repo / CONFIG).write_text(config_text(3))
    git(repo, "add", CONFIG)
    (repo / CONFIG).write_text(config_text(5))
    (repo / KERNEL).write_text("broken by the user (\n")
    (repo / "bench/benchmark.py").unlink()
    (repo / "untracked.txt").write_text("mine\n")
    (repo / "kernels/toy/configs/new.json").write_text("{}\n")
    (repo / "secret.ignored").write_text("mine\n")
    (repo / "empty-folder").mkdir()
    (repo / "kernels/toy/__init__.py").chmod(0o755)
    os.symlink("nowhere", repo / "dangling")
    return Case(repo, repo)


def _submodule(tmp: Path) -> Case:
    inner = tmp / "inner"
    inner.mkdir()
    git(inner, "init", "--quiet")
    (inner / "file").write_text("x\n")
    git(inner, "add", ".")
    git(inner, "-c", "user.name=x", "-c", "user.email=x@x", "commit", "--quiet", "-m", "inner")
    repo = make(tmp)
    git(repo, "-c", "protocol.file.allow=always", "submodule", "--quiet", "add", str(inner), "third party/inner")
    git(repo, "commit", "--quiet", "-m", "With a submodule")
    (repo / "third party/inner/file").write_text("edited\n")
    return Case(repo, repo)


def _detached(tmp: Path) -> Case:
    repo = make(tmp)
    git(repo, "checkout", "--quiet", "--detach")
    return Case(repo, repo)


def _linked(tmp: Path) -> Case:
    """Started in a linked worktree on a branch of its own; another linked worktree's folder is away (prunable)."""
    repo = make(tmp, "main checkout")
    git(repo, "worktree", "add", "--quiet", "-b", "side", str(tmp / "linked"))
    git(repo, "worktree", "add", "--quiet", "-b", "away", str(tmp / "on a stick"))
    shutil.rmtree(tmp / "on a stick")
    (tmp / "linked" / "mine.txt").write_text("mine\n")
    return Case(tmp / "linked", tmp)


def _odd_path(tmp: Path) -> Case:
    repo = make(tmp, "späte Übung 'a' & b")
    return Case(repo, repo)


def _hooks(tmp: Path) -> Case:
    repo = make(tmp)
    for name in ("pre-commit", "post-checkout", "reference-transaction", "post-index-change", "commit-msg"):
        hook = repo / ".git/hooks" / name
        hook.parent.mkdir(exist_ok=True)
        hook.write_text(f"#!/bin/sh\necho {name} >> '{tmp}/hooks-ran'\nexit 1\n")
        hook.chmod(0o755)
    return Case(repo, repo)


def _nobody(tmp: Path) -> Case:
    repo = make(tmp)
    git(repo, "config", "--unset", "user.name")
    git(repo, "config", "--unset", "user.email")
    home = tmp / "home"
    home.mkdir()
    return Case(repo, repo, {"HOME": str(home), "XDG_CONFIG_HOME": str(home), "GIT_CONFIG_GLOBAL": "/dev/null"})


SETTINGS = {
    "commit.gpgSign": "true", "gpg.program": "/bin/false", "user.signingKey": "none", "core.autocrlf": "true",
    "core.fsmonitor": "/bin/false", "core.untrackedCache": "true", "core.splitIndex": "false", "color.ui": "always",
    "diff.noprefix": "true", "diff.external": "/bin/false", "log.showSignature": "true", "core.quotePath": "true",
    "i18n.commitEncoding": "ISO-8859-1", "worktree.useRelativePaths": "true", "core.logAllRefUpdates": "always",
    "diff.renames": "copies", "apply.whitespace": "error-all", "core.pager": "/bin/false", "merge.ff": "only",
    "submodule.recurse": "true", "status.showUntrackedFiles": "no", "core.editor": "/bin/false", "gc.auto": "1",
}  # fmt: skip


def _settings(tmp: Path) -> Case:
    repo = make(tmp)
    for key, value in SETTINGS.items():
        git(repo, "config", key, value)
    return Case(repo, repo)


def _sparse(tmp: Path) -> Case:
    """A sparse checkout that leaves out the bench: the campaign's own worktree has everything."""
    repo = make(tmp)
    git(repo, "sparse-checkout", "set", "kernels")
    assert not (repo / "bench").exists()
    return Case(repo, repo)


def _index_lock(tmp: Path) -> Case:
    repo = make(tmp)
    (repo / ".git/index.lock").write_text("stale")
    return Case(repo, repo)


def _git_environment(tmp: Path) -> Case:
    """Inside a hook or an alias, git points everything at the user's own index."""
    repo = make(tmp)
    env = {
        "GIT_DIR": str(repo / ".git"), "GIT_INDEX_FILE": str(repo / ".git/index"), "GIT_WORK_TREE": str(repo),
        "GIT_PREFIX": "kernels/", "GIT_EDITOR": "/bin/false",
    }  # fmt: skip
    return Case(repo, repo, env)


def _subfolder(tmp: Path) -> Case:
    repo = make(tmp)
    return Case(repo / "kernels" / "toy", repo)


def _crlf(tmp: Path) -> Case:
    """Committed with CRLF: patches and commits keep the bytes."""
    repo = make(tmp)
    (repo / KERNEL).write_bytes((repo / KERNEL).read_bytes().replace(b"\n", b"\r\n"))
    git(repo, "commit", "--quiet", "-am", "From another system")
    git(repo, "config", "core.autocrlf", "input")
    return Case(repo, repo)


def _branch_in_the_way(tmp: Path) -> Case:
    repo = make(tmp)
    git(repo, "branch", "optimize")
    return Case(repo, repo, says="branch optimize is in its way")


def _file_in_the_way(tmp: Path) -> Case:
    repo = make(tmp)
    (repo / "campaigns").write_text("a file of the user's\n")
    return Case(repo, repo, says="a file stands where a folder is needed")


def _no_commit_yet(tmp: Path) -> Case:
    repo = make(tmp)
    git(repo, "checkout", "--quiet", "--orphan", "fresh")
    return Case(repo, repo, says="has no commit yet")


CASES: dict[str, Callable[[Path], Case]] = {
    f.__name__.strip("_"): f
    for f in (
        _busy, _submodule, _detached, _linked, _odd_path, _hooks, _nobody, _settings, _sparse, _index_lock,
        _git_environment, _subfolder, _crlf, _branch_in_the_way, _file_in_the_way, _no_commit_yet,
    )
}  # fmt: skip


def start(case: Case, tmp: Path) -> list[str]:
    """Into a folder of its own, so that only the campaign writes under `top`."""
    folder = tmp / "patches"
    folder.mkdir(exist_ok=True)
    text = patch_text(make(tmp / "apart"), {CONFIG: config_text(2)}, "faster")
    (folder / "0001.patch").write_text(text)
    return ["start", *TOY, "--patches", str(folder), "--max-rounds", "2", "--name", NAME]


def same(before: dict[str, str], after: dict[str, str]) -> None:
    assert {k: v for k, v in after.items() if before.get(k) != v} == {}
    assert before.keys() - after.keys() == set()


@pytest.mark.parametrize("name", CASES)
def test_untouched_by_a_whole_campaign(tmp_path: Path, name: str) -> None:
    user = tmp_path / "user"
    user.mkdir()
    case = CASES[name](user)
    args = start(case, tmp_path)
    before, told = seen(case.top), asked(case.repo) if name != "no_commit_yet" else {}
    done = run(case.repo, *args, "--json", env=case.env)
    same(before, seen(case.top))
    if case.says:
        assert done.returncode in (1, 2)
        errors = [x for x in done.stderr.splitlines() if x.startswith("turbo-opt: ")]
        assert len(errors) == 1
        assert case.says in errors[0]
        assert "Traceback" not in done.stderr
        return
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.splitlines()[-1])["accepted"] == 1, done.stderr
    assert asked(case.repo) == told
    branch = f"optimize/{NAME}"
    assert (
        git(case.repo, "-c", "color.ui=false", "diff", "--no-ext-diff", "--name-only", f"{branch}^", branch) == CONFIG
    )
    assert git(case.repo, "fsck", "--strict", "--no-dangling") == ""
    assert not (user / "hooks-ran").exists()
    if name == "nobody":
        assert git(case.repo, "log", "-1", "--format=%an <%ae>", branch) == "turbo-opt <turbo-opt@localhost>"
    if name == "crlf":
        show = ["git", "show", f"{branch}:{KERNEL}"]
        assert b"\r\n" in subprocess.run(show, cwd=case.repo, capture_output=True, check=True).stdout


@pytest.mark.parametrize("name", ["busy", "linked", "settings", "index_lock"])
def test_untouched_by_a_crash_and_a_resume(tmp_path: Path, name: str) -> None:
    user = tmp_path / "user"
    user.mkdir()
    case = CASES[name](user)
    args = start(case, tmp_path)
    before, told = seen(case.top), asked(case.repo)
    process = subprocess.Popen(
        command(*args),
        cwd=case.repo,
        env=environment(case.env),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stderr
    for line in process.stderr:
        if "screen session" in line:
            break
    time.sleep(0.02)  # into the first blocks
    process.send_signal(signal.SIGKILL)
    process.communicate()
    same(before, seen(case.top))
    assert asked(case.repo) == told
    done = run(case.repo, "resume", "--json", env=case.env)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.splitlines()[-1])["accepted"] == 1
    same(before, seen(case.top))
    assert asked(case.repo) == told


def test_a_worktree_that_vanished_is_made_again_and_the_checkout_is_not_its_stand_in(tmp_path: Path) -> None:
    """Without its folder, git would work in whatever directory the runner stands in."""
    user = tmp_path / "user"
    user.mkdir()
    case = _busy(user)
    args = start(case, tmp_path)
    process = subprocess.Popen(
        command(*args), cwd=case.repo, env=environment(), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    )
    before = seen(case.top)
    assert process.stderr
    for line in process.stderr:
        if "aa session" in line:
            shutil.rmtree(case.repo / "campaigns" / NAME / "worktree")
            break
    _, err = process.communicate()
    assert process.returncode == 1
    assert err.splitlines()[-1].startswith("turbo-opt: ")
    assert "worktree is gone" in err
    same(before, seen(case.top))
    done = run(case.repo, "resume", "--json")
    assert json.loads(done.stdout.splitlines()[-1])["accepted"] == 1
    same(before, seen(case.top))
