"""The host directories of sandboxes: made with a lock that dies with its process, so that leftovers can be told apart.

A lock rather than a pid in the name: pids are used again, and mean nothing across containers that share a directory.
"""

import fcntl
import os
import tempfile
import time
from pathlib import Path

from harness.sandbox.tree import clear_folder

PREFIX = "testgrad-sbx-"
_YOUNG = 60.0
"""Seconds within which a directory may not have its lock yet."""


def make_base(root: Path | None) -> tuple[Path, int]:
    """A new private directory below `root` (none: the system's temporary directory) and the descriptor that locks it.

    The directory counts as in use until the descriptor is closed.
    """
    base = Path(tempfile.mkdtemp(prefix=PREFIX, dir=root))
    lock = os.open(base, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    fcntl.flock(lock, fcntl.LOCK_EX)
    return base, lock


def remove_base(base: Path, lock: int) -> None:
    """Remove what `make_base` made, whatever has been put into it, and close its lock."""
    try:
        clear_folder(lock)
        os.rmdir(base)
    finally:
        os.close(lock)


def sweep(root: Path | None = None) -> list[Path]:
    """Remove the sandbox directories below `root` whose process has died without removing them; returns their paths.

    Directories of live processes, of other users, and such as are under a minute old stay.
    """
    removed = []
    for base in sorted(Path(root or tempfile.gettempdir()).glob(PREFIX + "*")):
        try:
            lock = os.open(base, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        except OSError:
            continue  # a link, a file, or removed meanwhile: none of ours
        status = os.fstat(lock)
        if status.st_uid != os.geteuid() or time.time() - status.st_mtime < _YOUNG or not _try_lock(lock):
            os.close(lock)
            continue
        remove_base(base, lock)
        removed.append(base)
    return removed


def _try_lock(fd: int) -> bool:
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
