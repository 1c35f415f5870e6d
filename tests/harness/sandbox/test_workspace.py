"""The host directories of bubblewrap's workspaces; the rest is in test_contract_files.py."""

import os
import time
from pathlib import Path

from harness.sandbox import SandboxConfig, create_sandbox, sweep
from harness.sandbox.leftovers import PREFIX, make_base, remove_base


async def test_stop_removes_whatever_was_left(open_folder: Path) -> None:
    tmp_path = open_folder
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "kept").write_text("x")
    root = tmp_path / "root"
    root.mkdir()
    root.chmod(0o711)
    code = f"""
import os
os.symlink({str(outside)!r}, "link")
os.mkdir("closed"); open("closed/file", "w"); os.mkdir("closed/sub"); os.chmod("closed/sub", 0); os.chmod("closed", 0)
os.mkfifo("fifo")
for _ in range(1500):
    os.mkdir("deep"); os.chdir("deep")
for i in range(50):
    os.mkdir(f"wide{{i}}"); open(f"wide{{i}}/f", "w")
"""
    async with create_sandbox(SandboxConfig(root=root)) as sandbox:
        result = await sandbox.exec(["python3", "-I", "-S", "-c", code], timeout=30)
        # folders deeper than the watch looks may be what ends the command; what it left must go all the same
        assert result.exit_code == 0 or result.over_limit == "workspace_files", result.stderr
        assert [entry.name.startswith(PREFIX) for entry in root.iterdir()] == [True]
        assert (await sandbox.read_tree(lambda path, data: True)).seen
    assert list(root.iterdir()) == []
    assert (outside / "kept").read_text() == "x"


async def test_sweep_removes_only_what_nobody_holds(tmp_path: Path) -> None:
    live, live_lock = make_base(tmp_path)
    dead, dead_lock = make_base(tmp_path)
    young, old = (tmp_path / f"testgrad-new-{name}" for name in ("young", "old"))
    young.mkdir()
    old.mkdir()
    (dead / "workspace").mkdir()
    (dead / "workspace" / "x").write_text("x")
    os.close(dead_lock)
    (tmp_path / "target").mkdir()
    (tmp_path / f"{PREFIX}link").symlink_to("target")
    (tmp_path / "other").mkdir()
    os.utime(old, (time.time() - 3600,) * 2)
    assert sorted(sweep(tmp_path)) == sorted([dead, old])
    assert {path.name for path in tmp_path.iterdir()} == {
        live.name, young.name, "target", f"{PREFIX}link", "other"
    }  # fmt: skip
    remove_base(live, live_lock)
    assert not live.exists()
