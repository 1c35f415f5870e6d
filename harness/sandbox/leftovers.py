"""What sandboxes leave behind when their process dies, and the host directories of the embedded ones and of helpers.

Such a directory has a lock that dies with its process: a better sign of life than the pid in its label, which means
nothing across containers that share a directory. It gets its name when it has its lock.
"""

import fcntl
import functools
import json
import os
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from harness.sandbox.owner import current_owner, labels
from harness.sandbox.tree import WorkspaceError, clear_folder, read_regular

PREFIX = "testgrad-sbx-"
_UNLOCKED = "testgrad-new-"
"""How the name of a directory begins that may not have its lock yet."""
_OWNER_FILE = "owner.json"
_YOUNG = 60.0
"""Seconds within which it gets one."""


@dataclass(frozen=True)
class Leftover:
    """Something whose owner is dead. `since` is when it was made, seconds of the epoch; None if nobody knows.

    `remove` blocks, looks once more whether the owner is dead, and is harmless when the thing is gone already; any
    exception means that it is still there.
    """

    backend: str
    kind: str
    name: str
    labels: Mapping[str, str]
    since: float | None
    remove: Callable[[], None]


def make_base(root: Path | None) -> tuple[Path, int]:
    """A new private directory below `root` (none: the system's temporary directory) and the descriptor that locks it.

    The directory counts as in use until the descriptor is closed.
    """
    base = Path(tempfile.mkdtemp(prefix=_UNLOCKED, dir=root))
    lock = os.open(base, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        (base / _OWNER_FILE).write_text(json.dumps(labels(current_owner())))
        base = base.rename(base.with_name(PREFIX + base.name.removeprefix(_UNLOCKED)))
    except BaseException:
        remove_base(base, lock)
        raise
    return base, lock


def remove_base(base: Path, lock: int) -> None:
    """Remove what `make_base` made, whatever has been put into it, and close its lock."""
    try:
        clear_folder(lock)
        os.rmdir(base)
    finally:
        os.close(lock)


@contextmanager
def scratch() -> Iterator[Path]:
    """A private folder for the time of the context, which is found like a sandbox's if this process is killed."""
    base, lock = make_base(None)
    try:
        yield base
    finally:
        remove_base(base, lock)


def leftover_folders(root: Path | None = None) -> list[Leftover]:
    """The sandbox directories below `root` whose process has died without removing them.

    Those of live processes, of other users, and such as are just being made are none.
    """
    found = []
    folder = Path(root or tempfile.gettempdir())
    for base in sorted([*folder.glob(PREFIX + "*"), *folder.glob(_UNLOCKED + "*")]):
        lock = _lock_dead(base)
        if lock is None:
            continue
        try:
            since, owner = os.fstat(lock).st_mtime, _read_owner(lock)
        finally:
            os.close(lock)
        remove = functools.partial(_remove_dead, base)
        found.append(Leftover("host", "folder", str(base), owner, since, remove))
    return found


def sweep(root: Path | None = None) -> list[Path]:
    """Remove `leftover_folders` and return their paths."""
    leftovers = leftover_folders(root)
    for leftover in leftovers:
        leftover.remove()
    return [Path(leftover.name) for leftover in leftovers]


def _remove_dead(base: Path) -> None:
    lock = _lock_dead(base)
    if lock is not None:
        remove_base(base, lock)


def _lock_dead(base: Path) -> int | None:
    """A descriptor that holds the lock of a directory whose process has died; None if it is none such."""
    try:
        lock = os.open(base, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return None  # a link, a file, or removed meanwhile: none of ours
    status = os.fstat(lock)
    may_lack_lock = base.name.startswith(_UNLOCKED) and time.time() - status.st_mtime < _YOUNG
    if status.st_uid == os.geteuid() and not may_lack_lock and _try_lock(lock):
        return lock
    os.close(lock)
    return None


def _read_owner(folder: int) -> dict[str, str]:
    try:
        stored = json.loads(read_regular(folder, _OWNER_FILE, 4096))
    except (WorkspaceError, ValueError):
        return {}
    return {str(key): str(value) for key, value in stored.items()} if isinstance(stored, dict) else {}


def _try_lock(fd: int) -> bool:
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
