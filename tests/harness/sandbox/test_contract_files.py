"""Reading, writing and filling a workspace, whatever the backend."""

import asyncio
from pathlib import Path

import pytest
from support.sandboxes import Make

from harness.sandbox import Sandbox, TreeLimits, WorkspaceError


async def shell(sandbox: Sandbox, script: str) -> None:
    result = await sandbox.exec(["sh", "-ec", script], timeout=30)
    assert result.exit_code == 0, result.stderr


async def test_files_pass_both_ways(sandbox: Sandbox) -> None:
    await sandbox.write_files({"a/b/c.txt": b"one", "top": b"two"})
    await shell(sandbox, "test $(cat a/b/c.txt) = one; echo three > a/b/c.txt; echo new > a/b/d; rm top")
    assert await sandbox.read_file("a/b/c.txt", 100) == b"three\n"
    await sandbox.write_files({"a/b/d": None, "a/was-not": None})
    tree = await sandbox.read_tree(lambda path, data: True)
    assert tree.files == {"a/b/c.txt": b"three\n"}


async def test_links_are_never_read_through(sandbox: Sandbox, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("host secret")
    await shell(sandbox, f"ln -s {secret} file; ln -s {tmp_path} dir; ln -s . here; ln -s / root")
    for path in ("file", "dir/secret", "here/file", "root/etc/passwd", "root"):
        with pytest.raises(WorkspaceError):
            await sandbox.read_file(path, 1000)
    tree = await sandbox.read_tree(lambda path, data: True)
    assert tree.files == {}
    assert set(tree.links) == {"file", "dir", "here", "root"}


async def test_links_are_never_written_through(sandbox: Sandbox, tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_text("untouched")
    await shell(sandbox, f"ln -s {victim} file; ln -s {tmp_path} dir")
    await sandbox.write_file("file", b"new")
    with pytest.raises(WorkspaceError):
        await sandbox.write_file("dir/victim", b"new")
    with pytest.raises(WorkspaceError):
        await sandbox.write_files({"dir/victim": None})
    source = tmp_path / "source"
    (source / "dir").mkdir(parents=True)
    (source / "dir" / "victim").write_text("new")
    with pytest.raises(WorkspaceError):
        await sandbox.upload(source)
    assert victim.read_text() == "untouched"
    assert await sandbox.read_file("file", 100) == b"new"


async def test_hard_links_do_not_spread_a_write(sandbox: Sandbox) -> None:
    await shell(sandbox, "echo old > a; ln a b")
    await sandbox.write_file("a", b"new")
    assert await sandbox.read_file("b", 100) == b"old\n"


async def test_paths_that_lead_out_are_refused(sandbox: Sandbox) -> None:
    for path in ("../x", "/etc/passwd", "a/../../x", "x\0y", "", ".", "\udcff/x" * 200):
        with pytest.raises(WorkspaceError):
            await sandbox.read_file(path, 10)
        with pytest.raises(WorkspaceError):
            await sandbox.write_file(path, b"x")


async def test_only_regular_files_of_bounded_size_are_read(sandbox: Sandbox) -> None:
    await shell(sandbox, "mkfifo fifo; mkdir folder; head -c 2000 /dev/zero > big; truncate -s 60M sparse")
    for path in ("fifo", "folder", "missing", "big", "sparse"):
        with pytest.raises(WorkspaceError):
            await asyncio.wait_for(sandbox.read_file(path, 1000), 10)
    tree = await sandbox.read_tree(lambda path, data: True)
    assert set(tree.files) == {"big"}
    assert {path for path, _ in tree.rejected} == {"fifo", "sparse"}


async def test_bounds_of_the_whole_and_of_the_parts(make: Make) -> None:
    limits = TreeLimits(max_files=30, max_total_bytes=5000, max_file_bytes=1000, max_kept_bytes=1500, max_depth=3)
    async with make(limits=limits) as sandbox:
        await shell(sandbox, "mkdir -p a/b/c/d; echo > a/b/c/d/x; for i in 1 2 3; do head -c 700 /dev/zero > f$i; done")
        tree = await sandbox.read_tree(lambda path, data: True)
        assert not tree.overflow
        assert len(tree.files) == 2
        reasons = [reason for _, reason in tree.rejected]
        assert any("1500" in reason for reason in reasons)
        assert any("deeper" in reason for reason in reasons)
        await shell(sandbox, "for i in $(seq 8); do head -c 900 /dev/zero > g$i; done")
        assert "5000 bytes" in (await sandbox.read_tree(lambda path, data: True)).overflow
        await shell(sandbox, "rm g*; for i in $(seq 40); do : > e$i; done")
        assert "30 files" in (await sandbox.read_tree(lambda path, data: True)).overflow


async def test_unreadable_and_oddly_named_entries_are_no_obstacle(sandbox: Sandbox) -> None:
    code = """
import os
open("hidden", "w").write("x"); os.chmod("hidden", 0)
os.mkdir("closed"); open("closed/in", "w").write("y"); os.chmod("closed", 0)
open(b"bad\\xff", "w").write("z"); open("new\\nline", "w").write("z")
"""
    await sandbox.exec(["python3", "-I", "-S", "-c", code], timeout=20)
    tree = await sandbox.read_tree(lambda path, data: True)
    assert tree.files == {"hidden": b"x", "closed/in": b"y"}
    assert len(tree.rejected) == 2


async def test_upload_copies_content_mode_and_inner_links(sandbox: Sandbox, tmp_path: Path) -> None:
    source = tmp_path / "repo"
    (source / "pkg").mkdir(parents=True)
    (source / "pkg" / "a.py").write_text("a")
    (source / "run.sh").write_text("#!/bin/sh\necho ran\n")
    (source / "run.sh").chmod(0o700)
    (source / "link").symlink_to("pkg/a.py")
    await sandbox.upload(source)
    result = await sandbox.exec(["sh", "-c", "./run.sh; cat link; echo >> pkg/a.py; rm run.sh; ls"], timeout=20)
    assert result.stdout == b"ran\nalink\npkg\n"
    (source / "out").symlink_to("../../etc")
    with pytest.raises(WorkspaceError, match="outside"):
        await sandbox.upload(source)


async def test_read_only_mounts_cannot_be_changed(sandbox: Sandbox) -> None:
    await sandbox.mount_read_only("/tests", {"d/t.py": b"content", "top": b"x"})
    await sandbox.mount_read_only("/grader", {"o": b"y"})
    code = """
import os
attempts = [lambda: open("/tests/d/t.py", "w"), lambda: open("/tests/new", "w"), lambda: os.unlink("/tests/top"),
            lambda: os.chmod("/tests/d/t.py", 0o777), lambda: os.rename("/tests/d", "/tests/e"),
            lambda: os.rename("/tests", "/gone"), lambda: os.link("/tests/top", "/workspace/top")]
for attempt in attempts:
    try:
        attempt()
        print("changed")
    except OSError:
        pass
print(open("/tests/d/t.py").read(), open("/grader/o").read())
"""
    result = await sandbox.exec(["python3", "-I", "-S", "-c", code], timeout=20)
    assert result.stdout == b"content y\n"
    assert (await sandbox.read_tree(lambda path, data: True)).seen == set()


async def test_the_workspace_is_found_at_workdir_as_well(make: Make) -> None:
    async with make(workdir="/testbed", project_python="/opt/env/bin/python") as sandbox:
        await sandbox.write_file("a.txt", b"a")
        await shell(sandbox, "test $PWD = /testbed; test a.txt -ef /workspace/a.txt; printf b > /testbed/b.txt")
        first = await sandbox.exec(["sh", "-c", 'printf %s "${PATH%%:*}"'], timeout=30)
        assert first.stdout == b"/opt/env/bin"
        tree = await sandbox.read_tree(lambda path, data: True)
        assert tree.files == {"a.txt": b"a", "b.txt": b"b"}
        closed = await sandbox.exec(["sh", "-c", "echo x > /testbed/a.txt"], timeout=30, writable=False)
        assert closed.exit_code != 0 and await sandbox.read_file("a.txt", 9) == b"a"
