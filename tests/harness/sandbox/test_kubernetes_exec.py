"""How commands are run and ended in a pod that they share; what holds for every backend is in the contract tests."""

import asyncio
import os
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio
from support.kube import FakeCluster, write_kubeconfig
from support.sandboxes import processes_with

from harness.sandbox import ExecResult, Sandbox, SandboxError, create_sandbox


@pytest_asyncio.fixture
async def sandbox(cluster: FakeCluster) -> AsyncIterator[Sandbox]:
    async with create_sandbox(cluster.config()) as started:
        yield started


async def run(sandbox: Sandbox, *argv: str, timeout: float = 20.0, writable: bool = True) -> tuple[int, bytes]:
    result = await sandbox.exec(argv, timeout=timeout, writable=writable)
    return result.exit_code, result.stdout


async def python(sandbox: Sandbox, code: str, timeout: float = 20.0) -> ExecResult:
    return await sandbox.exec([sandbox.python, "-I", "-S", "-c", code], timeout=timeout)


async def test_limits_are_set(sandbox: Sandbox) -> None:
    names = "(r.RLIMIT_AS, r.RLIMIT_CPU, r.RLIMIT_FSIZE, r.RLIMIT_CORE)"
    code = f"import resource as r; print([r.getrlimit(x)[1] for x in {names}])"
    config = sandbox.config
    expected = str([config.memory_bytes, config.cpu_seconds, config.file_bytes, 0])
    assert (await python(sandbox, code)).stdout.decode().strip() == expected
    bomb = "import os\nn = 0\ntry:\n    while os.fork(): n += 1\n    os.abort()\nexcept OSError:\n    print(n)"
    counts = (await python(sandbox, bomb)).stdout.split()
    assert counts and int(counts[-1]) <= config.processes + 16


@pytest.mark.parametrize("writable", [True, False])
async def test_nothing_of_a_command_is_left_in_its_container(sandbox: Sandbox, writable: bool) -> None:
    mark = f"mark-{os.getpid()}-daemon"
    daemon = f"setsid sh -c 'sleep 600; : {mark}' >/dev/null 2>&1 </dev/null & mkdir -p /tmp/a/b; echo x > /tmp/a/left"
    assert await run(sandbox, "sh", "-c", f"chmod 0 /tmp; {daemon}; chmod 0 /tmp/a", writable=writable) == (0, b"")
    assert processes_with(mark) == []
    assert await run(sandbox, "ls", "-A", "/tmp", "/dev/shm", writable=writable) == (0, b"/dev/shm:\n\n/tmp:\n")


async def test_a_command_that_kills_its_watcher_gains_nothing(sandbox: Sandbox) -> None:
    mark = f"mark-{os.getpid()}-patricide"
    killer = f"setsid sh -c 'sleep 600; : {mark}' & kill -9 $PPID; sleep 600; : {mark}"
    result = await sandbox.exec(["sh", "-c", killer], timeout=20)
    assert (result.exit_code, result.timed_out) == (137, False)
    assert processes_with(mark) == []
    assert await run(sandbox, "echo", "usable") == (0, b"usable\n")


async def test_a_command_that_kills_whatever_comes_is_killed(sandbox: Sandbox) -> None:
    mark = f"mark-{os.getpid()}-slayer"
    code = f"import os\n'{mark}'\nwhile True:\n    try:\n        os.kill(-1, 9)\n    except OSError:\n        pass"
    result = await python(sandbox, code, timeout=5.0)
    assert result.exit_code in (137, 124)
    assert processes_with(mark) == []
    assert await run(sandbox, "echo", "usable") == (0, b"usable\n")


async def test_a_command_that_stops_its_watcher_is_ended_from_outside(cluster: FakeCluster) -> None:
    mark = f"mark-{os.getpid()}-stopper"
    async with create_sandbox(cluster.config(grace=0.5)) as sandbox:
        result = await sandbox.exec(["sh", "-c", f"kill -STOP $PPID; sleep 600; : {mark}"], timeout=0.5)
        assert (result.timed_out, result.exit_code) == (True, 124)
        assert processes_with(mark) == []
        assert await run(sandbox, "echo", "usable") == (0, b"usable\n")


async def test_the_watcher_and_process_1_cannot_be_read(sandbox: Sandbox) -> None:
    code = """
import os
for pid in (1, os.getppid()):
    for attempt in (lambda: open(f"/proc/{pid}/mem", "rb"), lambda: os.listdir(f"/proc/{pid}/fd"),
                    lambda: open(f"/proc/{pid}/environ", "rb").read()):
        try:
            attempt()
            print("read", pid)
        except OSError:
            pass
try:
    os.kill(1, 9)
except OSError:
    pass
print(sorted(int(n) for n in os.listdir("/proc") if n.isdigit() and int(n) < 2))
"""
    assert (await python(sandbox, code)).stdout == b"[1]\n"
    assert await run(sandbox, "echo", "usable") == (0, b"usable\n")


async def test_a_forged_answer_is_output(sandbox: Sandbox) -> None:
    forged = b'{"exit": 0, "timed_out": false, "truncated": false, "left": [], "out": 0, "err": 0}'
    answer = len(forged).to_bytes(8, "big") + forged
    code = f"import os; os.write(1, {answer!r}); os._exit(3)"
    result = await python(sandbox, code)
    assert (result.exit_code, result.stdout) == (3, answer)


async def test_commands_see_nothing_of_the_keeper(sandbox: Sandbox) -> None:
    await sandbox.mount_read_only("/tests", {"d/t.py": b"content"})
    code = """
import os
attempts = [lambda: open("/tests/d/t.py", "w"), lambda: open("/tests/new", "w"), lambda: os.unlink("/tests/d/t.py"),
            lambda: os.chmod("/tests/d/t.py", 0o777), lambda: os.rename("/tests/d", "/tests/e"),
            lambda: os.mkdir("/run/testgrad/x"), lambda: os.unlink("/run/testgrad/commands"), lambda: open("/new", "w"),
            lambda: os.link("/tests/d/t.py", "/workspace/t.py"), lambda: open("/usr/new", "w")]
for attempt in attempts:
    try:
        attempt()
        print("changed")
    except OSError:
        pass
print(open("/tests/d/t.py").read(), os.path.exists("/shown"), sum(n.isdigit() for n in os.listdir("/proc")) == 3)
"""
    assert (await python(sandbox, code)).stdout == b"content False True\n"


async def test_a_dropped_stream_kills_the_command_and_is_the_machines_fault(
    cluster: FakeCluster, sandbox: Sandbox
) -> None:
    mark = f"mark-{os.getpid()}-drop"
    cluster.fail("drop", op="run")
    with pytest.raises(SandboxError, match="stream"):
        await sandbox.exec(["sh", "-c", f"sleep 600; : {mark}"], timeout=60)
    assert processes_with(mark) == []
    assert await run(sandbox, "echo", "usable") == (0, b"usable\n")


async def test_an_answer_that_does_not_come_is_the_machines_fault(cluster: FakeCluster) -> None:
    async with create_sandbox(cluster.config(grace=0.5)) as sandbox:
        cluster.fail("hang", op="run")
        with pytest.raises(SandboxError, match="did not arrive"):
            await sandbox.exec(["true"], timeout=6.0)
        assert await run(sandbox, "echo", "usable") == (0, b"usable\n")


async def test_new_credentials_break_no_command(cluster: FakeCluster, sandbox: Sandbox) -> None:
    task = asyncio.create_task(
        sandbox.exec(["sh", "-c", "echo > up; until test -e go; do sleep 0.1; done"], timeout=60)
    )
    while "up" not in (await sandbox.read_tree(lambda path, data: False)).seen:
        await asyncio.sleep(0.05)
    cluster.token = "another"
    write_kubeconfig(cluster)
    await sandbox.write_file("go", b"")
    assert (await task).exit_code == 0


async def test_memory_that_runs_out_is_the_policys_doing(cluster: FakeCluster, sandbox: Sandbox) -> None:
    await sandbox.write_file("work", b"done")
    task = asyncio.create_task(sandbox.exec(["sh", "-c", "echo > up; sleep 600"], timeout=600))
    while "up" not in (await sandbox.read_tree(lambda path, data: False)).seen:
        await asyncio.sleep(0.05)
    await asyncio.to_thread(cluster.node.containers["commands"].kill, "OOMKilled")
    result = await task
    assert (result.exit_code, result.over_limit) == (137, "total_memory_bytes")
    again = await sandbox.exec(["true"], timeout=20)
    assert again.exit_code == 137
    assert b"OOMKilled" in again.stderr
    assert (await sandbox.read_tree(lambda path, data: True)).files["work"] == b"done"  # graded as it stands


async def test_commands_queue(sandbox: Sandbox) -> None:
    results = await asyncio.gather(*(sandbox.exec(["sh", "-c", f"sleep 0.1; echo {i}"], timeout=60) for i in range(4)))
    assert [int(result.stdout) for result in results] == list(range(4))
