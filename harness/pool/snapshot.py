"""The snapshot as a sandbox gets it: with a git history of one commit where the task has a repository, else with none.

A task's own .git would hold the fix: later commits, packed remnants, the reflog, stashes, tags, alternates. So no .git
of a snapshot is ever uploaded, at any depth. A new repository is made of the files alone, and counted before use.
Caches stay behind as well: byte code of a hidden test is the test.
"""

import asyncio
import os
import shutil
from pathlib import Path

from harness.pool.git import GitError, run_git
from harness.sandbox import Sandbox
from harness.sandbox.leftovers import scratch

NEVER_SENT = (
    ".git",
    ".hg",
    ".svn",
    "__pycache__",
    ".pytest_cache",
    ".hypothesis",
    ".mypy_cache",
    ".ruff_cache",
    ".tox",
)
"""Folders, and files, of a snapshot that no sandbox gets: history, and byte code or results of tests that once ran."""


class SnapshotError(ValueError):
    """A snapshot of which no clean repository can be made; the message names the mend."""


async def upload_snapshot(snapshot: Path, sandbox: Sandbox) -> None:
    """Copy `snapshot` into the workspace of `sandbox`, its history replaced by one commit of what is there.

    Raises:
        WorkspaceError: the snapshot holds a link that leads out, or a special file.
        SnapshotError: git is missing, or the new repository is not what it must be.
    """
    if not await asyncio.to_thread(_needs_cleaning, snapshot):
        await sandbox.upload(snapshot)
        return
    with scratch() as folder:
        clean = folder / "repo"
        await asyncio.to_thread(make_clean_copy, snapshot, clean)
        await sandbox.upload(clean)
        sandbox.source_moved(clean, snapshot)


def make_clean_copy(snapshot: Path, target: Path) -> None:
    """Copy `snapshot`, without `NEVER_SENT`, to the new folder `target`; with a repository of one commit if it had one.

    An empty `.git` counts as one: that is what is left of it where a snapshot comes out of an image.

    Raises:
        SnapshotError: see `upload_snapshot`.
    """
    shutil.copytree(snapshot, target, symlinks=True, ignore=shutil.ignore_patterns(*NEVER_SENT))
    if (snapshot / ".git").exists():
        _commit_all(target)
        problems = history_problems(target)
        if problems:
            raise SnapshotError(f"{snapshot}: the new repository is not clean: {'; '.join(problems)}")


def history_problems(repository: Path) -> list[str]:
    """What a repository holds beyond one commit of its files: each is a place where the fix may hide."""
    git = repository / ".git"
    if not git.is_dir():
        return [".git is no folder"]
    found = []
    for place in (
        *("logs", "packed-refs", "modules", "worktrees", "hooks", "shallow", "ORIG_HEAD", "FETCH_HEAD", "refs/stash"),
        *("objects/info/alternates", "objects/info/http-alternates"),
    ):
        if (git / place).exists():
            found.append(f".git/{place} exists")
    if any((git / "objects" / "pack").glob("*")):
        found.append("it has packed objects")
    refs = sorted(file.relative_to(git).as_posix() for file in (git / "refs").rglob("*") if file.is_file())
    if refs != ["refs/heads/main"]:
        found.append(f"its refs are {refs} instead of refs/heads/main alone")
    if "[remote" in (git / "config").read_text(errors="replace"):
        found.append("it has a remote")
    stored = sum(1 for file in (git / "objects").glob("[0-9a-f][0-9a-f]/*") if file.is_file())
    reachable = len(_git(repository, "rev-list", "--objects", "--all").splitlines())
    commits = len(_git(repository, "rev-list", "--all").splitlines())
    if commits != 1 or stored != reachable:
        found.append(f"{commits} commits, {stored} objects of which {reachable} belong to them; there must be one, all")
    nested = [path for path in repository.rglob(".git") if path != git]
    if nested:
        found.append(f"{nested[0].relative_to(repository)} is a repository in the repository")
    return found


def _needs_cleaning(snapshot: Path) -> bool:
    return any(not {*folders, *files}.isdisjoint(NEVER_SENT) for _, folders, files in os.walk(snapshot))


def _commit_all(repository: Path) -> None:
    _git(repository, "init", "--quiet", "--template=", "--initial-branch=main")
    _git(repository, "add", "--all", "--force")
    _git(repository, "commit", "--quiet", "--allow-empty", "--no-verify", "--message=snapshot")
    (repository / ".git" / "COMMIT_EDITMSG").unlink(missing_ok=True)


def _git(repository: Path, *words: str) -> str:
    try:
        return run_git(repository, *words).decode("utf-8", "replace")
    except GitError as error:
        raise SnapshotError(f"{error}; or remove .git from environment/repo") from error
