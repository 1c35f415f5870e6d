"""How a command is run, ended and reported, whatever the backend."""

import asyncio
import os
import signal

import pytest
from support.sandboxes import Make, processes_with

from harness.sandbox import Sandbox, SandboxError, WorkspaceError


async def run(sandbox: Sandbox, *argv: str, timeout: float = 20.0) -> tuple[int, bytes]:
    result = await sandbox.exec(argv, timeout=timeout)
    return result.exit_code, result.stdout


async def test_exit_codes_and_arguments(make: Make) -> None:
    async with make() as sandbox:
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


async def test_input_environment_folder_and_read_only_workspace(make: Make) -> None:
    async with make() as sandbox:
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


async def test_deadline_kills_all_even_what_ignores_signals(make: Make) -> None:
    mark = f"mark-{os.getpid()}-deadline"
    script = f"trap '' TERM INT HUP; setsid sh -c 'trap \"\" TERM; sleep 600; : {mark}' & sleep 600; : {mark}"
    async with make() as sandbox:
        result = await sandbox.exec(["sh", "-c", script], timeout=0.3)
        assert (result.timed_out, result.exit_code) == (True, 124)
        assert processes_with(mark) == []


async def test_nothing_outlives_its_command(make: Make) -> None:
    mark = f"mark-{os.getpid()}-daemon"
    daemon = f"setsid sh -c 'sleep 600; : {mark}' >/dev/null 2>&1 </dev/null & echo started"
    async with make() as sandbox:
        assert await run(sandbox, "sh", "-c", daemon) == (0, b"started\n")
        assert processes_with(mark) == []
        # One that holds the pipes open must not hold up the caller.
        assert await run(sandbox, "sh", "-c", f"sh -c 'sleep 600; : {mark}' & exit 4") == (4, b"")
        assert processes_with(mark) == []


async def test_cancelling_kills_before_it_propagates(make: Make) -> None:
    mark = f"mark-{os.getpid()}-cancel"
    async with make() as sandbox:
        task = asyncio.create_task(sandbox.exec(["sh", "-c", f"echo > up; sleep 600; : {mark}"], timeout=600))
        while "up" not in (await sandbox.read_tree(lambda path, data: False)).seen:
            await asyncio.sleep(0.01)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert processes_with(mark) == []
        assert await run(sandbox, "echo", "usable") == (0, b"usable\n")


@pytest.mark.not_on("kubernetes", "a fake node ends a command in seconds; one cancelled command is above")
async def test_cancelling_at_any_moment_leaves_no_process_and_no_descriptor(make: Make) -> None:
    mark = f"mark-{os.getpid()}-early"
    async with make() as sandbox:
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


async def test_descriptors_are_given_back(make: Make) -> None:
    async with make() as sandbox:
        await sandbox.exec(["true"], timeout=20)
        before = len(os.listdir("/proc/self/fd"))
        for timeout in (20, 20, 0.05):
            await sandbox.exec(["sh", "-c", "sleep 0.1"], timeout=timeout, stdin=b"x" * 100_000)
        assert len(os.listdir("/proc/self/fd")) == before


async def test_output_is_capped_and_the_child_not_blocked(make: Make) -> None:
    async with make(output_bytes=2000) as sandbox:
        code = "import sys; sys.stdout.write('x' * 3_000_000); sys.stderr.write('done')"
        result = await sandbox.exec(["python3", "-I", "-S", "-c", code], timeout=30)
        assert (result.exit_code, result.stdout, result.stderr) == (0, b"x" * 2000, b"done")
        assert result.output_truncated
        endless = await sandbox.exec(["yes"], timeout=3)
        assert endless.timed_out
        assert len(endless.stdout) == 2000


@pytest.mark.not_on("kubernetes", "a fake node makes one pod after the other")
async def test_many_at_once(make: Make) -> None:
    sandboxes = [make(max_concurrent_execs=4) for _ in range(16)]
    await asyncio.gather(*(sandbox.start() for sandbox in sandboxes))
    try:
        results = await asyncio.gather(*(s.exec(["echo", str(i)], timeout=60) for i, s in enumerate(sandboxes)))
    finally:
        await asyncio.gather(*(sandbox.stop() for sandbox in sandboxes))
    assert [int(result.stdout) for result in results] == list(range(16))


async def test_use_before_start_and_after_stop_is_an_error(make: Make) -> None:
    sandbox = make()
    with pytest.raises(SandboxError, match="not running"):
        await sandbox.exec(["true"], timeout=20)
    await sandbox.start()
    await sandbox.stop()
    await sandbox.stop()
    with pytest.raises(SandboxError, match="not running"):
        await sandbox.read_file("x", 1)


async def test_a_command_may_signal_itself(make: Make) -> None:
    async with make() as sandbox:
        code, _ = await run(sandbox, "sh", "-c", "kill -TERM $$; sleep 600", timeout=20)
    assert code == 128 + signal.SIGTERM
