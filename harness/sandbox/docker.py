"""The sandbox of a Docker engine: each command is a container of its own over a workspace in memory.

A command runs as an ordinary user without capabilities and cannot gain any, under the engine's seccomp profile, over a
read-only system, with no network but a loopback, and within limits of its cgroup: memory of all its processes together,
their number, processor time. It can write to its workspace, /tmp and /dev/shm alone, all of bounded size; nothing of it
reaches the engine's disk. Its container is removed before `exec` returns. A second container, the keeper, in which no
command ever runs, holds the workspace and reads and writes it for the host.

What this does not do: a hole in the kernel is a hole in every container; name an OCI runtime such as runsc or kata
where that is too little. A container that is killed by the host's own out-of-memory killer looks like one whose command
was killed.
"""

import asyncio
import contextvars
import functools
import logging
import os
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path, PurePosixPath
from typing import Any

from harness.sandbox import forwarder
from harness.sandbox.base import (
    WORKSPACE,
    ExecResult,
    Sandbox,
    SandboxConfig,
    SandboxError,
    SandboxUnavailable,
    check_command,
    check_mount,
    environment,
    register_sandbox,
)
from harness.sandbox.docker_command import Command, entry_point
from harness.sandbox.docker_config import DockerHost, hosts_of
from harness.sandbox.docker_engine import Engine, EngineError, EngineUnreachable, connect
from harness.sandbox.docker_images import ensure_image
from harness.sandbox.docker_keeper import Keeper, Volume, file_entry, tree_entries
from harness.sandbox.docker_leftovers import leftovers as leftovers
from harness.sandbox.docker_pool import HostPool, Place, pool_of
from harness.sandbox.docker_probe import PROBE, judge_probe
from harness.sandbox.docker_threads import in_thread
from harness.sandbox.owner import current_owner, labels
from harness.sandbox.tree import Tree, file_parts, relative_parts
from harness.sandbox.waiting import in_turn

_SPARE_VOLUMES = 3
"""Volumes for `mount_read_only` that a keeper has from the start: no volume can be added to a container that runs."""

_FURTHER_PYTHONS = "/opt/miniconda3/bin:/opt/conda/bin"
"""Where images whose system has no Python have one that the keeper can run on."""

_MOUNT_BYTES = 256 << 20
_MOUNT_FILES = 50_000

# What Docker hides by itself, and /sys, which tells of the host's hardware. To name any replaces Docker's own list.
_MASKED = [
    *("/proc/asound", "/proc/acpi", "/proc/kcore", "/proc/keys", "/proc/latency_stats", "/proc/timer_list"),
    *("/proc/timer_stats", "/proc/sched_debug", "/proc/scsi", "/proc/interrupts", "/sys"),
]

_log = logging.getLogger(__name__)


@register_sandbox("docker")
class DockerSandbox(Sandbox):
    """See the module."""

    def __init__(self, config: SandboxConfig) -> None:
        super().__init__(config)
        self._pool: HostPool | None = None
        self._place: Place | None = None
        self._engine: Engine | None = None
        self._keepers: list[Keeper] = []
        self._mounts: list[dict[str, Any]] = []  # of each command, besides the workspace
        self._spare: list[tuple[Keeper, int]] = []  # volumes that nothing has been mounted from yet
        self._commands: set[Command] = set()
        self._forwarder: list[str] = []
        self._labels: dict[str, str] = {}

    @classmethod
    def require_isolation(cls, config: SandboxConfig) -> None:
        hosts = hosts_of(config.docker)
        key = (config.model_dump_json(), hosts)
        if key not in _tried_out:
            _try_out(config, hosts)
            _tried_out.add(key)

    @classmethod
    def with_image(cls, config: SandboxConfig, image: str) -> SandboxConfig:
        return config.model_copy(update={"docker": config.docker.model_copy(update={"image": image})})

    @property
    def python(self) -> str:
        return self._workspace().python

    async def start(self) -> None:
        if self._keepers or self._place is not None:
            raise SandboxError("this sandbox is started already; make a new one for each trial")
        self._labels = labels(current_owner())
        self._pool = pool_of(self.config.docker)
        failed: set[str] = set()
        while True:
            self._place = place = await self._pool.take(failed)
            try:
                await self._start_at(place.host)
            except (EngineError, EngineUnreachable) as error:
                self._pool.failed(place)
                failed.add(place.host.url)
                await self._abandon()
                if len(failed) == len(self._pool.places):
                    raise
                _log.warning("another engine is tried: %s", error)
            except BaseException:
                await self._abandon()
                raise
            else:
                self._pool.worked(place)
                return

    async def exec(
        self,
        argv: Sequence[str],
        *,
        timeout: float,
        cwd: str = ".",
        env: Mapping[str, str] | None = None,
        stdin: bytes | None = None,
        writable: bool = True,
    ) -> ExecResult:
        keeper, place, engine = self._workspace(), self._place, self._engine
        assert place is not None and engine is not None
        check_command(argv)
        folder = str(PurePosixPath(self.config.home, *relative_parts(cwd)))
        words = entry_point(
            keeper.python, engine.info.machine, [*self._forwarder, *argv], folder, self.config.memory_bytes, timeout
        )
        variables = environment(keeper.python, self.config.project_python) | dict(env or {})
        mounts = [self._mounted(keeper.volumes[0], place, writable) for place in self.config.places]
        body = self._body(words, variables, mounts)
        if stdin:
            body |= {"OpenStdin": True, "StdinOnce": True, "AttachStdin": True}
        command = Command(engine, body, stdin or b"", timeout, self.config.output_bytes)
        async with in_turn(place.slot(self.config.max_concurrent_execs or 2 * engine.info.cpus)):
            self._workspace()  # it may have been stopped while this waited
            self._commands.add(command)
            try:
                return await in_thread(functools.partial(_run, command, self._keepers), command.cancel)
            finally:
                self._commands.discard(command)

    async def mount_read_only(self, mount: str, files: Mapping[str, bytes]) -> None:
        self._workspace()
        check_mount(mount)
        for path in files:
            file_parts(path)
        if not self._spare:
            await self._add_keeper([])
        keeper, number = self._spare.pop(0)
        entries = [file_entry(path, data, False) for path, data in files.items()]
        await in_thread(lambda: keeper.put(number, entries))
        self._mounts.append(self._mounted(keeper.volumes[number], mount, False))

    async def mount_runtime(self, host_dir: Path, mount: str) -> None:
        engine = self._local_engine("mount runtimes")
        check_mount(mount)
        source = await asyncio.to_thread(host_dir.resolve)
        if not source.is_dir():
            raise ValueError(f"{host_dir} is no folder; give the folder of a prepared runtime")
        if not all(step.stat().st_mode & 0o001 for step in (source, *source.parents)):
            raise ValueError(f"{source} is closed to other users; open it and the folders above it (chmod o+rx)")
        assert engine is not None
        self._mounts.append(_bound(source, mount))

    async def connect_proxy(self, socket: Path) -> str:
        self._local_engine("reach the proxy")
        code = PurePosixPath(forwarder.FORWARDER_PATH)
        await self.mount_read_only(str(code.parent), {code.name: Path(forwarder.__file__).read_bytes()})
        _open_to(self.config.docker.user(), socket.parent.parent)
        self._mounts.append(_bound(socket.parent, forwarder.SOCKET_FOLDER))
        self._forwarder = [self.python, "-I", "-S", "-B", forwarder.FORWARDER_PATH, forwarder.SOCKET_PATH]
        check = await self.exec([self.python, "-I", "-S", "-c", forwarder.CHECK_SCRIPT], timeout=60)
        if check.exit_code != 0:
            complaint = check.stderr.decode(errors="replace").strip()[-300:] or f"exit code {check.exit_code}"
            raise SandboxError(f"the proxy at {socket} does not answer inside the sandbox: {complaint}")
        return forwarder.PROXY_ORIGIN

    async def write_files(self, files: Mapping[str, bytes | None]) -> None:
        keeper = self._workspace()
        for path in files:
            file_parts(path)
        await in_thread(lambda: keeper.put(0, [file_entry(path, data) for path, data in files.items()]))

    async def read_file(self, relpath: str, max_bytes: int) -> bytes:
        keeper = self._workspace()
        file_parts(relpath)
        return await in_thread(lambda: keeper.read_file(relpath, max_bytes))

    async def read_tree(self, keep: Callable[[str, bytes], bool]) -> Tree:
        keeper = self._workspace()
        return await in_thread(lambda: keeper.read_tree(self.config.limits, keep))

    async def upload(self, src_dir: Path, relpath: str = ".") -> None:
        keeper = self._workspace()
        relative_parts(relpath)
        await in_thread(lambda: keeper.put(0, tree_entries(src_dir, relpath)))

    async def stop(self) -> None:
        for command in tuple(self._commands):
            command.cancel()
        while self._commands:
            await asyncio.sleep(0.01)
        if self._keepers:
            await in_thread(self._close_keepers)
        place, self._place = self._place, None
        if place is not None and self._pool is not None:
            await self._pool.give_back(place)

    async def _abandon(self) -> None:
        """Stop what did not get to run. Where even that fails the sandbox stays as it is, for the caller's `stop`."""
        try:
            await self.stop()
        except SandboxError as error:
            _log.warning("what a failed start has left is not removed yet: %s", error)

    async def _start_at(self, host: DockerHost) -> None:
        self._engine = engine = await in_thread(lambda: connect(host))
        await in_thread(lambda: engine.info)
        stop = threading.Event()
        await in_thread(lambda: ensure_image(engine, self.config.docker, stop), stop.set)
        workspace = Volume(WORKSPACE, self.config.workspace_bytes, self.config.workspace_files, "0700")
        await self._add_keeper([workspace])

    async def _add_keeper(self, volumes: list[Volume]) -> None:
        """Start a keeper of `volumes` and of some to spare."""
        assert self._engine is not None
        first = len(volumes)
        spare = [Volume(f"/mounts/{i}", _MOUNT_BYTES, _MOUNT_FILES, "0755") for i in range(_SPARE_VOLUMES)]
        keeper = Keeper(self._engine, [*volumes, *spare])
        self._keepers.append(keeper)
        python = "python3" if self.config.python is None else str(self.config.python)
        variables = environment("/usr/bin/python3")
        body = self._body([], variables | {"PATH": f"{variables['PATH']}:{_FURTHER_PYTHONS}"}, [])
        await in_thread(lambda: keeper.start(body, python, self.config.docker.user(), self._labels))
        self._spare += [(keeper, first + i) for i in range(_SPARE_VOLUMES)]

    def _close_keepers(self) -> None:
        while self._keepers:
            keeper = self._keepers[-1]
            keeper.close()
            keeper.remove_volumes()
            self._keepers.pop()  # not before: after a failure stop is called again

    def _workspace(self) -> Keeper:
        if not self._keepers or not self._keepers[0].python:
            raise SandboxError("this sandbox is not running; start it first, and do not use it after stop")
        return self._keepers[0]

    def _local_engine(self, what: str) -> Engine:
        self._workspace()
        assert self._engine is not None
        if not self._engine.host.local:
            raise SandboxUnavailable(
                f"sandbox.backend docker cannot {what} on {self._engine.host.url}, which does not share this machine's "
                "files; use an engine at a local socket"
            )
        return self._engine

    def _mounted(self, volume: Volume, place: str, writable: bool) -> dict[str, Any]:
        # The labels are for a volume that an engine would make anew, had the keeper ended and its own been removed.
        options = {"NoCopy": True, "Labels": self._labels}
        mount = {"Type": "volume", "Source": volume.name, "Target": place, "ReadOnly": not writable}
        return {**mount, "VolumeOptions": options}

    def _body(self, words: list[str], variables: Mapping[str, str], mounts: list[dict[str, Any]]) -> dict[str, Any]:
        """The engine's description of a container: what it may not do, and within which limits it does the rest."""
        config, docker = self.config, self.config.docker
        tmp = f"rw,exec,nosuid,nodev,mode=1777,size={config.tmp_bytes}"
        memory = config.total_memory_bytes
        cpus = min(docker.cpus, self._engine.info.cpus if self._engine else docker.cpus)
        return {
            "Image": docker.image,
            "Entrypoint": words,
            "Env": [f"{name}={value}" for name, value in variables.items()],
            "User": f"{docker.user()}:{docker.user()}",
            "Hostname": "sandbox",
            "WorkingDir": "/",
            "Labels": self._labels,
            "Healthcheck": {"Test": ["NONE"]},
            "AttachStdout": True,
            "AttachStderr": True,
            "HostConfig": {
                "AutoRemove": True,
                "Init": True,
                "NetworkMode": "none",
                "CapDrop": ["ALL"],
                "SecurityOpt": ["no-new-privileges:true"],
                "MaskedPaths": _MASKED,
                "ReadonlyRootfs": True,
                "Mounts": [*mounts, *self._mounts],
                "Tmpfs": {"/tmp": tmp},
                "ShmSize": config.tmp_bytes,
                "IpcMode": "private",
                "Memory": memory,
                "MemorySwap": memory,
                "NanoCpus": int(cpus * 1e9),
                "PidsLimit": config.processes,
                "OomScoreAdj": 500,
                "Ulimits": [
                    _limit("core", 0),
                    _limit("cpu", config.cpu_seconds),
                    _limit("fsize", config.file_bytes),
                    _limit("nofile", config.open_files),
                    _limit("memlock", 64 << 10),
                    _limit("msgqueue", 0),
                ],
                "LogConfig": {"Type": "none", "Config": {}},
                **({"Runtime": docker.runtime} if docker.runtime else {}),
            },
        }


def _run(command: Command, keepers: list[Keeper]) -> ExecResult:
    """Run a command, and see that what it ran over was the sandbox's own all the time."""
    result = command.run()
    for keeper in tuple(keepers):
        keeper.ping()
    return result


def _limit(name: str, value: int) -> dict[str, Any]:
    return {"Name": name, "Soft": value, "Hard": value}


def _bound(source: Path, place: str) -> dict[str, Any]:
    options = {"Propagation": "rprivate", "NonRecursive": True}
    return {"Type": "bind", "Source": str(source), "Target": place, "ReadOnly": True, "BindOptions": options}


def _open_to(uid: int, folder: Path) -> None:
    """Let the user `uid`, and no other, pass through the private folder `folder`."""
    if uid != os.geteuid():
        os.chown(folder, -1, uid)
        folder.chmod(0o710)


_tried_out: set[tuple[str, tuple[DockerHost, ...]]] = set()


def _try_out(config: SandboxConfig, hosts: tuple[DockerHost, ...]) -> None:
    """Run a command on every engine and look at how it is confined; engines that do not answer are left out.

    Raises:
        SandboxUnavailable: an engine does not confine, or none answers.
    """
    silent: list[EngineUnreachable] = []
    with ThreadPoolExecutor(1) as thread:  # there may be an event loop in this one
        for host in hosts:
            only = config.model_copy(update={"docker": config.docker.model_copy(update={"hosts": (host,)})})
            context = contextvars.copy_context()
            try:
                complaint = thread.submit(context.run, asyncio.run, _probe(only)).result()
            except EngineUnreachable as error:
                silent.append(error)
            except SandboxUnavailable:
                raise
            except SandboxError as error:
                raise SandboxUnavailable(f"a container cannot be run: {error}") from error
            else:
                if complaint:
                    raise SandboxUnavailable(f"the engine at {host.url} does not confine: {complaint}")
    if len(silent) == len(hosts):
        raise silent[-1]


async def _probe(config: SandboxConfig) -> str:
    async with DockerSandbox(config) as sandbox:
        result = await sandbox.exec([sandbox.python, "-I", "-S", "-c", PROBE], timeout=60, writable=False)
    return judge_probe(config, result)
