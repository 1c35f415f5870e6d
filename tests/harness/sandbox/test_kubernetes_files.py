"""Reading and writing a pod's workspace that hostile code has filled."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
from support.kube import FakeCluster

from harness.sandbox import Sandbox, SandboxError, SandboxUnavailable, WorkspaceError, create_sandbox


@pytest_asyncio.fixture
async def sandbox(cluster: FakeCluster) -> AsyncIterator[Sandbox]:
    async with create_sandbox(cluster.config()) as started:
        yield started


async def shell(sandbox: Sandbox, script: str) -> None:
    result = await sandbox.exec(["sh", "-ec", script], timeout=30)
    assert result.exit_code == 0, result.stderr


async def test_links_are_never_followed(sandbox: Sandbox, tmp_path: Path) -> None:
    await shell(sandbox, "ln -s /usr/bin/env file; ln -s /usr dir; ln -s . here; ln -s / root; ln -s /run/testgrad c")
    for path in ("file", "dir/bin/env", "here/file", "root/usr/bin/env", "root"):
        with pytest.raises(WorkspaceError):
            await sandbox.read_file(path, 1 << 24)
    tree = await sandbox.read_tree(lambda path, data: True)
    assert tree.files == {}
    assert tree.links["file"] == "/usr/bin/env"
    assert set(tree.links) == {"file", "dir", "here", "root", "c"}
    await sandbox.write_file("file", b"new")
    assert await sandbox.read_file("file", 100) == b"new"
    for path in ("c/new", "here/x", "dir/new"):
        with pytest.raises(WorkspaceError):
            await sandbox.write_file(path, b"new")
    (tmp_path / "dir").mkdir()
    (tmp_path / "dir" / "new").write_text("x")
    with pytest.raises(WorkspaceError):
        await sandbox.upload(tmp_path)


async def test_upload_copies_content_mode_and_inner_links(sandbox: Sandbox, tmp_path: Path) -> None:
    source = tmp_path / "repo"
    (source / "pkg" / "none").mkdir(parents=True)
    (source / "pkg" / "a.py").write_text("a")
    (source / "run.sh").write_text("#!/bin/sh\necho ran\n")
    (source / "run.sh").chmod(0o700)
    (source / "link").symlink_to("pkg/a.py")
    await sandbox.upload(source)
    await sandbox.upload(source / "pkg", "deep/er")
    script = "./run.sh; cat link; echo >> pkg/a.py; rm run.sh; ls; ls pkg deep/er; test -x pkg/a.py || echo plain"
    result = await sandbox.exec(["sh", "-c", script], timeout=20)
    assert result.stdout == b"ran\nadeep\nlink\npkg\ndeep/er:\na.py\nnone\n\npkg:\na.py\nnone\nplain\n"
    (source / "out").symlink_to("../../etc")
    with pytest.raises(WorkspaceError, match="outside"):
        await sandbox.upload(source)


async def test_what_was_uploaded_and_did_not_change_is_not_sent_back(
    cluster: FakeCluster, sandbox: Sandbox, tmp_path: Path
) -> None:
    for i in range(5):
        (tmp_path / f"f{i}").write_bytes(bytes([i]) * 100_000)
    await sandbox.upload(tmp_path)
    await shell(sandbox, "echo changed > f0; cp f1 copy")
    seen: dict[str, int] = {}

    def keep(path: str, data: bytes) -> bool:
        seen[path] = len(data)
        return path in ("f0", "copy")

    tree = await sandbox.read_tree(keep)
    assert tree.files == {"f0": b"changed\n", "copy": b"\x01" * 100_000}
    assert seen == {"f0": 8, "copy": 100_000, **{f"f{i}": 100_000 for i in range(1, 5)}}
    (tmp_path / "f2").write_bytes(b"changed on the host")
    with pytest.raises(SandboxError, match="has changed since"):
        await sandbox.read_tree(keep)


async def test_a_file_operation_outlives_broken_streams(cluster: FakeCluster, sandbox: Sandbox, tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(b"x" * 200_000)
    for op in ("write", "tree", "read"):
        cluster.fail("drop", op=op, times=2)
    await sandbox.upload(tmp_path)
    assert await sandbox.read_file("f", 1 << 20) == b"x" * 200_000
    assert (await sandbox.read_tree(lambda path, data: True)).files == {"f": b"x" * 200_000}
    assert cluster.operations.count(("keeper", "tree")) == 3
    cluster.fail("drop", op="tree", times=1000)
    with pytest.raises(SandboxError, match="stream"):
        await sandbox.read_tree(lambda path, data: True)


async def test_mode_is_kept_when_a_file_is_replaced(sandbox: Sandbox) -> None:
    await shell(sandbox, "echo > tool; chmod 755 tool; echo > plain; ln tool hard")
    await sandbox.write_files({"tool": b"#!/bin/sh\necho new", "plain": b"x"})
    await shell(sandbox, "test -x tool; ! test -x plain; test \"$(cat hard)\" = ''; test $(./tool) = new")


async def test_mounts_are_those_of_the_configuration(cluster: FakeCluster, sandbox: Sandbox) -> None:
    await sandbox.mount_read_only("/grader", {"runner.py": b"print('graded')"})
    result = await sandbox.exec([sandbox.python, "/grader/runner.py"], timeout=20, writable=False)
    assert result.stdout == b"graded\n"
    with pytest.raises(SandboxUnavailable, match=r"add '/elsewhere' to sandbox.kubernetes.mounts"):
        await sandbox.mount_read_only("/elsewhere", {})
    with pytest.raises(ValueError, match="no absolute path"):
        await sandbox.mount_read_only("tests", {})


async def test_a_runtime_must_be_in_the_image(sandbox: Sandbox, tmp_path: Path) -> None:
    with pytest.raises(SandboxUnavailable, match=r"build .* into the image"):
        await sandbox.mount_runtime(tmp_path, "/opt/agent")
