"""What a command may leave in its workspace is read for what it is, on every backend: it never looks like a fault."""

from pathlib import Path

import pytest
from support.sandboxes import Make

from harness.patch import take_patch
from harness.sandbox import ExecResult, Sandbox, WorkspaceError


async def python(sandbox: Sandbox, code: str) -> ExecResult:
    result = await sandbox.exec(["python3", "-I", "-S", "-c", code], timeout=60)
    assert result.exit_code == 0, result.stderr
    return result


SHUT = """
import os
try:
    os.chmod(".", 0o400)
except PermissionError:
    pass  # the workspace itself is not the command's, as in a pod
"""

CLOSED = """
import os
os.makedirs("closed/in")
for name in ("closed/in/x", "closed/y", "top"):
    open(name, "w").write(name)
os.mkdir("sticky"); open("sticky/z", "w").write("sticky/z")
for name in ("closed/in/x", "closed/in", "closed", "top"):
    os.chmod(name, 0)
os.chmod("sticky/z", 0o4111); os.chmod("sticky", 0o1000)
"""


async def test_rights_that_were_taken_away_hide_nothing_and_hinder_nothing(sandbox: Sandbox) -> None:
    await python(sandbox, CLOSED + SHUT)
    assert await sandbox.read_file("closed/in/x", 100) == b"closed/in/x"
    tree = await sandbox.read_tree(lambda path, data: True)
    assert tree.files == {name: name.encode() for name in ("closed/in/x", "closed/y", "sticky/z", "top")}
    assert tree.rejected == []
    await python(sandbox, "import os; os.chmod('closed/in', 0); os.chmod('closed', 0o400)" + SHUT)
    await sandbox.write_files({"closed/in/x": b"new", "closed/in/deeper/w": b"w", "sticky/z": None})
    assert (await sandbox.read_tree(lambda path, data: True)).files == {
        **{name: name.encode() for name in ("closed/y", "top")},
        **{"closed/in/x": b"new", "closed/in/deeper/w": b"w"},
    }


DEEP = """
import os
for depth in range(300):  # no path of it fits into a system call
    os.mkdir("d" * 200); os.chdir("d" * 200)
    if depth in (2, 30):
        open("x", "w").write("x")
"""

ODD = """
import os, socket
os.mkfifo("fifo"); socket.socket(socket.AF_UNIX).bind("socket")
for name in (b"\\xff\\xfe", b"new\\nline", b"esc\\x1b[2J", "\\u202e".encode(), b"d\\xff/"):
    (os.mkdir if name.endswith(b"/") else lambda name: open(name, "w").close())(name)
open(b"d\\xff/inside", "w").close()
os.symlink("a" * 4000, "far"); os.symlink(b"\\xff", "odd-target"); os.symlink("loop", "loop")
os.symlink(".", b"l\\xff")
os.link("fifo", "another"); os.truncate(os.open("sparse", os.O_CREAT | os.O_WRONLY), 60 << 20)
open("good", "w").write("good")
"""


async def test_depth_and_odd_entries_are_left_out_one_by_one(sandbox: Sandbox, tmp_path: Path) -> None:
    await python(sandbox, DEEP)
    await python(sandbox, ODD)
    patch = await take_patch(tmp_path, sandbox)
    deep = "/".join(["d" * 200] * 3)
    assert patch.files == {f"{deep}/x": b"x", "good": b"good"}
    reasons = dict(patch.rejected)
    assert {"fifo", "another", "socket", "far", "odd-target", "loop", "sparse"} < set(reasons)
    assert sum(reason == "unprintable name" for reason in reasons.values()) == 6
    assert any("1024 bytes" in reason for reason in reasons.values())
    assert len(reasons) == 14


MANY_NAMES = """
import os
for i in range(300):
    os.symlink("\\xff" * 2000, "\\xe9" * 100 + str(i))
for i in range(20):
    os.makedirs("a" * 250 + str(i) + ("/" + "\\xff" * 100) * 5)
"""


async def test_names_of_any_length_come_to_a_bounded_answer(make: Make, tmp_path: Path) -> None:
    sandbox = make()
    limits = sandbox.config.limits.model_copy(update={"max_name_bytes": 1 << 19})
    async with make(limits=limits) as bounded:
        await python(bounded, MANY_NAMES)
        assert "names of more than 524288 bytes" in (await bounded.read_tree(lambda path, data: True)).overflow
        patch = await take_patch(tmp_path, bounded)
        assert patch.empty and "too large" in patch.rejected[0][1]


IN_THE_WAY = (
    "import os; os.mkdir('folder'); open('file', 'w').close(); os.symlink('folder', 'link'); os.symlink('loop', 'loop')"
)


async def test_what_stands_in_the_way_of_a_write_is_the_workspaces_fault(sandbox: Sandbox) -> None:
    await python(sandbox, IN_THE_WAY)
    for path in ("folder", "file/x", "link/x", "file/deeper/x", "loop/x"):
        with pytest.raises(WorkspaceError):
            await sandbox.write_file(path, b"x")
    assert await sandbox.read_file("file", 10) == b""
