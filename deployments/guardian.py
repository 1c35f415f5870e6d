"""Ends what a command leaves running when it is killed: a server, engines, none of which need notice by themselves.

`start` makes a small process that waits for this one to end, however it ends. All that this one starts from then on
carries a mark in its environment, by which it is found.
"""

import os
import secrets
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

OWNER = "TESTGRAD_OWNER"
SHARED_MEMORY = Path("/dev/shm")
LOOK_SECONDS = 2.0
"""Between two looks at what the watched process and its children have mapped."""


def start() -> None:
    """Watch over this process, unless a command above it is watched already."""
    if OWNER in os.environ:
        return
    os.environ[OWNER] = f"{os.getpid()}-{secrets.token_hex(8)}"
    read, _write = os.pipe()  # the other end is never closed: the kernel does it when this process ends
    command = [sys.executable, "-I", str(Path(__file__)), str(read), os.environ[OWNER], tempfile.gettempdir()]
    # a session of its own, which Ctrl-C in the terminal does not reach, and no mark of its own
    subprocess.Popen(
        command, pass_fds=(read,), start_new_session=True, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, env={}
    )
    os.close(read)


def _watch(descriptor: int, owner: str) -> set[int]:
    """Wait until the watched process has ended. Returns the shared memory that it, or what it started, has mapped.

    Some of them are killed before it ends, such as an engine that takes too long to stop, and tell nobody.
    """
    mapped: set[int] = set()
    # what ends the wait is the end of the pipe: nothing is ever written
    while not select.select([descriptor], [], [], LOOK_SECONDS)[0]:
        mapped.update(*map(shared_memory, _marked(owner)))
    return mapped


def _clear_up(owner: str, temporary: Path, mapped: set[int]) -> None:
    deadline = time.monotonic() + 30
    while (left := _marked(owner)) and time.monotonic() < deadline:
        mapped.update(*map(shared_memory, left))
        for pid in left:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        time.sleep(0.1)
    # such as an engine's semaphores: what would have removed them has been killed with it
    for name in left_in_shared_memory(mapped):
        (SHARED_MEMORY / name).unlink(missing_ok=True)
    for folder in {temporary, Path("/tmp")}:
        for path in folder.glob(f"testgrad-*-{owner.partition('-')[0]}-*"):
            # such as the folder of a private Ray cluster, named for the process that made it
            if path.is_dir() and not path.is_symlink() and path.stat().st_uid == os.geteuid():
                shutil.rmtree(path, ignore_errors=True)


def left_in_shared_memory(inodes: set[int] | None = None) -> set[str]:
    """Names of the files in shared memory that no process has mapped; only of those of `inodes`, if given."""
    used = set().union(*map(shared_memory, _pids()))
    with os.scandir(SHARED_MEMORY) as entries:
        free = {entry.name: entry.inode() for entry in entries if entry.inode() not in used}
    return {name for name, inode in free.items() if inodes is None or inode in inodes}


def shared_memory(pid: int) -> set[int]:
    """Inodes of the files in shared memory that a process has mapped; a semaphore is mapped under another name."""
    try:
        lines = Path(f"/proc/{pid}/maps").read_text(errors="replace").splitlines()
    except OSError:  # it has ended, or is another user's
        return set()
    return {int(line.split()[4]) for line in lines if f" {SHARED_MEMORY}/" in line}


def _marked(owner: str) -> list[int]:
    wanted = f"{OWNER}={owner}".encode()
    found = []
    for pid in _pids():
        try:
            environment = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
        except OSError:
            continue
        if wanted in environment:
            found.append(pid)
    return found


def _pids() -> list[int]:
    return [
        int(folder.name)
        for folder in Path("/proc").iterdir()
        if folder.name.isdigit() and folder.name != str(os.getpid())
    ]


if __name__ == "__main__":
    descriptor, name, temporary_folder = int(sys.argv[1]), sys.argv[2], Path(sys.argv[3])
    _clear_up(name, temporary_folder, _watch(descriptor, name))
