"""The way to the proxy: over the exec stream, to one Unix socket and to nothing else."""

import asyncio
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path

import psutil
import pytest
import pytest_asyncio
from aiohttp import web
from support.kube import FakeCluster

from harness.sandbox import SandboxError, create_sandbox
from harness.sandbox.forwarder import PROXY_ORIGIN

FETCH = """
import sys, threading, urllib.request
def fetch(body):
    request = urllib.request.Request(sys.argv[1] + "/echo", data=body)
    sizes.append(len(urllib.request.urlopen(request, timeout=20).read()))
sizes = []
threads = [threading.Thread(target=fetch, args=(b"x" * n,)) for n in (1, 70_000, 300_000)]
[t.start() for t in threads]; [t.join() for t in threads]
print(sorted(sizes))
"""


@pytest_asyncio.fixture
async def proxy() -> AsyncIterator[Path]:
    """The socket of a server that sends back what it gets."""

    async def echo(request: web.Request) -> web.Response:
        return web.Response(body=await request.read())

    app = web.Application(client_max_size=1 << 24)
    app.router.add_post("/echo", echo)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    with tempfile.TemporaryDirectory() as folder:
        await web.UnixSite(runner, f"{folder}/proxy.sock").start()
        yield Path(folder, "proxy.sock")
        await runner.cleanup()


async def test_commands_reach_the_proxy(cluster: FakeCluster, proxy: Path) -> None:
    async with create_sandbox(cluster.config()) as sandbox:
        origin = await sandbox.connect_proxy(proxy)
        assert origin == PROXY_ORIGIN
        for writable in (True, False):
            result = await sandbox.exec(
                [sandbox.python, "-I", "-S", "-c", FETCH, origin], timeout=40, writable=writable
            )
            assert result.stdout == b"[1, 70000, 300000]\n", result.stderr
    assert cluster.pods == {}
    assert not [task for task in asyncio.all_tasks() if "Tunnel" in str(task.get_coro())]


async def test_commands_cannot_end_the_tunnel(cluster: FakeCluster, proxy: Path) -> None:
    async with create_sandbox(cluster.config()) as sandbox:
        origin = await sandbox.connect_proxy(proxy)
        await sandbox.exec(["sh", "-c", "kill -9 -1"], timeout=20)
        result = await sandbox.exec([sandbox.python, "-I", "-S", "-c", FETCH, origin], timeout=40)
        assert result.stdout == b"[1, 70000, 300000]\n", result.stderr


async def test_a_lost_tunnel_is_the_machines_fault(cluster: FakeCluster, proxy: Path) -> None:
    async with create_sandbox(cluster.config()) as sandbox:
        await sandbox.connect_proxy(proxy)
        for process in cluster.node.processes:
            if process.returncode is None:
                for inside in psutil.Process(process.pid).children(recursive=True):
                    inside.kill()
        with pytest.raises(SandboxError, match="way to the proxy"):
            for _ in range(50):
                await sandbox.exec(["true"], timeout=20)


async def test_a_proxy_that_is_not_there_is_noticed(cluster: FakeCluster, tmp_path: Path) -> None:
    async with create_sandbox(cluster.config()) as sandbox:
        with pytest.raises(SandboxError, match="nothing answers"):
            await sandbox.connect_proxy(tmp_path / "none.sock")
