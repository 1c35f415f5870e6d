"""A node for the fake cluster: it runs a pod's manifest with bubblewrap, on this machine.

Each container is a process 1 in namespaces of its own, with the mounts, the user and the command of the manifest; the
containers of a pod share one network namespace, without a network. Commands are brought into a container with
nsenter(1), as a container runtime does. What it does not do: images (the host's /usr and Python stand for any), limits
of memory and CPU, sizes of volumes, seccomp, network policies.
"""

import asyncio
import json
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from harness.sandbox import SandboxConfig
from harness.sandbox.bwrap_host import find_host


def node_python() -> str:
    """The Python of every image."""
    return find_host(SandboxConfig()).python


class Container:
    """One container of a pod, running since it was made. `enter` are the words that bring a command into it."""

    def __init__(self, spec: Mapping[str, Any], user: int, volumes: Mapping[str, Path], first: "Container | None"):
        host = find_host(SandboxConfig())
        self.name = str(spec["name"])
        self.reason = "Completed"
        self.user = user if os.geteuid() == 0 else None
        outer = [] if first is None else _nsenter(first.pid, "-U", "-n")
        said, say = os.pipe()
        command = [
            *outer,
            *(host.bwrap, "--unshare-user", "--unshare-pid", "--unshare-ipc", "--unshare-uts"),
            *([] if first is not None else ["--unshare-net"]),
            *("--uid", str(user), "--gid", str(user), "--cap-drop", "ALL", "--as-pid-1", "--clearenv"),
            *("--die-with-parent", "--new-session", *host.system, "--proc", "/proc", "--dev-bind", "/dev", "/dev"),
            *_mounts(spec, volumes),
            *(("--remount-ro", "/") if spec["securityContext"]["readOnlyRootFilesystem"] else ()),
            *("--info-fd", str(say), "--", *spec["command"]),
        ]
        self.process = self._spawn(command, pass_fds=(say,), stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
        os.close(say)
        told = b""
        while not told.rstrip().endswith(b"}"):
            part = os.read(said, 4096)
            if not part:
                raise RuntimeError(f"bwrap did not start container {self.name}")
            told += part
        os.close(said)
        self.pid = int(json.loads(told)["child-pid"])
        while Path(f"/proc/{self.pid}/cmdline").read_bytes().split(b"\0")[0] != spec["command"][0].encode():
            time.sleep(0.005)  # a container counts as running once its command does
        inner = _nsenter(self.pid, "-U", "-m", "-p", "-i", "-u", *([] if first is not None else ["-n"]))
        self.enter = [*outer, *inner]

    def _spawn(self, command: Sequence[str], **more: Any) -> "subprocess.Popen[bytes]":
        groups: list[int] | None = None if self.user is None else []
        return subprocess.Popen(
            command, cwd="/", env={}, user=self.user, group=self.user, extra_groups=groups, **more
        )  # fmt: skip

    async def exec(self, argv: Sequence[str], env: Mapping[str, str]) -> asyncio.subprocess.Process:
        """A process of the container, with pipes."""
        pipe = asyncio.subprocess.PIPE
        return await asyncio.create_subprocess_exec(
            *(*self.enter, *argv),
            stdin=pipe,
            stdout=pipe,
            stderr=pipe,
            cwd="/",
            env={"PATH": "/usr/local/bin:/usr/bin:/bin", **env},
            user=self.user,
            group=self.user,
            extra_groups=None if self.user is None else [],
        )

    @property
    def alive(self) -> bool:
        return self.process.poll() is None

    def kill(self, reason: str = "Error") -> None:
        """End process 1 and with it the container."""
        if self.alive:
            self.reason = reason
            os.kill(self.pid, 9)
            self.process.wait()


class NodePod:
    """A pod's containers and volumes."""

    def __init__(self, manifest: Mapping[str, Any]) -> None:
        spec = manifest["spec"]
        self.base = Path(tempfile.mkdtemp(prefix="kube-node-"))
        self.base.chmod(0o711)
        volumes = {volume["name"]: self.base / volume["name"] for volume in spec["volumes"]}
        for folder in volumes.values():
            folder.mkdir()
            folder.chmod(0o777)
        self.containers: dict[str, Container] = {}
        self.processes: list[asyncio.subprocess.Process] = []
        for container in spec["containers"]:
            user = container["securityContext"]["runAsUser"]
            first = next(iter(self.containers.values()), None)
            self.containers[container["name"]] = Container(container, user, volumes, first)

    async def exec(self, container: str, argv: Sequence[str], env: Mapping[str, str]) -> asyncio.subprocess.Process:
        process = await self.containers[container].exec(argv, env)
        self.processes.append(process)
        return process

    async def kill(self, reason: str = "Error") -> None:
        # A namespace dies only when its dead are reaped, and an nsenter whose child was stopped has stopped itself.
        for process in self.processes:
            if process.returncode is None:
                process.kill()
        for container in reversed(self.containers.values()):
            await asyncio.to_thread(container.kill, reason)
        for process in self.processes:
            await process.wait()
            process._transport.close()  # type: ignore[attr-defined]
        self.processes.clear()

    async def remove(self) -> None:
        await self.kill()
        shutil.rmtree(self.base, ignore_errors=True)


def _nsenter(pid: int, *namespaces: str) -> list[str]:
    return ["/usr/bin/nsenter", "-t", str(pid), *namespaces, "--preserve-credentials", "--"]


def _mounts(spec: Mapping[str, Any], volumes: Mapping[str, Path]) -> list[str]:
    words: list[str] = []
    for mount in spec["volumeMounts"]:
        words += ["--ro-bind" if mount.get("readOnly") else "--bind", str(volumes[mount["name"]]), mount["mountPath"]]
    return words
