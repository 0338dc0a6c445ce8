"""Git plumbing on real repositories: compare-and-swap, private indices, worktrees, exports, reverts."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.toy import CONFIG, KERNEL, config_text, environment, git, make
from turbo_optimize.core.errors import RepoError
from turbo_optimize.effects.repo import Repo

BRANCH = "refs/heads/optimize/x"


@pytest.fixture
def top(tmp_path: Path) -> Path:
    return make(tmp_path)


@pytest.fixture
def repo(top: Path) -> Repo:
    return Repo.discover(top)


@pytest.fixture
def worktree(repo: Repo) -> Path:
    """On the campaign's branch, where a campaign has it."""
    base = git(repo.top, "rev-parse", "HEAD")
    repo.move_ref(BRANCH, base, None)
    path = repo.top / "campaigns" / "x" / "worktree"
    repo.add_worktree(path, BRANCH, base)
    return path


def head(repo: Repo) -> str:
    found = repo.resolve("HEAD")
    assert found
    return found


def change(repo: Repo, worktree: Path, parent: str, speed: int, at: float = 1e9) -> str:
    (worktree / CONFIG).write_text(config_text(speed))
    commit = repo.commit(repo.tree_from(worktree, parent), [parent], f"speed {speed}\n", at)
    (worktree / CONFIG).write_text(config_text())
    return commit


# -- discovering -------------------------------------------------------------------------------------------------------
def test_outside_a_checkout_is_one_line_with_the_mend(tmp_path: Path) -> None:
    with pytest.raises(RepoError, match="is not inside a git checkout") as e:
        Repo.discover(tmp_path)
    assert "git init" in e.value.hint


def test_from_a_subfolder_and_from_a_linked_worktree(top: Path, tmp_path: Path) -> None:
    assert Repo.discover(top / "kernels").top == top
    git(top, "worktree", "add", "--quiet", str(tmp_path / "linked"), "-b", "side")
    linked = Repo.discover(tmp_path / "linked")
    assert linked.top == tmp_path / "linked"
    assert linked.common_dir == top / ".git"


def test_a_missing_folder_never_falls_back_to_the_current_one(repo: Repo, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(repo.top)
    with pytest.raises(RepoError, match="is gone"):
        repo.git("status", cwd=repo.top / "nowhere")


# -- commits -----------------------------------------------------------------------------------------------------------
def test_the_same_arguments_give_the_same_commit(repo: Repo) -> None:
    tree, base = repo.tree_of("HEAD"), head(repo)
    one = repo.commit(tree, [base], "a subject\n\nwith é\n", 1234567890.9)
    assert repo.commit(tree, [base], "a subject\n\nwith é\n", 1234567890.2) == one
    assert repo.message(one).rstrip("\n") == "a subject\n\nwith é"
    assert repo.author(one) == ("Toy Maker", "toy@example.com")


def test_like_keeps_an_identity_that_has_changed_since(repo: Repo) -> None:
    tree, base = repo.tree_of("HEAD"), head(repo)
    first = repo.commit(tree, [base], "attempt\n", 1e9)
    decided = repo.commit(tree, [base], "decided\n", 1e9, like=first)
    git(repo.top, "config", "user.name", "Somebody Else")
    assert repo.commit(tree, [base], "decided\n", 1e9, like=first) == decided
    assert repo.commit(tree, [base], "decided\n", 1e9) != decided


def test_tree_from_takes_the_worktree_and_no_index_of_anybody(repo: Repo, worktree: Path) -> None:
    (worktree / CONFIG).write_text(config_text(4))
    (worktree / "new.py").write_text("x = 1\n")
    (worktree / "junk.ignored").write_text("no\n")
    (worktree / "bench/benchmark.py").unlink()
    own, users = (
        (d / "index").read_bytes() for d in (Path(git(worktree, "rev-parse", "--absolute-git-dir")), repo.top / ".git")
    )
    tree = repo.tree_from(worktree, head(repo))
    assert repo.changed(head(repo), tree) == ("bench/benchmark.py", CONFIG, "new.py")
    assert (Path(git(worktree, "rev-parse", "--absolute-git-dir")) / "index").read_bytes() == own
    assert (repo.top / ".git" / "index").read_bytes() == users


def test_tree_from_a_damaged_worktree_is_not_the_users_checkout(repo: Repo, worktree: Path) -> None:
    """Without its `.git` file, git would walk up into the user's checkout."""
    (worktree / ".git").unlink()
    (worktree / CONFIG).write_text(config_text(2))
    assert repo.changed(head(repo), repo.tree_from(worktree, head(repo))) == (CONFIG,)


# -- refs --------------------------------------------------------------------------------------------------------------
def test_move_ref_is_a_compare_and_swap(repo: Repo, worktree: Path) -> None:
    base, ref = head(repo), "refs/turbo-opt/x/round-2"
    two, three = change(repo, worktree, base, 2), change(repo, worktree, base, 4)
    repo.move_ref(ref, two, None)
    repo.move_ref(ref, two, None)  # a repeated step
    repo.move_ref(ref, three, two)
    with pytest.raises(RepoError, match=f"expected {base}") as e:
        repo.move_ref(ref, two, base)
    assert "somebody moved it" in e.value.hint
    assert repo.refs("refs/turbo-opt/x/") == {ref: three}


def test_what_is_in_a_refs_way_is_said_by_git_itself(repo: Repo) -> None:
    git(repo.top, "branch", "optimize")
    with pytest.raises(RepoError, match="refs/heads/optimize' exists"):
        repo.move_ref(BRANCH, head(repo), None)


def test_locks_of_a_killed_git_are_cleared_the_users_stay(repo: Repo, worktree: Path) -> None:
    base = head(repo)
    admin = Path(git(worktree, "rev-parse", "--absolute-git-dir"))
    common = repo.common_dir
    mine = [
        common / f"{BRANCH}.lock",
        common / "refs/turbo-opt/x/round-2.lock",
        admin / "index.lock",
        admin / "HEAD.lock",
    ]
    users = [common / "index.lock", common / "refs/heads/main.lock"]
    for lock in (*mine, *users):
        lock.parent.mkdir(parents=True, exist_ok=True)
        lock.touch()
    two = change(repo, worktree, base, 2)
    with pytest.raises(RepoError, match=r"optimize/x\.lock"):
        repo.move_ref(BRANCH, two, base)
    repo.clear_locks(worktree, (BRANCH, "refs/turbo-opt/x"))
    assert not any(x.exists() for x in mine)
    assert all(x.exists() for x in users)
    repo.move_ref(BRANCH, two, base)
    repo.move_ref("refs/turbo-opt/x/round-2", two, None)
    repo.sync_worktree(worktree, two)


# -- worktrees ---------------------------------------------------------------------------------------------------------
def test_sync_makes_the_worktree_the_commit_and_nothing_else(repo: Repo, worktree: Path) -> None:
    two = change(repo, worktree, head(repo), 2)
    (worktree / KERNEL).write_text("edited\n")
    (worktree / "junk.ignored").write_text("x\n")
    (worktree / "kernels/toy/more").mkdir()
    (worktree / "kernels/toy/more/file").write_text("x\n")
    (worktree / "bench/benchmark.py").unlink()
    repo.move_ref(BRANCH, two, head(repo))
    repo.sync_worktree(worktree, two)
    assert git(worktree, "status", "--porcelain", "--branch", "--ignored") == "## optimize/x"
    assert (worktree / CONFIG).read_text() == config_text(2)
    assert git(repo.top, "status", "--porcelain") == "?? campaigns/"


def test_sync_of_a_detached_worktree_moves_its_head(repo: Repo, tmp_path: Path) -> None:
    path = tmp_path / "detached"
    repo.add_worktree(path, None, head(repo))
    two = change(repo, path, head(repo), 2)
    repo.sync_worktree(path, two)
    assert git(path, "rev-parse", "HEAD") == two
    assert git(path, "status", "--porcelain") == ""


@pytest.mark.parametrize("damage", ["folder", "git file", "admin", "half made"])
def test_a_lost_worktree_is_made_again(repo: Repo, worktree: Path, damage: str) -> None:
    admin = Path(git(worktree, "rev-parse", "--absolute-git-dir"))
    if damage == "folder":
        shutil.rmtree(worktree)
    elif damage == "git file":
        (worktree / ".git").unlink()
    elif damage == "admin":
        shutil.rmtree(admin)
    else:
        (admin / "locked").write_text("initializing")
        (admin / "index").unlink()
    repo.add_worktree(worktree, BRANCH, head(repo))
    assert git(worktree, "status", "--porcelain", "--branch", "--ignored") == "## optimize/x"


def test_other_worktrees_stay_even_where_their_folder_is_away(repo: Repo, worktree: Path, tmp_path: Path) -> None:
    git(repo.top, "worktree", "add", "--quiet", str(tmp_path / "stick"), "-b", "stick")
    (tmp_path / "stick").rename(tmp_path / "pocket")
    shutil.rmtree(worktree)
    repo.add_worktree(worktree, BRANCH, head(repo))
    (tmp_path / "pocket").rename(tmp_path / "stick")
    assert git(tmp_path / "stick", "status", "--porcelain", "--branch") == "## stick"


# -- exports and reverts -----------------------------------------------------------------------------------------------
def test_export_is_complete_or_made_again(repo: Repo, worktree: Path, tmp_path: Path) -> None:
    two = change(repo, worktree, head(repo), 2)
    target = tmp_path / "trees" / two[:16]
    repo.export(two, target)
    assert (target / CONFIG).read_text() == config_text(2)
    assert sorted(p.relative_to(target).as_posix() for p in target.rglob("*") if p.is_file()) == sorted(repo.files(two))
    (target / KERNEL).unlink()
    (tmp_path / "trees" / f"{two[:16]}.complete").unlink()  # as a crash in the middle leaves it
    (target / "left over").touch()
    repo.export(two, target)
    assert (target / KERNEL).is_file()
    assert not (target / "left over").exists()


@pytest.mark.parametrize(
    "settings", [{}, {"color.ui": "always", "diff.noprefix": "true", "diff.external": "/bin/false"}]
)
def test_reverted_takes_one_change_out_of_many(repo: Repo, worktree: Path, settings: dict[str, str]) -> None:
    for key, value in settings.items():
        git(repo.top, "config", key, value)
    base = head(repo)
    two = change(repo, worktree, base, 2)
    (worktree / CONFIG).write_text(config_text(2))
    (worktree / KERNEL).write_text((worktree / KERNEL).read_text() + "# é, later\n")
    three = repo.commit(repo.tree_from(worktree, two), [two], "later\n", 1e9)
    tree = repo.reverted(two, three)
    assert tree
    assert repo.changed(base, tree) == (KERNEL,)
    assert repo.changed(three, tree) == (CONFIG,)


def test_reverted_says_none_where_later_changes_build_on_it(repo: Repo, worktree: Path) -> None:
    two = change(repo, worktree, head(repo), 2)
    (worktree / CONFIG).write_text(config_text(4))
    four = repo.commit(repo.tree_from(worktree, two), [two], "on top\n", 1e9)
    assert repo.reverted(two, four) is None


def test_reverted_reaches_a_line_whose_neighbour_changed_since(repo: Repo, worktree: Path) -> None:
    """Two sections of a launch configuration stand line on line; each can be taken back alone."""
    path = worktree / "kernels" / "lines.json"

    def commit(parent: str, text: str) -> str:
        path.write_text(text)
        return repo.commit(repo.tree_from(worktree, parent), [parent], f"{text}\n", 1e9)

    base = commit(head(repo), '{\n  "a": 1,\n  "b": 1,\n  "c": 1\n}\n')
    second = commit(base, '{\n  "a": 1,\n  "b": 2,\n  "c": 1\n}\n')
    third = commit(second, '{\n  "a": 1,\n  "b": 2,\n  "c": 2\n}\n')
    tree = repo.reverted(second, third)
    assert tree
    assert repo.show(tree, "kernels/lines.json") == '{\n  "a": 1,\n  "b": 1,\n  "c": 2\n}\n'


def test_git_ends_with_its_runner_and_takes_its_locks_along(repo: Repo, worktree: Path) -> None:
    """A slow filter holds git in the middle of `add`; the runner is killed."""
    git(repo.top, "config", "filter.slow.clean", "sleep 600")
    (worktree / ".gitattributes").write_text("*.json filter=slow\n")
    (worktree / CONFIG).write_text(config_text(2))
    code = "import sys; from pathlib import Path; from turbo_optimize.effects.repo import Repo\n"
    code += "r = Repo.discover(Path(sys.argv[1])); r.tree_from(Path(sys.argv[2]), r.resolve('HEAD'))"
    command = [sys.executable, "-c", code, str(repo.top), str(worktree)]
    null = subprocess.DEVNULL
    runner = subprocess.Popen(command, env=environment(), cwd=repo.top, stdout=null, stderr=null)
    mine: list[int] = []
    end = time.monotonic() + 20
    try:
        while not (mine := _children(runner.pid, "add")) and time.monotonic() < end:
            time.sleep(0.01)
        runner.kill()
        runner.wait()
        while _running(mine) and time.monotonic() < end:
            time.sleep(0.01)
        assert mine
        assert not _running(mine)
    finally:
        runner.kill()
        for pid in mine:
            os.killpg(pid, signal.SIGKILL)  # the filter sleeps on: it is the user's, not git's


def _children(pid: int, word: str) -> list[int]:
    found = subprocess.run(
        ["ps", "-ww", "--ppid", str(pid), "-o", "pid=,args="], capture_output=True, text=True, check=False
    ).stdout
    return [int(line.split()[0]) for line in found.splitlines() if f" {word} " in line]


def _running(pids: list[int]) -> list[int]:
    return [p for p in pids if Path(f"/proc/{p}").exists() and " Z " not in Path(f"/proc/{p}/stat").read_text()]
