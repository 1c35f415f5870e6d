"""bwrap that is killed while it makes a sandbox leaves an init behind, which waits for it: the guardian finds it."""

import subprocess
import sys
import time
from pathlib import Path

import psutil

from deployments import guardian
from harness.sandbox import SandboxConfig, create_sandbox
from harness.sandbox.owner import MARK

KILLS_AND_DIES = """
import asyncio, os, signal, sys, threading
from contextlib import suppress
from pathlib import Path

import psutil

from deployments import guardian
from harness.sandbox import SandboxConfig, SandboxError, create_sandbox


def children(pid):
    with suppress(OSError):
        return Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return []


def kill_at_birth():
    while True:
        for outer in children(os.getpid()):
            with suppress(OSError):
                if Path(f"/proc/{outer}/comm").read_text() == "bwrap\\n" and children(outer):
                    os.kill(int(outer), signal.SIGKILL)


async def main():
    async with create_sandbox(SandboxConfig(root=Path(sys.argv[1]))) as sandbox:
        threading.Thread(target=kill_at_birth, daemon=True).start()
        for _ in range(200):  # until a sandbox is left that does not end
            with suppress(SandboxError):
                await sandbox.exec(["true"], timeout=30)
            if any(f"{sys.argv[1]}/" in " ".join(p.info["cmdline"] or []) for p in psutil.process_iter(["cmdline"])):
                break
        print("done", flush=True)
        sys.stdin.read()


guardian.start()
asyncio.run(main())
"""


def naming(root: Path) -> list[int]:
    """Sandboxes whose workspace lies in the folder."""
    found = psutil.process_iter(["pid", "cmdline"])
    return [process.pid for process in found if f"{root}/" in " ".join(process.info["cmdline"] or [])]


def test_an_init_whose_bwrap_was_killed_ends_with_the_command(open_folder: Path) -> None:
    command = [sys.executable, "-c", KILLS_AND_DIES, str(open_folder)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None and process.stdout.readline() == "done\n"
        assert naming(open_folder), "none of them was killed in the moment in which that leaves something"
        process.kill()
    deadline = time.monotonic() + 60
    while naming(open_folder) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not naming(open_folder)


async def test_a_command_sees_nothing_of_the_mark(open_folder: Path, monkeypatch) -> None:
    assert MARK == guardian.OWNER
    monkeypatch.setenv(MARK, "secret-mark")
    async with create_sandbox(SandboxConfig(root=open_folder)) as sandbox:
        seen = await sandbox.exec(["sh", "-c", "cat /proc/*/environ; env"], timeout=30)
    assert b"PATH=" in seen.stdout and b"secret-mark" not in seen.stdout
