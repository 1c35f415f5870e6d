"""What all processes of a command use up together: the kernel limits each, and this watches the sum.

The processes are found as the descendants of the sandbox's init, from outside, so nothing inside can hide one for long.
A sum is looked at a few times a second, and the more often the less room is left: what grows faster may pass a limit
for that long. Files that were deleted but
are still open or mapped are counted too. Not seen are files on their way through a Unix socket (at most
`open_files` of `file_bytes` each) and the kernel's own buffers of sockets and pipes.
"""

import asyncio
import os
import re
import stat
import time
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

from harness.sandbox.base import WORKSPACE, SandboxConfig
from harness.sandbox.tree import make_accessible

_PERIOD = 0.25
_BYTES_PER_SECOND = 2e9
"""So fast are disk and memory filled at most, about: what is that near to its limit is looked at before it is there."""
_SHARE = 25
"""One look may take this part of the time until the next one: a watch costs at most 1/25 of a CPU."""

Room = tuple[str, int]
"""The name of a limit that is passed, or an empty string; and how many bytes are left until then."""

_DEPTH = 200
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_BLOCK = 512  # the unit of st_blocks
_MAPPED = re.compile(rb"^([0-9a-f]+)-([0-9a-f]+) \S+ \S+ \S+ (\d+) +%b/.* \(deleted\)$" % WORKSPACE.encode(), re.M)


async def watch(config: SandboxConfig, init: int, workspace: Path) -> str:
    """The name of the limit that a running command has passed; waits until there is one.

    `init` is the host's id of the sandbox's first process. A limit that is passed at the first look may have been so
    before: a short command, which may well remove something, is let alone. When this is cancelled no look goes on in a
    thread.
    """
    begun = time.monotonic()
    due = {
        memory_left: begun + _until_full(config.total_memory_bytes),
        workspace_left: begun + _until_full(config.workspace_bytes),
    }
    looked = set()
    while True:
        look = min(due, key=due.__getitem__)
        await asyncio.sleep(due[look] - time.monotonic())
        started = time.monotonic()
        thread = asyncio.ensure_future(asyncio.to_thread(look, config, init, workspace))
        try:
            name, left = await asyncio.shield(thread)
            if name and (look in looked or time.monotonic() >= begun + _PERIOD):
                return name
        except asyncio.CancelledError:
            await asyncio.wait({thread})
            raise
        now = time.monotonic()
        due[look] = begun + _PERIOD if name else now + max(_until_full(left), _SHARE * (now - started))
        looked.add(look)


def _until_full(left: int) -> float:
    """Seconds until one should look again at what so many bytes are left of."""
    return min(_PERIOD, left / _BYTES_PER_SECOND)


def memory_left(config: SandboxConfig, init: int, workspace: Path) -> Room:
    """What the processes below `init` may still take of `total_memory_bytes`."""
    processes = descendants(init)
    memory = sum(map(_resident, processes))
    if memory > config.total_memory_bytes // 2:  # counts what is shared once for each: now exactly
        memory = sum(map(_proportional, processes))
    left = config.total_memory_bytes - memory
    return "total_memory_bytes" if left < 0 else "", left


def workspace_left(config: SandboxConfig, init: int, workspace: Path) -> Room:
    """What the workspace may still take of `workspace_bytes`, unless it has passed that or `workspace_files`."""
    folder = os.open(workspace, _DIRECTORY)
    try:
        used = files = 0
        linked = set()
        for status in _entries(folder, 0, config.workspace_files + 1):
            files += 1
            if status is None or files > config.workspace_files:
                return "workspace_files", 0
            if status.st_nlink > 1 and not stat.S_ISDIR(status.st_mode):
                if status.st_ino in linked:
                    continue
                linked.add(status.st_ino)
            used += status.st_blocks * _BLOCK
            if used > config.workspace_bytes:
                return "workspace_bytes", 0
        used += sum(_deleted_files(descendants(init), os.fstat(folder).st_dev).values())
        left = config.workspace_bytes - used
        return "workspace_bytes" if left < 0 else "", left
    finally:
        os.close(folder)


def descendants(pid: int) -> list[int]:
    """`pid` and all processes that descend from it."""
    found, left = [], [pid]
    while left:
        process = left.pop()
        found.append(process)
        for thread in _listed(f"/proc/{process}/task"):
            left += map(int, _read(f"/proc/{process}/task/{thread}/children").split())
    return found


def _entries(folder: int, depth: int, most: int) -> Iterator[os.stat_result | None]:
    """What lies below `folder`, at most `most` entries of one folder; None for what lies deeper than is looked."""
    try:
        with os.scandir(folder) as entries:
            names = [(entry.name, entry.stat(follow_symlinks=False)) for entry in islice(_surviving(entries), most)]
    except OSError:
        return
    for name, status in names:
        yield status
        if not stat.S_ISDIR(status.st_mode):
            continue
        if depth == _DEPTH:
            yield None
            return
        below = _open(folder, name)
        if below >= 0:
            try:
                yield from _entries(below, depth + 1, most)
            finally:
                os.close(below)


def _surviving(entries: "Iterator[os.DirEntry[str]]") -> "Iterator[os.DirEntry[str]]":
    """The entries that are still there, with their status remembered."""
    for entry in entries:
        try:
            entry.stat(follow_symlinks=False)
        except FileNotFoundError:
            continue
        yield entry


def _open(folder: int, name: str) -> int:
    """A descriptor of a subfolder, even one that its owner closed to himself; -1 if it is gone."""
    try:
        return os.open(name, _DIRECTORY, dir_fd=folder)
    except PermissionError:
        pass
    except OSError:
        return -1
    try:
        make_accessible(folder, name)
        return os.open(name, _DIRECTORY, dir_fd=folder)
    except OSError:
        return -1


def _deleted_files(processes: list[int], device: int) -> dict[int, int]:
    """Bytes by inode of the files on `device` that have no name any more but are open or mapped."""
    sizes: dict[int, int] = {}
    for process in processes:
        for fd in _listed(f"/proc/{process}/fd"):
            try:
                status = os.stat(f"/proc/{process}/fd/{fd}")
            except OSError:
                continue
            if status.st_dev == device and status.st_nlink == 0 and stat.S_ISREG(status.st_mode):
                sizes[status.st_ino] = status.st_blocks * _BLOCK
        for start, end, inode in _MAPPED.findall(_read(f"/proc/{process}/maps")):
            sizes.setdefault(int(inode), int(end, 16) - int(start, 16))
    return sizes


def _resident(process: int) -> int:
    words = _read(f"/proc/{process}/statm").split()
    return int(words[1]) * os.sysconf("SC_PAGE_SIZE") if words else 0


def _proportional(process: int) -> int:
    """Memory without files', what several share counted in parts."""
    rollup = _read(f"/proc/{process}/smaps_rollup")
    return 1024 * sum(int(kib) for kib in re.findall(rb"^Pss_(?:Anon|Shmem): +(\d+) kB$", rollup, re.M))


def _listed(folder: str) -> list[str]:
    try:
        return os.listdir(folder)
    except OSError:  # the process has ended
        return []


def _read(path: str) -> bytes:
    try:
        return Path(path).read_bytes()
    except OSError:
        return b""
