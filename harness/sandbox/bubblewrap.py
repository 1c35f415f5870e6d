"""The sandbox that needs no daemon and no image: Linux namespaces, made by bwrap for each command anew.

A command sees /usr and a Python, read-only; its workspace; a /tmp, a /proc and a /dev of its own; no network. It runs
without capabilities, cannot make further user namespaces, and when the host's user is root it runs as an unused uid.

The kernel limits each process; what they use up together, memory and disk, is watched a few times a second and ends
the command (see bwrap_watch for what it does not see). System calls that tests do not need are denied. The kernel is
the host's: where that is too little use virtual machines.
"""

import asyncio
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path, PurePosixPath
from weakref import WeakKeyDictionary

from harness.sandbox import forwarder
from harness.sandbox.base import (
    ExecResult,
    Sandbox,
    SandboxConfig,
    SandboxError,
    check_command,
    check_mount,
    environment,
    register_sandbox,
)
from harness.sandbox.bwrap_cgroup import MemoryGroup
from harness.sandbox.bwrap_host import (
    BwrapHost,
    choose_uid,
    find_host,
    init_script,
    make_workspace,
    open_to,
    require_readable,
    seal,
)
from harness.sandbox.bwrap_process import BwrapProcess
from harness.sandbox.bwrap_watch import watch
from harness.sandbox.leftovers import make_base, remove_base
from harness.sandbox.source import source_content, source_entries
from harness.sandbox.tree import (
    Tree,
    file_parts,
    open_folder,
    put,
    read_regular,
    read_tree,
    relative_parts,
)
from harness.sandbox.waiting import in_turn

_slots: "WeakKeyDictionary[asyncio.AbstractEventLoop, dict[int, asyncio.Semaphore]]" = WeakKeyDictionary()


@register_sandbox("bubblewrap")
class BubblewrapSandbox(Sandbox):
    """See the module. The host directory is private to the sandbox and removed by `stop`."""

    def __init__(self, config: SandboxConfig) -> None:
        super().__init__(config)
        self._host: BwrapHost | None = None
        self._uid: int | None = None
        self._base = Path()
        self._lock = -1  # descriptor of the base directory
        self._root = -1  # descriptor of the workspace
        self._mounts: list[str] = []
        self._forwarder: list[str] = []  # what comes before a command that may speak to the proxy

    @classmethod
    def require_isolation(cls, config: SandboxConfig) -> None:
        find_host(config)

    @property
    def python(self) -> str:
        return self._started().python

    async def start(self) -> None:
        if self._host is not None:
            raise SandboxError("this sandbox is started already; make a new one for each trial")
        self._host = await asyncio.to_thread(find_host, self.config)
        try:
            self._uid = choose_uid(self.config)
            self._base, self._lock = make_base(self.config.root)
            workspace = make_workspace(self._base, self._uid)
            self._root = os.open(workspace, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except OSError as error:
            await self.stop()
            raise SandboxError(f"no workspace can be made in sandbox.root {self.config.root}: {error}") from error

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
        host = self._started()
        check_command(argv)
        folder = str(PurePosixPath(self.config.home, *relative_parts(cwd)))
        variables = environment(host.python, self.config.project_python) | dict(env or {})
        options = [
            *host.options(self.config, self._base / "workspace", writable),
            *self._mounts,
            *(word for item in variables.items() for word in ("--setenv", *item)),
            *seal(),
        ]
        command = ["/bin/sh", "-c", init_script(self.config), "sh", folder, *self._forwarder, *argv]
        # An agent waits for the policy most of its time: its number is bounded by that of the trials.
        async with nullcontext() if self._forwarder else in_turn(_slot(self.config)):
            return await self._run(
                BwrapProcess(host.bwrap, options, command, self._uid, self.config.output_bytes), stdin or b"", timeout
            )

    async def mount_read_only(self, mount: str, files: Mapping[str, bytes]) -> None:
        self._started()
        check_mount(mount)
        source = self._base / f"mount{len(self._mounts)}"
        await asyncio.to_thread(_write_readable, source, files)
        self._mounts += ["--ro-bind", str(source), mount]

    async def mount_runtime(self, host_dir: Path, mount: str) -> None:
        self._started()
        check_mount(mount)
        source = await asyncio.to_thread(host_dir.resolve)
        await asyncio.to_thread(require_readable, source)
        self._mounts += ["--ro-bind", str(source), mount]  # bwrap's binds have neither devices nor set-uid programs

    async def connect_proxy(self, socket: Path) -> str:
        host = self._started()
        code = PurePosixPath(forwarder.FORWARDER_PATH)
        await self.mount_read_only(str(code.parent), {code.name: Path(forwarder.__file__).read_bytes()})
        self._mounts += ["--ro-bind", str(socket.parent), forwarder.SOCKET_FOLDER]
        open_to(self._uid, socket.parent.parent)
        self._forwarder = [host.python, "-I", "-S", "-B", forwarder.FORWARDER_PATH, forwarder.SOCKET_PATH]
        check = await self.exec([host.python, "-I", "-S", "-c", forwarder.CHECK_SCRIPT], timeout=60)
        if check.exit_code != 0:
            complaint = check.stderr.decode(errors="replace").strip()[-300:] or f"exit code {check.exit_code}"
            raise SandboxError(f"the proxy at {socket} does not answer inside the sandbox: {complaint}")
        return forwarder.PROXY_ORIGIN

    async def write_files(self, files: Mapping[str, bytes | None]) -> None:
        self._started()
        await asyncio.to_thread(self._write_files, files)

    async def read_file(self, relpath: str, max_bytes: int) -> bytes:
        self._started()
        folders, name = file_parts(relpath)
        with open_folder(self._root, folders) as folder:
            return read_regular(folder, name, max_bytes)

    async def read_tree(self, keep: Callable[[str, bytes], bool]) -> Tree:
        self._started()
        return await asyncio.to_thread(read_tree, self._root, self.config.limits, keep)

    async def upload(self, src_dir: Path, relpath: str = ".") -> None:
        self._started()
        await asyncio.to_thread(self._upload, src_dir, relpath)

    async def stop(self) -> None:
        root, self._root = self._root, -1
        lock, self._lock = self._lock, -1
        if root >= 0:
            os.close(root)
        if lock >= 0:
            # Shielded: a cancelled trial must leave nothing behind either.
            await asyncio.shield(asyncio.to_thread(remove_base, self._base, lock))

    async def _run(self, process: BwrapProcess, stdin: bytes, timeout: float) -> ExecResult:
        group = None
        try:
            init = await process.hold()
            if self.config.cgroup is not None:
                group = MemoryGroup(self.config.cgroup, self.config.total_memory_bytes)
                group.add(init)
            result = await process.run(stdin, timeout, watch(self.config, init, self._base / "workspace"))
            killed = group is not None and group.passed()
            return replace(result, over_limit="total_memory_bytes") if killed else result
        finally:
            await asyncio.shield(_end(process, group))  # goes on even if cancelled once more

    def _started(self) -> BwrapHost:
        if self._host is None or self._root < 0:
            raise SandboxError("this sandbox is not running; start it first, and do not use it after stop")
        return self._host

    def _write_files(self, files: Mapping[str, bytes | None]) -> None:
        for relpath, data in files.items():
            put(self._root, "gone" if data is None else "file", relpath, data, owner=self._uid)

    def _upload(self, src_dir: Path, relpath: str) -> None:
        for kind, path, file in source_entries(src_dir, relpath):
            put(self._root, kind, path, *source_content(kind, file), self._uid)


async def _end(process: BwrapProcess, group: MemoryGroup | None) -> None:
    try:
        await process.end()
    finally:
        if group is not None:
            group.remove()


def _write_readable(target: Path, files: Mapping[str, bytes]) -> None:
    """Write `files` below the new folder `target`, readable by every user that can reach it."""
    target.mkdir()
    root = os.open(target, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fchmod(root, 0o755)
        for relpath, data in files.items():
            put(root, "file", relpath, data)
    finally:
        os.close(root)


def _slot(config: SandboxConfig) -> asyncio.Semaphore:
    """What bounds the commands that run at a time in this event loop."""
    size = config.max_concurrent_execs or 2 * (os.cpu_count() or 1)
    of_loop = _slots.setdefault(asyncio.get_running_loop(), {})
    return of_loop.setdefault(size, asyncio.Semaphore(size))
