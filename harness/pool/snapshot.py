"""The snapshot as a sandbox gets it: with a git history of one commit where the task has a repository, else with none.

A task's own .git would hold the fix: later commits, packed remnants, the reflog, stashes, tags, alternates. So no .git
of a snapshot is ever uploaded, at any depth. A new repository is made of the files alone, and counted before use.
Caches stay behind as well: byte code of a hidden test is the test.
"""

import asyncio
import os
import shutil
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path

from harness.sandbox import Sandbox

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

_DATE = "2000-01-01T00:00:00+0000"
_WHO = "testgrad"
_MAIL = "testgrad@localhost"


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
    with tempfile.TemporaryDirectory(prefix="testgrad-snapshot-") as folder:
        clean = Path(folder, "repo")
        await asyncio.to_thread(make_clean_copy, snapshot, clean)
        await sandbox.upload(clean)


def make_clean_copy(snapshot: Path, target: Path) -> None:
    """Copy `snapshot`, without `NEVER_SENT`, to the new folder `target`; with a repository of one commit if it had one.

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
    """Run git on `repository` with no configuration but what is given here: none of this machine's, none that runs."""
    options = {
        "core.hooksPath": os.devnull,
        "core.logAllRefUpdates": "false",
        "core.autocrlf": "false",
        "core.safecrlf": "false",
        "core.fsmonitor": "false",
        "commit.gpgSign": "false",
        "gc.auto": "0",
    }
    settings = [word for name, value in options.items() for word in ("-c", f"{name}={value}")]
    try:
        done = subprocess.run(
            ["git", *settings, "-C", str(repository), *words],
            capture_output=True,
            stdin=subprocess.DEVNULL,
            env=_environment(repository),
            text=True,
            errors="replace",
            timeout=600,
        )
    except FileNotFoundError as error:
        raise SnapshotError("git is not installed here; install it, or remove .git from environment/repo") from error
    if done.returncode != 0:
        raise SnapshotError(f"git {words[0]} failed: {done.stderr.strip()[-300:]}")
    return done.stdout


def _environment(repository: Path) -> Mapping[str, str]:
    return {
        "PATH": os.environ.get("PATH", os.defpath),
        "HOME": str(repository.parent),
        "LC_ALL": "C",
        "GIT_CONFIG_NOSYSTEM": "1",
        "GIT_CONFIG_GLOBAL": os.devnull,
        "GIT_ATTR_NOSYSTEM": "1",
        "GIT_CEILING_DIRECTORIES": str(repository.parent),
        "GIT_AUTHOR_NAME": _WHO,
        "GIT_AUTHOR_EMAIL": _MAIL,
        "GIT_AUTHOR_DATE": _DATE,
        "GIT_COMMITTER_NAME": _WHO,
        "GIT_COMMITTER_EMAIL": _MAIL,
        "GIT_COMMITTER_DATE": _DATE,
    }
