"""An agent sees one commit and no other object, whatever lay in the snapshot's own repository."""

import os
import subprocess
from pathlib import Path

import pytest

from harness.pool.snapshot import history_problems, make_clean_copy, upload_snapshot
from harness.sandbox import SandboxConfig, create_sandbox

ENV = {
    "PATH": os.environ["PATH"],
    "GIT_CONFIG_GLOBAL": os.devnull,
    "GIT_AUTHOR_NAME": "a",
    "GIT_AUTHOR_EMAIL": "a@b",
    "GIT_COMMITTER_NAME": "a",
    "GIT_COMMITTER_EMAIL": "a@b",
}


def git(folder: Path, *words: str) -> str:
    return subprocess.run(["git", *words], cwd=folder, check=True, capture_output=True, text=True, env=ENV).stdout


@pytest.fixture
def snapshot(tmp_path: Path) -> Path:
    """A repository whose later commit, stash, tag, remote, packs and submodule folder all hold the fix."""
    repo = tmp_path / "repo"
    (repo / "pkg").mkdir(parents=True)
    (repo / "pkg" / "a.py").write_text("bug = 1\n")
    (repo / "run.sh").write_text("#!/bin/sh\n")
    (repo / "run.sh").chmod(0o755)
    (repo / ".gitignore").write_text("ignored.txt\n")
    (repo / "ignored.txt").write_text("kept\n")
    git(repo, "init", "-q", "-b", "trunk")
    git(repo, "add", "-A")
    git(repo, "commit", "-qm", "bug")
    (repo / "pkg" / "a.py").write_text("THE FIX\n")
    git(repo, "commit", "-qam", "fix")
    git(repo, "tag", "v2")
    git(repo, "repack", "-adq")
    (repo / "pkg" / "a.py").write_text("THE FIX stashed\n")
    git(repo, "stash")
    git(repo, "remote", "add", "origin", "https://example.org/x.git")
    git(repo, "reset", "-q", "--hard", "HEAD~1")
    git(repo, "pack-refs", "--all")
    (repo / ".git" / "hooks").mkdir(exist_ok=True)
    (repo / ".git" / "hooks" / "post-checkout").write_text("echo\n")
    (repo / "vendor" / ".git").mkdir(parents=True)
    (repo / "vendor" / ".git" / "config").write_text("[remote]\n")
    (repo / "vendor" / "b.py").write_text("b = 1\n")
    (repo / "link").symlink_to("pkg/a.py")
    for cache in ("pkg/__pycache__/test_a.cpython-311.pyc", ".pytest_cache/v/lastfailed", ".hg/store"):
        (repo / cache).parent.mkdir(parents=True)
        (repo / cache).write_text("THE FIX\n")
    return repo


def test_the_copy_has_one_commit_and_only_its_objects(snapshot: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    make_clean_copy(snapshot, copy)
    assert history_problems(copy) == []
    assert git(copy, "rev-list", "--all", "--count").strip() == "1"
    counted = dict(line.split(": ") for line in git(copy, "count-objects", "-v").splitlines())
    trees_and_blobs = {"pkg", "pkg/a.py", "run.sh", ".gitignore", "ignored.txt", "vendor", "vendor/b.py", "link"}
    assert int(counted["count"]) == 1 + 1 + len(trees_and_blobs), "a commit, its tree, and what is in it"
    assert counted["in-pack"] == counted["packs"] == "0"
    assert git(copy, "status", "--porcelain") == ""
    assert set(git(copy, "ls-files").split()) == trees_and_blobs - {"pkg", "vendor"}
    assert git(copy, "reflog") == git(copy, "stash", "list") == git(copy, "remote") == git(copy, "tag") == ""
    assert git(copy, "log", "--format=%an %ae %aI %cI").strip().startswith("testgrad testgrad@localhost 2000-01-01T")
    assert not any(b"THE FIX" in file.read_bytes() for file in copy.rglob("*") if file.is_file())
    assert (copy / "pkg" / "a.py").read_text() == "bug = 1\n"


def test_the_commit_is_the_same_each_time(snapshot: Path, tmp_path: Path) -> None:
    heads = []
    for name in ("one", "two"):
        make_clean_copy(snapshot, tmp_path / name)
        heads.append(git(tmp_path / name, "rev-parse", "HEAD"))
    assert heads[0] == heads[1]


def test_each_hiding_place_is_a_problem(snapshot: Path, tmp_path: Path) -> None:
    problems = "\n".join(history_problems(snapshot))
    for word in ("logs", "packed-refs", "hooks", "packed objects", "refs", "remote", "commits", "vendor/.git"):
        assert word in problems
    copy = tmp_path / "copy"
    make_clean_copy(snapshot, copy)
    (copy / "loose").write_text("THE FIX\n")
    git(copy, "hash-object", "-w", "loose")
    assert "objects of which" in "\n".join(history_problems(copy))


async def test_the_workspace_gets_the_clean_history(snapshot: Path) -> None:
    script = "git -c safe.directory=* log --oneline | wc -l; ls -a vendor; grep -rl 'THE FIX' . ; true"
    async with create_sandbox(SandboxConfig()) as sandbox:
        await upload_snapshot(snapshot, sandbox)
        result = await sandbox.exec(["sh", "-c", script], timeout=30)
    assert result.stdout.decode().split() == ["1", ".", "..", "b.py"], result


async def test_without_a_repository_there_is_none_even_if_one_lies_deeper(snapshot: Path, tmp_path: Path) -> None:
    subprocess.run(["rm", "-r", str(snapshot / ".git")], check=True)
    async with create_sandbox(SandboxConfig()) as sandbox:
        await upload_snapshot(snapshot, sandbox)
        result = await sandbox.exec(["find", ".", "-name", ".git", "-o", "-name", "*cache*"], timeout=30)
        assert (await sandbox.read_file("vendor/b.py", 100)) == b"b = 1\n"
    assert (result.exit_code, result.stdout) == (0, b"")
