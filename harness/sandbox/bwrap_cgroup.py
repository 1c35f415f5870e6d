"""The kernel's own limit on the memory of all processes of a command together, where a cgroup may be used.

Exact where watching is not: it counts files of memory and buffers too, and strikes before the memory is used.
"""

import os
import secrets
from pathlib import Path

from harness.sandbox.base import SandboxError, SandboxUnavailable
from harness.sandbox.owner import PREFIX, current_owner, is_alive, labels

_NAME = "testgrad-sbx="
_MEND = (
    "give a folder of cgroup v2 whose cgroup.subtree_control has memory (systemd's Delegate=yes makes one), "
    "or of cgroup v1's memory controller, in which this user may make folders; or leave sandbox.cgroup out"
)


class MemoryGroup:
    """A cgroup below `parent` for one command, of at most `limit` bytes.

    Raises:
        SandboxError: it cannot be made.
    """

    def __init__(self, parent: Path, limit: int) -> None:
        owner = current_owner()
        self._path = parent / f"{_NAME}{owner.host}={owner.pid}={owner.started}={secrets.token_hex(8)}"
        try:
            self._path.mkdir()
            for name, value in _settings(self._path, limit):
                _set(self._path / name, value)
        except OSError as error:
            self.remove()
            raise SandboxError(f"no cgroup can be made in sandbox.cgroup {parent}: {error}") from error

    def add(self, pid: int) -> None:
        """Put a process in; what it starts from now on is in it too.

        Raises:
            SandboxError: it cannot be moved.
        """
        try:
            _set(self._path / "cgroup.procs", str(pid))
        except OSError as error:
            raise SandboxError(f"a command cannot be put into its cgroup {self._path}: {error}") from error

    def passed(self) -> bool:
        """Whether the kernel has killed a process for the limit."""
        for name in ("memory.events", "memory.oom_control"):
            if (self._path / name).exists():
                counts = dict(line.split() for line in (self._path / name).read_text().splitlines())
                return int(counts.get("oom_kill", 0)) > 0
        return False

    def remove(self) -> None:
        """Remove the group; its processes must have ended. Harmless when it is gone."""
        _remove(self._path)


def require_cgroup(parent: Path, limit: int) -> None:
    """Try to make a group, and remove those whose owner has died.

    Raises:
        SandboxUnavailable: no group can be made; the message names the mend.
    """
    try:
        group = MemoryGroup(parent, limit)
    except SandboxError as error:
        raise SandboxUnavailable(f"{error}. Mend: {_MEND}") from error
    group.remove()
    for path in parent.glob(_NAME + "*"):
        _, host, pid, started, *_ = path.name.split("=")
        owner = {"host": host, "pid": pid, "started": started}
        if not is_alive(labels(current_owner()) | {PREFIX + key: value for key, value in owner.items()}):
            _remove(path)


def _settings(group: Path, limit: int) -> list[tuple[str, str]]:
    """Files and their values that limit `group`: as of cgroup v2, or of v1."""
    if (group / "cgroup.controllers").exists():
        optional = [("memory.swap.max", "0"), ("memory.oom.group", "1")]
        return [("memory.max", str(limit)), *((name, value) for name, value in optional if (group / name).exists())]
    # Memory with swap cannot be limited below memory alone, nor where swap is not counted.
    names = ["memory.limit_in_bytes", "memory.memsw.limit_in_bytes"]
    return [(name, str(limit)) for name in names if name == names[0] or (group / name).exists()]


def _set(file: Path, value: str) -> None:
    fd = os.open(file, os.O_WRONLY)  # an ordinary folder has no such file, and is not to get one
    try:
        os.write(fd, value.encode())
    finally:
        os.close(fd)


def _remove(group: Path) -> None:
    try:
        os.rmdir(group)
    except OSError:
        pass  # gone, or a process of it is not quite dead: the next sandbox's start removes it
