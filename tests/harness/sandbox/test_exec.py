"""How a command is run, ended and reported."""

import asyncio
import os
import signal
from pathlib import Path

import pytest

from harness.sandbox import Sandbox, SandboxConfig, SandboxError, WorkspaceError, create_sandbox


def processes_with(mark: str) -> list[int]:
    """Host processes with `mark` on their command line."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                line = (entry / "cmdline").read_bytes()
            except OSError:
                continue
            if mark.encode() in line:
                found.append(int(entry.name))
    return found


async def run(sandbox: Sandbox, *argv: str, timeout: float = 20.0) -> tuple[int, bytes]:
    result = await sandbox.exec(argv, timeout=timeout)
    return result.exit_code, result.stdout


async def test_exit_codes_and_arguments() -> None:
    async with create_sandbox(SandboxConfig()) as sandbox:
        assert await run(sandbox, "echo", "$HOME", "a b", "*") == (0, b"$HOME a b *\n")
        assert await run(sandbox, "sh", "-c", "exit 7") == (7, b"")
        assert await run(sandbox, "sh", "-c", "kill -9 $$") == (137, b"")
        assert await run(sandbox, "no-such-program") == (127, b"")
        assert await run(sandbox, "exit", "3") == (127, b"")  # a shell's builtin is no program
        assert (await sandbox.exec(["true"], timeout=20, cwd="missing")).exit_code == 126
        with pytest.raises(WorkspaceError):
            await sandbox.exec(["true"], timeout=20, cwd="../..")
        for argv in ([], ["-c"], ["a\0b"]):
            with pytest.raises(ValueError, match="argv"):
                await sandbox.exec(argv, timeout=20)


async def test_input_environment_folder_and_read_only_workspace() -> None:
    async with create_sandbox(SandboxConfig()) as sandbox:
        await sandbox.write_file("sub/file", b"x")
        big = os.urandom(300_000)
        assert (await sandbox.exec(["cat"], timeout=20, stdin=big)).stdout == big
        assert (await sandbox.exec(["true"], timeout=20, stdin=big)).exit_code == 0
        assert (await sandbox.exec(["cat"], timeout=20)).stdout == b""
        result = await sandbox.exec(["sh", "-c", "echo $X; pwd; ls"], timeout=20, cwd="sub", env={"X": "1 2"})
        assert result.stdout == b"1 2\n/workspace/sub\nfile\n"
        command = ["sh", "-c", "echo y > made"]
        assert (await sandbox.exec(command, timeout=20, writable=False)).exit_code != 0
        assert (await sandbox.exec(command, timeout=20)).exit_code == 0
        assert await sandbox.read_file("made", 10) == b"y\n"


async def test_deadline_kills_all_even_what_ignores_signals() -> None:
    mark = f"mark-{os.getpid()}-deadline"
    script = f"trap '' TERM INT HUP; setsid sh -c 'trap \"\" TERM; sleep 600; : {mark}' & sleep 600; : {mark}"
    async with create_sandbox(SandboxConfig()) as sandbox:
        result = await sandbox.exec(["sh", "-c", script], timeout=0.3)
        assert (result.timed_out, result.exit_code) == (True, 124)
        assert processes_with(mark) == []


async def test_nothing_outlives_its_command() -> None:
    mark = f"mark-{os.getpid()}-daemon"
    daemon = f"setsid sh -c 'sleep 600; : {mark}' >/dev/null 2>&1 </dev/null & echo started"
    async with create_sandbox(SandboxConfig()) as sandbox:
        assert await run(sandbox, "sh", "-c", daemon) == (0, b"started\n")
        assert processes_with(mark) == []
        # One that holds the pipes open must not hold up the caller.
        assert await run(sandbox, "sh", "-c", f"sh -c 'sleep 600; : {mark}' & exit 4") == (4, b"")
        assert processes_with(mark) == []


async def test_cancelling_kills_before_it_propagates() -> None:
    mark = f"mark-{os.getpid()}-cancel"
    async with create_sandbox(SandboxConfig()) as sandbox:
        task = asyncio.create_task(sandbox.exec(["sh", "-c", f"echo > up; sleep 600; : {mark}"], timeout=600))
        while "up" not in (await sandbox.read_tree(lambda path, data: False)).seen:
            await asyncio.sleep(0.01)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert processes_with(mark) == []
        assert await run(sandbox, "echo", "usable") == (0, b"usable\n")


async def test_cancelling_at_any_moment_leaves_no_process_and_no_descriptor() -> None:
    mark = f"mark-{os.getpid()}-early"
    async with create_sandbox(SandboxConfig()) as sandbox:
        await sandbox.exec(["true"], timeout=20)
        before = len(os.listdir("/proc/self/fd"))
        for step in range(12):
            task = asyncio.create_task(sandbox.exec(["sh", "-c", f"sleep 600; : {mark}"], timeout=600))
            await asyncio.sleep(step * 0.001)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
        assert processes_with(mark) == []
        assert len(os.listdir("/proc/self/fd")) == before


async def test_descriptors_are_given_back() -> None:
    async with create_sandbox(SandboxConfig()) as sandbox:
        await sandbox.exec(["true"], timeout=20)
        before = len(os.listdir("/proc/self/fd"))
        for timeout in (20, 20, 0.05):
            await sandbox.exec(["sh", "-c", "sleep 0.1"], timeout=timeout, stdin=b"x" * 100_000)
        assert len(os.listdir("/proc/self/fd")) == before


async def test_output_is_capped_and_the_child_not_blocked() -> None:
    async with create_sandbox(SandboxConfig(output_bytes=2000)) as sandbox:
        code = "import sys; sys.stdout.write('x' * 3_000_000); sys.stderr.write('done')"
        result = await sandbox.exec(["python3", "-I", "-S", "-c", code], timeout=30)
        assert (result.exit_code, result.stdout, result.stderr) == (0, b"x" * 2000, b"done")
        assert result.output_truncated
        endless = await sandbox.exec(["yes"], timeout=0.3)
        assert endless.timed_out
        assert len(endless.stdout) == 2000


async def test_many_at_once() -> None:
    config = SandboxConfig(max_concurrent_execs=4)
    sandboxes = [create_sandbox(config) for _ in range(16)]
    await asyncio.gather(*(sandbox.start() for sandbox in sandboxes))
    try:
        results = await asyncio.gather(*(s.exec(["echo", str(i)], timeout=60) for i, s in enumerate(sandboxes)))
    finally:
        await asyncio.gather(*(sandbox.stop() for sandbox in sandboxes))
    assert [int(result.stdout) for result in results] == list(range(16))


async def test_number_of_commands_at_a_time_is_bounded() -> None:
    mark = f"mark-{os.getpid()}-slots"
    async with create_sandbox(SandboxConfig(max_concurrent_execs=2)) as sandbox:
        tasks = [asyncio.create_task(sandbox.exec(["sh", "-c", f"sleep 600; : {mark}"], timeout=600)) for _ in range(5)]
        await asyncio.sleep(0.5)
        held = [pid for pid in processes_with(mark) if "bwrap" in os.readlink(f"/proc/{pid}/exe")]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    assert 0 < len(held) <= 4  # two commands, each seen as bwrap and as what bwrap has forked
    assert processes_with(mark) == []


async def test_a_failing_set_up_is_the_machines_fault() -> None:
    async with create_sandbox(SandboxConfig()) as sandbox:
        os.rename(sandbox._base / "workspace", sandbox._base / "gone")  # type: ignore[attr-defined]
        with pytest.raises(SandboxError, match="bwrap"):
            await sandbox.exec(["true"], timeout=20)


async def test_use_before_start_and_after_stop_is_an_error() -> None:
    sandbox = create_sandbox(SandboxConfig())
    with pytest.raises(SandboxError, match="not running"):
        await sandbox.exec(["true"], timeout=20)
    await sandbox.start()
    await sandbox.stop()
    await sandbox.stop()
    with pytest.raises(SandboxError, match="not running"):
        await sandbox.read_file("x", 1)


async def test_a_command_may_signal_itself() -> None:
    async with create_sandbox(SandboxConfig()) as sandbox:
        code, _ = await run(sandbox, "sh", "-c", "kill -TERM $$; sleep 600", timeout=20)
    assert code == 128 + signal.SIGTERM
