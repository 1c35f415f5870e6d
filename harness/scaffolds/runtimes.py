"""Prepared agents: read-only folders that are mounted into sandboxes, since trials have no network to fetch one.

A runtime is known by its name, version and packages; a folder is named after all of these, so a new pin never changes
the agent of a run that goes on. A folder is complete or absent: it is built under another name, tried in a sandbox and
renamed.
"""

import fcntl
import hashlib
import json
import os
import platform
import secrets
import shutil
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from harness.sandbox.base import SandboxConfig, create_sandbox

RUNTIMES_VARIABLE = "TESTGRAD_RUNTIMES"
MOUNT = "/opt/agent"
"""Where an agent finds its runtime inside."""

ROOMY = {
    "memory_bytes": 1 << 40,
    "cpu_seconds": 14_400,
    "file_bytes": 256 << 20,
    "open_files": 4096,
    "processes": 1024,
    "tmp_bytes": 512 << 20,
}
"""Limits that an agent needs at least. Engines of JavaScript reserve far more addresses than they use, and start
threads by the number of CPUs; what all processes together really use is held by `total_memory_bytes`, which stays."""

_MANIFEST = "runtime.json"

Say = Callable[[str], None]
"""Tells a person about progress, a line at a time."""


class RuntimeMissing(ValueError):
    """A runtime that is unknown or not prepared; the message names the mend."""


class RuntimeBuildError(RuntimeError):
    """A runtime cannot be prepared here; the message names the mend."""


@dataclass(frozen=True)
class Runtime(ABC):
    """An agent that can be prepared. `packages` are all that is fetched, each with its exact version."""

    name: str
    title: str
    version: str
    recipe: ClassVar[int] = 1
    """To be raised when `build` makes something else of the same packages."""

    @property
    @abstractmethod
    def packages(self) -> tuple[str, ...]:
        """What is fetched, each with its exact version.

        Raises:
            RuntimeBuildError: there is none for this kind of machine.
        """

    @abstractmethod
    def build(self, folder: Path, say: Say) -> None:
        """Fill the empty folder `folder`, which may be moved and mounted elsewhere afterwards.

        Raises:
            RuntimeBuildError: it cannot be had here.
        """

    @abstractmethod
    def version_command(self, root: str) -> tuple[Sequence[str], dict[str, str]]:
        """Command and environment that make the agent below `root` print its version, and need no policy."""

    @property
    def key(self) -> str:
        """Name of its folder."""
        digest = hashlib.sha256("\n".join([*self.packages, str(self.recipe)]).encode()).hexdigest()[:8]
        return f"{self.name}-{self.version}-{platform.machine()}-{digest}"


RUNTIMES: dict[str, Runtime] = {}
"""The runtimes by name, which is the scaffold's."""


def register_runtime(runtime: Runtime) -> Runtime:
    """Make a runtime known by its name.

    Raises:
        ValueError: the name is taken.
    """
    if runtime.name in RUNTIMES:
        raise ValueError(f"runtime {runtime.name!r} is registered already; choose another name")
    RUNTIMES[runtime.name] = runtime
    return runtime


def default_folder() -> Path:
    """`TESTGRAD_RUNTIMES`, or a folder in the user's cache; it need not exist.

    Root's is that of the machine, since sandboxes run as another user, who cannot enter root's home.
    """
    if named := os.environ.get(RUNTIMES_VARIABLE):
        return Path(named).expanduser().absolute()
    if os.geteuid() == 0:
        return Path("/var/cache/testgrad/runtimes")
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache").absolute() / "testgrad" / "runtimes"


def find_runtime(name: str) -> Runtime:
    """The runtime of this name.

    Raises:
        RuntimeMissing: there is none.
    """
    if name not in RUNTIMES:
        raise RuntimeMissing(f"agent {name!r} is unknown; those that can be prepared are {', '.join(sorted(RUNTIMES))}")
    return RUNTIMES[name]


def prepared(name: str, root: Path | None = None) -> Path | None:
    """The folder of a prepared runtime, or None if it is not there."""
    folder = (root or default_folder()) / find_runtime(name).key
    return folder if (folder / _MANIFEST).is_file() else None


def require_prepared(name: str, root: Path | None = None) -> Path:
    """The folder of a prepared runtime.

    Raises:
        RuntimeMissing: it is not there; the message names the command that makes it.
    """
    folder = prepared(name, root)
    if folder is None:
        option = f" --folder {root}" if root else ""
        raise RuntimeMissing(
            f"{find_runtime(name).title} {find_runtime(name).version} is not prepared in {root or default_folder()}; "
            f"on a machine with network run: testgrad scaffolds install {name}{option}"
        )
    return folder


async def install(
    name: str, root: Path | None = None, *, sandbox: SandboxConfig | None = None, say: Say = print
) -> Path:
    """Prepare a runtime unless it is there, try it in a sandbox, and return its folder.

    Others who prepare the same meanwhile wait, and find it done.

    Raises:
        RuntimeMissing: no runtime has this name.
        RuntimeBuildError: it cannot be had here, or does not run.
        SandboxUnavailable: this machine cannot isolate.
    """
    runtime = find_runtime(name)
    root = root or default_folder()
    final = root / runtime.key
    try:
        root.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise RuntimeBuildError(
            f"{root} cannot be made: {error.strerror}; name another folder by --folder or {RUNTIMES_VARIABLE}"
        ) from error
    with _alone(root, runtime.key, lambda: say(f"{name}: waiting for another process that prepares it")):
        if prepared(name, root) is not None:
            say(f"{name}: {runtime.title} {runtime.version} is ready in {final}")
            return final
        for stale in root.glob(f".{runtime.key}.*.part"):
            shutil.rmtree(stale, ignore_errors=True)
        started = time.monotonic()
        folder = root / f".{runtime.key}.{secrets.token_hex(4)}.part"
        folder.mkdir()
        try:
            runtime.build(folder, lambda line: say(f"{name}: {line}"))
            _open_to_all(folder)
            say(f"{name}: trying it in a sandbox")
            await try_out(runtime, folder, sandbox or SandboxConfig())
            manifest = {"name": name, "version": runtime.version, "packages": runtime.packages}
            (folder / _MANIFEST).write_text(json.dumps(manifest, indent=1) + "\n")
            (folder / _MANIFEST).chmod(0o644)
            folder.rename(final)
        finally:
            shutil.rmtree(folder, ignore_errors=True)
        size = folder_bytes(final) / 1e6
        say(
            f"{name}: {runtime.title} {runtime.version} is ready in {final} "
            f"({size:.0f} MB, {time.monotonic() - started:.0f} s)"
        )
    return final


async def try_out(runtime: Runtime, folder: Path, config: SandboxConfig) -> None:
    """Let the agent in `folder` tell its version in a sandbox.

    Raises:
        RuntimeBuildError: it does not.
        SandboxUnavailable: this machine cannot isolate, or the backend has no mounts.
    """
    command, environment = runtime.version_command(MOUNT)
    async with create_sandbox(roomy(config)) as sandbox:
        try:
            await sandbox.mount_runtime(folder, MOUNT)
        except ValueError as error:
            raise RuntimeBuildError(f"{error}; or name another folder by --folder or {RUNTIMES_VARIABLE}") from error
        run = await sandbox.exec(in_home(command), timeout=120, env=HOME | environment)
    told = (run.stdout + run.stderr).decode(errors="replace")
    if run.exit_code != 0 or runtime.version not in told:
        raise RuntimeBuildError(
            f"{runtime.title} does not run in a sandbox: exit code {run.exit_code}, "
            f"{told.strip()[-500:] or 'without a word'}. It needs glibc 2.28 or newer there"
        )


HOME = {"HOME": "/tmp/home", "TMPDIR": "/tmp/scratch"}
"""Where an agent keeps what is its own; apart, since some refuse a home that is the folder for temporary files."""


def in_home(command: Sequence[str]) -> list[str]:
    """`command` with the folders of `HOME` made first: each command starts with an empty /tmp."""
    return ["/bin/sh", "-c", 'mkdir -p "$HOME" "$TMPDIR" && exec "$@"', "sh", *command]


def roomy(config: SandboxConfig) -> SandboxConfig:
    """`config` with limits that leave an agent room to start; see `ROOMY`."""
    return config.model_copy(update={name: max(value, getattr(config, name)) for name, value in ROOMY.items()})


def folder_bytes(folder: Path) -> int:
    """Bytes of all files below `folder`."""
    return sum(path.lstat().st_size for path in folder.rglob("*") if not path.is_dir())


def _open_to_all(folder: Path) -> None:
    """Let the users that sandboxes run as read everything, whatever the umask was, and nobody else change it."""
    for path in [folder, *folder.rglob("*")]:
        if not path.is_symlink():
            mode = path.stat().st_mode & 0o777 & ~0o022
            path.chmod(mode | (0o555 if path.is_dir() or mode & 0o100 else 0o444))


@contextmanager
def _alone(root: Path, key: str, waiting: Callable[[], None]) -> Iterator[None]:
    """Hold the lock of one runtime. Its file stays: removing it would let two in."""
    with open(root / f".{key}.lock", "w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            waiting()
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield
