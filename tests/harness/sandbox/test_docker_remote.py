"""Engines behind TLS, and several of them as one."""

import asyncio
import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import docker
import pytest
from support.docker import docker_sandbox

from deployments.docker import build_base, daemon
from harness.sandbox import SandboxError, SandboxUnavailable, create_sandbox
from harness.sandbox.docker import DockerSandbox, leftovers
from harness.sandbox.docker_config import DockerConfig
from harness.sandbox.docker_engine import connect

pytestmark = pytest.mark.docker


def certificates(folder: Path) -> None:
    """ca.pem, cert.pem and key.pem: for 127.0.0.1, and as a client."""

    def new(name: str, *more: str) -> None:
        command = [
            *("openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", f"/CN={name}"),
            *more,
        ]
        subprocess.run(command, cwd=folder, check=True, capture_output=True)

    new("ca", "-keyout", "ca-key.pem", "-out", "ca.pem")
    signed = ("-CA", "ca.pem", "-CAkey", "ca-key.pem", "-addext", "extendedKeyUsage=serverAuth,clientAuth")
    new("engine", *signed, "-addext", "subjectAltName=IP:127.0.0.1", "-keyout", "key.pem", "-out", "cert.pem")


@pytest.fixture(scope="module")
def remote(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Any]]:
    """An engine that listens on TCP behind mutual TLS, as a host of a configuration."""
    docker_sandbox()  # skips where no engine can be had
    if os.geteuid() != 0 or shutil.which("dockerd") is None or shutil.which("openssl") is None:
        pytest.skip("a second engine, behind TLS, needs root, dockerd and openssl")
    folder = tmp_path_factory.mktemp("tls")
    certificates(folder)
    url = f"tcp://127.0.0.1:{20000 + os.getpid() % 10000}"  # below those that other programs are given at random
    options = ["--host", url, "--tlsverify", f"--tlscacert={folder}/ca.pem"]
    options += [f"--tlscert={folder}/cert.pem", f"--tlskey={folder}/key.pem"]
    with daemon.private_engine(options) as local:
        build_base.build(docker.APIClient(base_url=local, timeout=300))
        yield {"url": url, "tls": folder, "slots": 2}


async def test_a_remote_engine_does_all_but_show_files_of_this_host(remote: dict[str, Any], tmp_path: Path) -> None:
    config = docker_sandbox(docker=DockerConfig(hosts=[remote]))  # type: ignore[list-item,arg-type]
    assert config.docker.hosts[0].url == remote["url"]
    (tmp_path / "repo").mkdir()
    (tmp_path / "repo" / "a").write_bytes(data := os.urandom(3 << 20))
    async with create_sandbox(config) as sandbox:
        await sandbox.upload(tmp_path / "repo")
        assert await sandbox.read_file("a", 4 << 20) == data
        assert (await sandbox.exec(["cat"], timeout=60, stdin=data[:700_000])).stdout == data[:700_000]
        assert (await sandbox.exec(["true"], timeout=60, stdin=data)).exit_code == 0
        assert (await sandbox.exec(["yes"], timeout=1)).timed_out
        before = len(os.listdir("/proc/self/fd"))
        for _ in range(4):
            await sandbox.exec(["cat"], timeout=60, stdin=b"x")
        assert len(os.listdir("/proc/self/fd")) <= before
        assert (await sandbox.read_tree(lambda path, content: True)).files == {"a": data}
        task = asyncio.create_task(sandbox.exec(["sleep", "600"], timeout=600))
        await asyncio.sleep(0.5)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        with pytest.raises(SandboxUnavailable, match="local socket"):
            await sandbox.connect_proxy(tmp_path / "proxy.sock")
        with pytest.raises(SandboxUnavailable, match="local socket"):
            await sandbox.mount_runtime(tmp_path, "/opt/agent")
    assert connect(config.docker.hosts[0]).labelled("testgrad.project") == ([], [])
    assert await leftovers(config) == []


async def test_an_engine_is_not_spoken_to_without_its_certificate(remote: dict[str, Any], tmp_path: Path) -> None:
    certificates(tmp_path)  # of another authority
    config = docker_sandbox(docker=DockerConfig(hosts=[remote | {"tls": tmp_path}]))  # type: ignore[list-item,arg-type]
    with pytest.raises(SandboxUnavailable, match=r"(?i)certificate"):
        await create_sandbox(config).start()


async def test_an_engine_that_goes_away_is_the_machines_fault() -> None:
    docker_sandbox()
    if os.geteuid() != 0 or shutil.which("dockerd") is None:
        pytest.skip("an engine to stop needs root and dockerd")
    with daemon.private_engine() as url:
        build_base.build(docker.APIClient(base_url=url, timeout=300))
        sandbox = create_sandbox(docker_sandbox(docker=DockerConfig(hosts=[url])))  # type: ignore[list-item,arg-type]
        await sandbox.start()
        task = asyncio.create_task(sandbox.exec(["sh", "-c", "echo > up; sleep 600"], timeout=600))
        while "up" not in (await sandbox.read_tree(lambda path, data: False)).seen:
            await asyncio.sleep(0.02)
        os.kill(int((Path(url.removeprefix("unix://")).parent / "pid").read_text()), signal.SIGTERM)
        with pytest.raises(SandboxError):
            await task
        with pytest.raises(SandboxError):
            await sandbox.write_file("a", b"x")
        with pytest.raises(SandboxError):
            await sandbox.stop()  # and may be called again once the engine is back


async def test_sandboxes_spread_over_engines(remote: dict[str, Any]) -> None:
    own = docker_sandbox().docker.hosts[0].model_dump() | {"slots": 1}
    config = docker_sandbox(docker=DockerConfig(hosts=[remote, own]))  # type: ignore[list-item,arg-type]
    sandboxes = [DockerSandbox(config) for _ in range(3)]
    await asyncio.gather(*(sandbox.start() for sandbox in sandboxes))
    engines = sorted(sandbox._place.host.url for sandbox in sandboxes if sandbox._place is not None)
    assert engines == sorted([remote["url"]] * 2 + [own["url"]])
    fourth = asyncio.create_task(DockerSandbox(config).start())
    await asyncio.sleep(0.2)
    assert not fourth.done()  # all slots are taken
    fourth.cancel()
    await asyncio.gather(fourth, return_exceptions=True)
    results = await asyncio.gather(*(sandbox.exec(["echo", "x"], timeout=60) for sandbox in sandboxes))
    assert [result.stdout for result in results] == [b"x\n"] * 3
    await asyncio.gather(*(sandbox.stop() for sandbox in sandboxes))
    assert all(connect(host).labelled("testgrad.project") == ([], []) for host in config.docker.hosts)
