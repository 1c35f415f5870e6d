"""Ends what a command leaves running when it is killed: a server, engines, none of which need notice by themselves.

`start` makes a small process that waits for this one to end, however it ends. All that this one starts from then on
carries a mark in its environment, by which it is found.
"""

import os
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

OWNER = "TESTGRAD_OWNER"


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


def _clear_up(owner: str, temporary: Path) -> None:
    deadline, killed = time.monotonic() + 30, set()
    while (left := _marked(owner)) and time.monotonic() < deadline:
        killed.update(left)
        for pid in left:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        time.sleep(0.1)
    for pid in killed:
        # semaphores of worker pools, which only their own process would have removed
        for path in Path("/dev/shm").glob(f"sem.*-{pid}-*"):
            path.unlink(missing_ok=True)
    for folder in {temporary, Path("/tmp")}:
        for path in folder.glob(f"testgrad-*-{owner.partition('-')[0]}-*"):
            # such as the folder of a private Ray cluster, named for the process that made it
            if path.is_dir() and not path.is_symlink() and path.stat().st_uid == os.geteuid():
                shutil.rmtree(path, ignore_errors=True)


def _marked(owner: str) -> list[int]:
    wanted = f"{OWNER}={owner}".encode()
    found = []
    for folder in Path("/proc").iterdir():
        if not folder.name.isdigit() or int(folder.name) == os.getpid():
            continue
        try:
            environment = (folder / "environ").read_bytes().split(b"\0")
        except OSError:  # it has ended, or is another user's
            continue
        if wanted in environment:
            found.append(int(folder.name))
    return found


if __name__ == "__main__":
    descriptor, name, temporary_folder = int(sys.argv[1]), sys.argv[2], Path(sys.argv[3])
    os.read(descriptor, 1)  # returns when the watched process has ended: nothing is ever written
    _clear_up(name, temporary_folder)
