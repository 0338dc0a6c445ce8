"""Git, without ever touching the user's checkout: no hooks, no user index, no HEAD but the campaign's own worktree's.

Objects are made by plumbing over private index files; refs move by compare-and-swap. Every call passes through
`Repo.git`, which runs no hook and takes no optional lock.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from turbo_optimize.core.errors import RepoError
from turbo_optimize.effects.proc import die_with_parent
from turbo_optimize.effects.store import disk_errors
from turbo_optimize.effects.watch import disk_is_full

ZERO = "0" * 40
FALLBACK_IDENTITY = ("turbo-opt", "turbo-opt@localhost")
# What a user's settings must not change: no hook and no signing; bytes as they are committed, all of them; patches that
# `git apply` reads back; objects and refs on disk before the journal speaks of them; no file of ours in the user's .git.
_QUIET = (
    "core.hooksPath=/dev/null", "commit.gpgSign=false", "tag.gpgSign=false", "core.fsmonitor=false", "gc.auto=0",
    "maintenance.auto=false", "advice.detachedHead=false", "core.quotePath=false", "submodule.recurse=false",
    "core.autocrlf=false", "core.sparseCheckout=false", "core.splitIndex=false", "color.ui=false", "diff.noprefix=false",
    "diff.mnemonicPrefix=false", "log.showSignature=false", "i18n.commitEncoding=UTF-8", "i18n.logOutputEncoding=UTF-8",
    "worktree.useRelativePaths=false", "core.fsync=objects,reference",
)  # fmt: skip

# Commands that change nothing: they may outlive a killed runner, and start faster without a word to the system.
_READERS = frozenset(
    ("config", "diff", "diff-tree", "for-each-ref", "log", "ls-tree", "rev-list", "rev-parse", "show", "status")
)


class Repo:
    """The repository that holds the kernels, seen from one of its checkouts."""

    def __init__(self, top: Path, common_dir: Path) -> None:
        self.top, self.common_dir = top, common_dir

    @staticmethod
    def discover(start: Path) -> Repo:
        """The repository around `start`. RepoError outside one, in a bare one, or before the first commit."""
        probe = Repo(start, start)
        try:
            top, common = probe.git("rev-parse", "--show-toplevel", "--git-common-dir").split("\n")[:2]
        except RepoError as e:
            raise RepoError(
                f"{start} is not inside a git checkout ({_first(str(e))})",
                "cd into a clone of the project whose kernels are to be optimized, or `git init` and commit",
            ) from None
        repo = Repo(Path(top), Path(start, common).resolve())
        if not repo.resolve("HEAD"):
            raise RepoError(f"{top} has no commit yet", "commit the kernels first: a campaign starts from a commit")
        return repo

    def git(
        self,
        *args: str,
        cwd: Path | None = None,
        env: Mapping[str, str] | None = None,
        stdin: bytes | None = None,
        raw: bool = False,
    ) -> str:
        """Runs git; its standard output, without the last newline unless `raw`. RepoError with git's own first line."""
        from git.cmd import Git  # imported late: a fifth of a second that --help shouldn't pay

        settings = {"GIT_OPTIONAL_LOCKS": "0", "GIT_TERMINAL_PROMPT": "0", "GIT_EDITOR": "true", "LC_ALL": "C"}
        command = ["git", *(x for q in _QUIET for x in ("-c", q)), *args]
        where = cwd or self.top
        if not where.is_dir():  # else git would run wherever this process is: in the user's checkout
            raise RepoError(f"{where} is gone", "`turbo-opt resume` makes a campaign's worktree again")
        runner = Git(str(where))
        with _stdin_file(stdin) as handle:
            status, out, err = runner.execute(
                command, istream=handle, with_extended_output=True, with_exceptions=False,  # type: ignore[arg-type]
                strip_newline_in_stdout=False, env=settings | dict(env or {}),
                start_new_session=True,  # a terminal's ^C is the runner's to handle
                preexec_fn=None if args[0] in _READERS else _leave_with_runner,
            )  # fmt: skip
        if status:
            mend = "no space left on device: free some, then `turbo-opt resume`" if disk_is_full(where) else ""
            raise RepoError(f"git {' '.join(args[:3])}: {_first(err) or f'exit {status}'}", mend)
        text = str(out)
        return text if raw else text.removesuffix("\n")

    # -- reading ---------------------------------------------------------------------------------------------------
    def resolve(self, name: str) -> str | None:
        """The commit that a name stands for, or None."""
        try:
            return self.git("rev-parse", "--verify", "--quiet", f"{name}^{{commit}}")
        except RepoError:
            return None

    def tree_of(self, commit: str) -> str:
        return self.git("rev-parse", "--verify", f"{commit}^{{tree}}")

    def parent_of(self, commit: str) -> str:
        return self.git("rev-parse", "--verify", f"{commit}^")

    def message(self, commit: str) -> str:
        return self.git("log", "-1", "--format=%B", commit)

    def changed(self, a: str, b: str) -> tuple[str, ...]:
        """Paths that differ between two commits or trees."""
        out = self.git("diff-tree", "-r", "--name-only", "--no-renames", "-z", a, b)
        return tuple(p for p in out.split("\0") if p)

    def diff(self, a: str, b: str, *paths: str) -> str:
        return self.git("diff", "--no-color", "--no-ext-diff", "--no-renames", a, b, "--", *paths, raw=True)

    def show(self, commit: str, path: str) -> str | None:
        """A file's text at a commit, or None where it isn't there."""
        try:
            return self.git("show", f"{commit}:{path}", raw=True)
        except RepoError:
            return None

    def files(self, commit: str) -> tuple[str, ...]:
        return tuple(p for p in self.git("ls-tree", "-r", "--name-only", "-z", commit).split("\0") if p)

    def lineage(self, base: str, head: str) -> tuple[str, ...]:
        """Commits after base up to head, oldest first."""
        out = self.git("rev-list", "--reverse", "--first-parent", f"{base}..{head}")
        return tuple(out.split("\n")) if out else ()

    def status(self) -> tuple[str, ...]:
        """The user's uncommitted paths, read without a lock on the index."""
        out = self.git("status", "--porcelain", "-z", "--untracked-files=no", "--ignore-submodules=all")
        return tuple(entry[3:] for entry in out.split("\0") if entry)

    def identity(self) -> tuple[str, str, bool]:
        """Name, e-mail, and whether they are the user's own (else the fallback's)."""
        values = []
        for key in ("user.name", "user.email"):
            try:
                values.append(self.git("config", "--get", key))
            except RepoError:
                values.append("")
        own = all(values)
        return (*(v or f for v, f in zip(values, FALLBACK_IDENTITY, strict=True)), own)  # type: ignore[return-value]

    def author(self, commit: str) -> tuple[str, str]:
        name, email = self.git("log", "-1", "--format=%an%n%ae", commit).split("\n")
        return name, email

    # -- objects ---------------------------------------------------------------------------------------------------
    @contextlib.contextmanager
    def _index(self, tree: str | None = None) -> Iterator[dict[str, str]]:
        """Environment of a private index, filled from `tree`."""
        with _scratch() as d:
            env = {"GIT_INDEX_FILE": str(Path(d, "index"))}
            if tree:
                self.git("read-tree", tree, env=env)
            yield env

    def tree_from(self, worktree: Path, parent: str) -> str:
        """The tree of what stands in a worktree (its ignored files left out), as if committed onto parent."""
        where = self.at_worktree(worktree)
        with self._index(parent) as env:
            self.git(*where, "add", "--all", "--", ".", cwd=worktree, env=env)
            return self.git("write-tree", env=env)

    def commit(self, tree: str, parents: Sequence[str], message: str, at: float, like: str | None = None) -> str:
        """A commit object. The same arguments give the same id: the time comes from the journal, and with `like` the
        identity from that commit, so that a changed user.name can't make a second commit of one decision."""
        name, email = self.author(like) if like else self.identity()[:2]
        date = f"{int(at)} +0000"
        env = {
            "GIT_AUTHOR_NAME": name, "GIT_AUTHOR_EMAIL": email, "GIT_AUTHOR_DATE": date,
            "GIT_COMMITTER_NAME": name, "GIT_COMMITTER_EMAIL": email, "GIT_COMMITTER_DATE": date,
        }  # fmt: skip
        args = [x for p in parents for x in ("-p", p)]
        return self.git("commit-tree", tree, *args, env=env, stdin=message.encode())

    def reverted(self, commit: str, onto: str) -> str | None:
        """The tree of `onto` without the change of `commit`; None where they conflict.

        Where only the surrounding lines have changed since (a launch configuration's sections stand line on line), the
        change itself is taken back, provided that each of its places is known by a line it replaced.
        """
        whole, bare = self._undoing(commit), self._undoing(commit, "-U0")
        if not whole:
            return self.tree_of(onto)
        tries: list[tuple[str, tuple[str, ...]]] = [(whole, ())]
        if not re.search(r"^@@ -\d+,0 ", bare, re.MULTILINE):  # a pure insertion has no line to be known by
            tries.append((bare, ("--unidiff-zero",)))
        for patch, options in tries:
            with self._index(onto) as env, contextlib.suppress(RepoError):
                data = patch.encode("utf-8", "surrogateescape")
                self.git("apply", "--cached", "--whitespace=nowarn", *options, "-", env=env, stdin=data)
                return self.git("write-tree", env=env)
        return None

    def _undoing(self, commit: str, *options: str) -> str:
        """The patch that takes a commit back."""
        plain = ("--binary", "--full-index", "--no-renames", "--no-ext-diff", "--no-textconv")
        return self.git("diff", *plain, *options, commit, f"{commit}^", raw=True)

    # -- refs ------------------------------------------------------------------------------------------------------
    def move_ref(self, ref: str, new: str, old: str | None) -> None:
        """Compare-and-swap; `old` None means that the ref must not exist. Already at `new` is fine (a repeated step)."""
        if self.resolve(ref) == new:
            return
        try:
            self.git("update-ref", "--no-deref", "-m", "turbo-opt", ref, new, old or ZERO)
        except RepoError as e:
            if self.resolve(ref) == old:  # nobody moved it: git itself says what is in the way
                raise
            raise RepoError(
                f"{ref} is not where the campaign left it ({self.resolve(ref) or 'gone'}, expected {old or 'nothing'})",
                "somebody moved it: put it back with `git update-ref`, then `turbo-opt resume`",
            ) from e

    def refs(self, prefix: str) -> dict[str, str]:
        out = self.git("for-each-ref", "--format=%(refname) %(objectname)", prefix)
        return dict(line.split(" ", 1) for line in out.split("\n") if line)

    # -- trees on disk ---------------------------------------------------------------------------------------------
    def add_worktree(self, path: Path, branch: str | None, commit: str) -> None:
        """The campaign's own worktree on its branch (or detached). Does nothing where it already stands."""
        admin = self._admin(path)
        if admin and (path / ".git").exists() and not (admin / "locked").exists():
            return
        with disk_errors(path):
            if path.exists():
                shutil.rmtree(path)
        target = [branch.removeprefix("refs/heads/")] if branch else ["--detach", commit]
        # Twice --force: over a half-made one of ours, which git keeps locked. Never `prune`: it takes the user's too.
        self.git("worktree", "add", "--quiet", "--force", "--force", str(path), *target)

    def _admin(self, path: Path) -> Path | None:
        """The worktree's private git directory, found from the repository's side."""
        for gitdir in self.common_dir.glob("worktrees/*/gitdir"):
            with contextlib.suppress(FileNotFoundError):  # another worktree's, just removed
                if Path(gitdir.parent, gitdir.read_text().rstrip("\n")) == path / ".git":
                    return gitdir.parent
        return None

    def at_worktree(self, path: Path) -> tuple[str, ...]:
        """Options that name the worktree's own git directory, so that a damaged one can't resolve to the user's checkout."""
        admin = self._admin(path)
        if not admin:
            raise RepoError(f"{path} is not a worktree of this repository", "`turbo-opt resume` makes it again")
        return (f"--git-dir={admin}", f"--work-tree={path}")

    def clear_locks(self, path: Path, refs: Sequence[str]) -> None:
        """Lock files that a killed git left at the worktree and the refs (or folders of refs) of a campaign. The caller
        holds the campaign's lock, and its git processes end with their runner: nobody else's can be there."""
        found = [p for ref in refs for p in (self.common_dir / f"{ref}.lock", *(self.common_dir / ref).rglob("*.lock"))]
        if admin := self._admin(path):
            found += admin.glob("*.lock")
        for lock in found:
            lock.unlink(missing_ok=True)

    def sync_worktree(self, path: Path, commit: str) -> None:
        """The worktree exactly at `commit`: edits and untracked files of the last attempt go (they are in its ref)."""
        where = self.at_worktree(path)
        self.git(*where, "read-tree", "--reset", "-u", commit, cwd=path)
        self.git(*where, "clean", "-ffdxq", cwd=path)
        head = self.git(*where, "rev-parse", "--symbolic-full-name", "HEAD", cwd=path)
        if head == "HEAD":  # detached
            self.git(*where, "update-ref", "--no-deref", "HEAD", commit, cwd=path)

    def export(self, commit: str, target: Path) -> Path:
        """The files of a commit in a plain directory. Complete or not there; reused where it already is."""
        done = target.with_name(f"{target.name}.complete")
        if done.exists():
            return target
        with disk_errors(target):
            shutil.rmtree(target, ignore_errors=True)
            target.mkdir(parents=True)
        with self._index(commit) as env:
            self.git("checkout-index", "--all", "--force", f"--prefix={target}/", env=env)
        with disk_errors(target):
            done.touch()
        return target


def _first(text: str) -> str:
    lines = [x for x in re.split(r"[\r\n]+", text) if x.strip()]
    return lines[0].strip() if lines else ""


def _leave_with_runner() -> None:
    die_with_parent(signal.SIGTERM)  # git takes its lock files along on SIGTERM


@contextlib.contextmanager
def _scratch() -> Iterator[str]:
    with disk_errors(Path(tempfile.gettempdir())):
        folder = tempfile.TemporaryDirectory(prefix="turbo-opt-index-")
    with folder as d:
        yield d


@contextlib.contextmanager
def _stdin_file(data: bytes | None) -> Iterator[object]:
    if data is None:
        with open(os.devnull, "rb") as f:
            yield f
        return
    with tempfile.TemporaryFile() as f:
        with disk_errors(Path(tempfile.gettempdir())):
            f.write(data)
            f.seek(0)
        yield f
