"""What the docker backend does beyond what all backends do: see the test_contract files for that."""

import asyncio
import contextlib
import os
import signal
import socket
import subprocess
import sys
import textwrap
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from support.docker import docker_sandbox

from harness.sandbox import (
    ExecResult,
    Sandbox,
    SandboxConfig,
    SandboxError,
    SandboxUnavailable,
    create_sandbox,
    require_isolation,
)
from harness.sandbox.docker import DockerSandbox, leftovers
from harness.sandbox.docker_config import DockerConfig, hosts_of
from harness.sandbox.docker_engine import Engine, connect
from harness.sandbox.owner import owned_by

pytestmark = pytest.mark.docker


def engine_of(config: SandboxConfig) -> Engine:
    return connect(hosts_of(config.docker)[0])


def owned(config: SandboxConfig) -> list[str]:
    """Names of all containers and volumes that bear our labels."""
    containers, volumes = engine_of(config).labelled("testgrad.project")
    return [str(c["Names"][0]) for c in containers] + [str(v["Name"]) for v in volumes]


@pytest_asyncio.fixture
async def sandbox() -> AsyncIterator[DockerSandbox]:
    config = docker_sandbox()
    async with DockerSandbox(config) as started:
        yield started
    assert owned(config) == []


async def python(sandbox: Sandbox, code: str, timeout: float = 60) -> ExecResult:
    return await sandbox.exec(["python3", "-I", "-S", "-c", textwrap.dedent(code)], timeout=timeout)


async def test_everything_is_labelled_and_nothing_is_left() -> None:
    config = docker_sandbox()
    with owned_by(project="p", run="r", trial="t"):
        sandbox = create_sandbox(config)
        await sandbox.start()
    await sandbox.mount_read_only("/tests", {"a": b"x"})
    command = asyncio.create_task(sandbox.exec(["sleep", "600"], timeout=600))
    engine = engine_of(config)
    while len((found := engine.labelled("testgrad.trial=t"))[0]) < 2:
        await asyncio.sleep(0.05)
    containers, volumes = found
    assert len(volumes) == 4
    for thing in (*containers, *volumes):
        labels = thing["Labels"]
        assert (labels["testgrad.project"], labels["testgrad.run"], labels["testgrad.pid"]) == (
            "p",
            "r",
            str(os.getpid()),
        )
        assert labels["testgrad.host"] and labels["testgrad.started"]
    await sandbox.stop()
    assert owned(config) == []
    with pytest.raises(SandboxError, match="stopped"):
        await command


async def test_host_files_and_hardware_are_invisible(sandbox: Sandbox, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("x")
    names = [str(secret), __file__, "/var/run/docker.sock", "/sys/class", "/dev/vda", "/dev/kmsg", "/proc/kcore/x"]
    result = await python(sandbox, f"import os; print([n for n in {names!r} if os.path.exists(n)])")
    assert result.stdout.strip() == b"[]"
    setuid = await sandbox.exec(["find", "/", "-xdev", "-perm", "/6000", "-type", "f"], timeout=60)
    assert setuid.stdout == b""


async def test_no_port_of_the_host_on_any_address(sandbox: Sandbox) -> None:
    with socket.create_server(("0.0.0.0", 0)) as server:
        port = server.getsockname()[1]
        addresses = ["127.0.0.1", "0.0.0.0", "172.17.0.1", "host.docker.internal", socket.gethostname(), "192.0.2.1"]
        result = await python(
            sandbox,
            f"""
            import socket
            for address in {addresses!r}:
                try:
                    socket.create_connection((address, {port}), 2)
                    print("reached", address)
                except OSError:
                    pass
            udp = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
            try:
                udp.sendto(b"x", ("192.0.2.1", 53))
                print("sent")
            except OSError:
                pass
            for family in (17, 38, 40):
                try:
                    socket.socket(family, socket.SOCK_RAW if family == 17 else socket.SOCK_STREAM)
                    print("opened", family)
                except OSError:
                    pass
            print(socket.if_nameindex())
            """,
        )
        server.setblocking(False)
        with pytest.raises(BlockingIOError):
            server.accept()
    assert result.stdout == b"[(1, 'lo')]\n", (result.stdout, result.stderr)


async def test_a_fork_bomb_stays_within_its_command(sandbox: Sandbox) -> None:
    bomb = asyncio.create_task(
        python(
            sandbox,
            """
            import os
            while True:
                try:
                    os.fork()
                except OSError:
                    pass
            """,
            timeout=3,
        )
    )
    await asyncio.sleep(1)
    assert (await sandbox.exec(["echo", "alive"], timeout=60)).stdout == b"alive\n"
    assert (await bomb).timed_out


async def test_memory_of_all_processes_together_is_limited() -> None:
    config = docker_sandbox(total_memory_bytes=128 << 20)
    async with create_sandbox(config) as sandbox:
        result = await python(
            sandbox,
            """
            import os, time
            for _ in range(8):
                if os.fork() == 0:
                    held = bytearray(b"x" * (60 << 20))
                    time.sleep(60)
            time.sleep(1)
            held = bytearray(b"x" * (100 << 20))
            """,
        )
        assert (result.exit_code, result.over_limit) == (137, "total_memory_bytes")
        assert (await sandbox.exec(["echo", "usable"], timeout=60)).stdout == b"usable\n"


async def test_a_full_workspace_is_the_commands_error_and_stays_readable() -> None:
    config = docker_sandbox(workspace_bytes=2 << 20, workspace_files=1000)
    async with create_sandbox(config) as sandbox:
        result = await python(
            sandbox,
            """
            import os
            def fill(attempt):
                try:
                    while True:
                        attempt()
                except OSError as error:
                    print(error.errno)
            with open("big", "wb") as big:
                fill(lambda: (big.write(bytes(1 << 16)), big.flush()))
            os.unlink("big")
            count = iter(range(10**6))
            fill(lambda: open(f"f{next(count)}", "w").close())
            with open("f0", "wb") as big:
                fill(lambda: (big.write(bytes(1 << 16)), big.flush()))
            """,
        )
        assert result.stdout.split() == [b"28"] * 3, result.stderr
        with pytest.raises(ValueError, match="No space"):  # not the machine's fault
            await sandbox.write_file("more", b"x" * 100_000)
        assert len((await sandbox.read_tree(lambda path, data: True)).seen) > 900
        await sandbox.write_files({f"f{i}": None for i in range(50)})
        await sandbox.write_file("more", b"x")
        assert await sandbox.read_file("more", 10) == b"x"


async def test_a_command_cannot_make_its_end_look_like_the_machines_fault(sandbox: Sandbox) -> None:
    attempts = [
        "import os; os.kill(os.getpid(), 9)",
        "import os; os.kill(-1, 9)",
        "import os; os.kill(1, 9); os.kill(os.getppid(), 9); import time; time.sleep(60)",
        "import os; os.kill(1, 15); import time; time.sleep(60)",
        "import ctypes, os; print(ctypes.CDLL(None).ptrace(16, 1, 0, 0)); os._exit(137)",
        "import os; os.closerange(0, 1000); os._exit(7)",
    ]
    for code in attempts:
        result = await python(sandbox, code, timeout=5)
        assert result.exit_code in (137, 143, 124, 7), (code, result)
    assert (await sandbox.exec(["echo", "usable"], timeout=60)).stdout == b"usable\n"


async def test_a_command_that_is_killed_from_outside_is_the_machines_fault(sandbox: DockerSandbox) -> None:
    engine = engine_of(sandbox.config)
    for kill in (
        lambda name: engine._client.kill(name),
        lambda name: engine._client.stop(name, timeout=0),
        lambda name: engine._client.remove_container(name, force=True),
    ):
        task = asyncio.create_task(sandbox.exec(["sh", "-c", "echo > up; sleep 600"], timeout=600))
        while "up" not in (await sandbox.read_tree(lambda path, data: False)).seen:
            await asyncio.sleep(0.02)
        (name,) = (command.name for command in sandbox._commands)
        await asyncio.to_thread(kill, name)
        with pytest.raises(SandboxError, match="outside"):
            await task
        await sandbox.write_files({"up": None})


async def test_a_lost_workspace_is_noticed_and_leaves_nothing() -> None:
    config = docker_sandbox()
    sandbox = DockerSandbox(config)
    await sandbox.start()
    await sandbox.write_file("a", b"x")
    engine_of(config)._client.kill(sandbox._keepers[0].name)
    with pytest.raises(SandboxError, match="keeper"):
        await sandbox.exec(["ls"], timeout=60)  # runs over a new volume of the old name
    with pytest.raises(SandboxError, match="keeper"):
        await sandbox.read_file("a", 10)
    await sandbox.stop()
    await sandbox.stop()
    assert owned(config) == []


async def test_a_command_that_waits_for_its_turn_does_not_outlive_the_sandbox() -> None:
    config = docker_sandbox(max_concurrent_execs=1)
    async with create_sandbox(config) as other:
        first = asyncio.create_task(other.exec(["sh", "-c", "until test -e go; do sleep 0.1; done"], timeout=600))
        sandbox = create_sandbox(config)
        await sandbox.start()
        waiting = asyncio.create_task(sandbox.exec(["true"], timeout=60))
        await asyncio.sleep(0)
        await sandbox.stop()
        await other.write_file("go", b"")
        with pytest.raises(SandboxError, match="not running"):
            await waiting
        await first
    assert owned(config) == []


async def test_cancelling_a_start_leaves_nothing() -> None:
    config = docker_sandbox()
    for delay in (0.0, 0.02, 0.1, 0.3):
        sandbox = create_sandbox(config)
        task = asyncio.create_task(sandbox.start())
        await asyncio.sleep(delay)
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):  # a quick engine may be done before
            await task
        await sandbox.stop()
    assert owned(config) == []


async def test_cancelling_file_operations_leaves_the_sandbox_usable(sandbox: Sandbox) -> None:
    data = {f"d/{i}": b"x" * 50_000 for i in range(100)}
    for delay in (0.0, 0.002, 0.01):
        for operation in (sandbox.write_files(data), sandbox.read_tree(lambda path, data: True)):
            task = asyncio.ensure_future(operation)
            await asyncio.sleep(delay)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
    assert len((await sandbox.read_tree(lambda path, data: True)).files) == 100


async def test_more_mounts_than_a_keeper_has_volumes(sandbox: DockerSandbox) -> None:
    for i in range(5):
        await sandbox.mount_read_only(f"/m{i}", {"f": b"%d" % i})
    result = await sandbox.exec(["sh", "-c", "cat /m?/f; touch /m4/f"], timeout=60)
    assert (result.stdout, result.exit_code) == (b"01234", 1)
    assert len(sandbox._keepers) == 2


async def test_a_runtime_is_shown_read_only(sandbox: Sandbox, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no folder"):
        await sandbox.mount_runtime(tmp_path / "none", "/opt/agent")
    with pytest.raises(ValueError, match="/workspace"):
        await sandbox.mount_runtime(tmp_path, "/workspace")
    await sandbox.mount_runtime(Path("/usr/share/doc"), "/opt/agent")
    result = await sandbox.exec(["sh", "-c", "ls /opt/agent | wc -l; touch /opt/agent/x"], timeout=60)
    assert int(result.stdout) > 0 and b"Read-only" in result.stderr


async def test_number_of_commands_at_a_time_is_bounded() -> None:
    config = docker_sandbox(max_concurrent_execs=2)
    most = 0
    async with DockerSandbox(config) as sandbox:
        tasks = [asyncio.create_task(sandbox.exec(["sleep", "0.5"], timeout=60)) for _ in range(5)]
        while not all(task.done() for task in tasks):
            most = max(most, len(engine_of(config).labelled("testgrad.project")[0]) - 1)
            await asyncio.sleep(0.05)
    assert 0 < most <= 2


SCRIPT = """
import asyncio, sys, time
from harness.sandbox import SandboxConfig, create_sandbox, docker_command
from harness.sandbox.docker_config import DockerConfig
docker_command._SPARE_SECONDS = 0
async def main():
    sandbox = create_sandbox(SandboxConfig(backend="docker", docker=DockerConfig(hosts=[sys.argv[1]])))
    await sandbox.start()
    task = asyncio.create_task(sandbox.exec(["sh", "-c", "echo > up; sleep 600"], timeout=float(sys.argv[2])))
    while "up" not in (await sandbox.read_tree(lambda path, data: False)).seen:
        await asyncio.sleep(0.02)
    print("up", flush=True)
    await asyncio.sleep(600)
asyncio.run(main())
"""


def kill_harness_in_a_command(config: SandboxConfig, timeout: float) -> None:
    harness = subprocess.Popen(
        [sys.executable, "-c", SCRIPT, hosts_of(config.docker)[0].url, str(timeout)], stdout=subprocess.PIPE
    )
    try:
        assert harness.stdout is not None and harness.stdout.readline() == b"up\n"
    finally:
        harness.send_signal(signal.SIGKILL)
        harness.wait()


def eventually(condition: Any, seconds: float = 60.0) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.1)


async def test_what_a_killed_harness_leaves_is_found_and_removed(sandbox: DockerSandbox) -> None:
    config = sandbox.config
    engine, mine = engine_of(config), set(owned(config))
    stranger = {"Image": config.docker.image, "Entrypoint": ["sleep", "600"], "Labels": {"testgrad.project": "theirs"}}
    engine.create("a-stranger", stranger)
    try:
        kill_harness_in_a_command(config, 600)
        # The keeper ends by itself; the command, and the volume it still uses, are the reaper's.
        eventually(lambda: len(engine.labelled("testgrad.pid")[0]) == 2)
        found = await leftovers(config)
        assert [thing.kind for thing in found][:1] == ["container"]
        assert {thing.kind for thing in found[1:]} == {"volume"}
        assert all(thing.labels["testgrad.pid"] != str(os.getpid()) and thing.since is not None for thing in found)
        for thing in found:
            await asyncio.to_thread(thing.remove)
            await asyncio.to_thread(thing.remove)
        assert await leftovers(config) == []
        assert set(owned(config)) == mine | {"/a-stranger"}
    finally:
        engine.remove("a-stranger")
    assert (await sandbox.exec(["echo", "usable"], timeout=60)).stdout == b"usable\n"


async def test_what_a_killed_harness_leaves_ends_at_its_deadline() -> None:
    config = docker_sandbox()
    kill_harness_in_a_command(config, 8)
    eventually(lambda: engine_of(config).labelled("testgrad.project")[0] == [])
    for thing in await leftovers(config):
        thing.remove()
    assert owned(config) == []


def test_isolation_is_tried_out_and_a_gap_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    config = docker_sandbox(open_files=128)
    require_isolation(config)
    body = DockerSandbox._body

    def with_network(self: DockerSandbox, *args: Any) -> dict[str, Any]:
        made = body(self, *args)
        made["HostConfig"] |= {"NetworkMode": "host", "CapDrop": []}
        return made

    monkeypatch.setattr(DockerSandbox, "_body", with_network)
    with pytest.raises(SandboxUnavailable, match=r"capabilities is .*interfaces is"):
        require_isolation(docker_sandbox(open_files=129))
    assert owned(config) == []


async def test_an_absent_image_is_named() -> None:
    docker = DockerConfig(image="testgrad-none:latest", pull="never")
    with pytest.raises(SandboxUnavailable, match=r"testgrad-none.*pull is never"):
        await create_sandbox(docker_sandbox(docker=docker)).start()


async def test_a_registry_that_does_not_answer_is_the_machines_fault(tmp_path: Path) -> None:
    docker = DockerConfig(image="127.0.0.1:9/none:1", pull_attempts=2, image_record=tmp_path / "images.json")
    docker = docker.model_copy(update={"disk_floor_bytes": 0})
    with pytest.raises(SandboxError, match="2 tries"):
        await create_sandbox(docker_sandbox(docker=docker)).start()


async def test_an_engine_that_cannot_be_reached_is_passed_over() -> None:
    url = hosts_of(docker_sandbox().docker)[0].url
    hosts = DockerConfig(hosts=[{"url": "unix:///nowhere/docker.sock", "slots": 99}, url]).hosts  # type: ignore[list-item,arg-type]
    config = docker_sandbox(docker=DockerConfig(hosts=hosts))
    for _ in range(2):
        async with create_sandbox(config) as sandbox:
            assert (await sandbox.exec(["echo", "x"], timeout=60)).stdout == b"x\n"
