"""Runs one command of a trial in its container, and leaves nothing of it running. Runs in the pod, see `pod_main`."""

import os
import resource
import select
import signal
import time
from typing import Any, BinaryIO

from harness.sandbox.pod_processes import kill_all, others, wake_on_child

TIMED_OUT = 124

_CHUNK = 1 << 16
_PAUSE = 0.01  # seconds between reads of what nobody keeps: the writer then blocks, not this program
_DRAIN = 2.0
_SWEEP = 5.0
_SCRATCH = ("/tmp", "/dev/shm")


def run(job: "dict[str, Any]", stdin: BinaryIO) -> "tuple[dict[str, Any], list[bytes]]":
    """Run a command to its end or its deadline, then kill everything else in the container."""
    data = stdin.read(job["stdin"])
    ends = [os.pipe() for _ in range(3)]
    woken = wake_on_child()
    child = os.fork()
    if child == 0:
        become(job, ends)
    (feed_inside, feed), (out, out_inside), (err, err_inside) = ends
    for fd in (feed_inside, out_inside, err_inside):
        os.close(fd)
    status, kept, truncated = attend(child, woken, feed, [out, err], data, job["timeout"], job["output_bytes"])
    left = sweep()
    timed_out = status is None
    if status is None:
        code = TIMED_OUT
    else:
        code = os.WEXITSTATUS(status) if os.WIFEXITED(status) else 128 + os.WTERMSIG(status)
    answer = {"exit": code, "timed_out": timed_out, "truncated": truncated, "left": left}
    return {**answer, "out": len(kept[0]), "err": len(kept[1])}, [bytes(kept[0]), bytes(kept[1])]


def become(job: "dict[str, Any]", ends: "list[tuple[int, int]]") -> None:
    """In the child: lower the limits and become the command, in a session and a process group of its own."""
    code = 126
    try:
        os.setsid()
        for target, fd in enumerate((ends[0][0], ends[1][1], ends[2][1])):
            os.dup2(fd, target)
        signal.set_wakeup_fd(-1)
        for number in (signal.SIGCHLD, signal.SIGPIPE, signal.SIGXFSZ):
            signal.signal(number, signal.SIG_DFL)
        for name, value in job["limits"].items():
            limit = getattr(resource, name)
            resource.setrlimit(limit, (value, value))
        try:
            os.chdir(job["cwd"])
        except OSError:
            os.write(2, f"no such folder: {job['cwd']}\n".encode(errors="surrogateescape"))
            os._exit(126)
        os.execvpe(job["argv"][0], job["argv"], job["env"])
    except FileNotFoundError:
        code = 127
        os.write(2, f"{job['argv'][0]}: not found\n".encode(errors="surrogateescape"))
    except BaseException as error:
        os.write(2, f"{error}\n".encode(errors="surrogateescape"))
    finally:
        os._exit(code)


def attend(
    child: int, woken: int, feed: int, outs: "list[int]", data: bytes, timeout: float, limit: int
) -> "tuple[int | None, list[bytearray], bool]":
    """Feed the child and keep the first `limit` bytes of each output until it ends, or kill it at its deadline.

    Returns its wait status (None if it was killed), what was kept, and whether that is not all.
    """
    end = time.monotonic() + timeout
    kept = [bytearray(), bytearray()]
    open_outs = {outs[0]: kept[0], outs[1]: kept[1]}
    left = memoryview(data)
    for fd in (feed, *outs):
        os.set_blocking(fd, False)
    status: int | None = None
    truncated = over = False
    pause = 0.0
    while open_outs or not over:
        if feed >= 0 and (over or not left):
            os.close(feed)
            feed = -1
        time.sleep(pause)
        pause = 0.0
        wait = max(0.0, end - time.monotonic())
        readable, writable, _ = select.select([woken, *open_outs], [feed] if feed >= 0 else [], [], wait)
        if woken in readable:
            os.read(woken, _CHUNK)
        pid, code = (0, 0) if over else os.waitpid(child, os.WNOHANG)
        if over and time.monotonic() >= end:
            break  # somebody holds the pipes who cannot be killed
        if pid or time.monotonic() >= end:
            over, status = True, code if pid else None
            kill_all()
            if not pid:
                os.waitpid(child, 0)
            end = time.monotonic() + _DRAIN
        for fd in open_outs.keys() & set(readable):
            part = os.read(fd, _CHUNK)
            room = limit - len(open_outs[fd])
            open_outs[fd] += part[:room]
            if len(part) > room:
                truncated, pause = True, _PAUSE
            if not part:
                os.close(fd)
                del open_outs[fd]
        if writable and feed >= 0:
            left = feed_some(feed, left)
    return status, kept, truncated


def feed_some(feed: int, left: memoryview) -> memoryview:
    """Write a part of `left`; what is left then, which is nothing if the child has closed its input."""
    try:
        return left[os.write(feed, left[:_CHUNK]) :]
    except BlockingIOError:
        return left
    except OSError:
        return left[:0]


def sweep() -> "list[int]":
    """Kill everything else in the container and empty its scratch folders; the processes that survived."""
    end = time.monotonic() + _SWEEP
    while True:
        kill_all()
        left = others()
        if not left or time.monotonic() > end:
            break
        time.sleep(0.005)
    for folder in _SCRATCH:
        if not left and os.path.isdir(folder) and os.listdir(folder):
            empty(folder)
    return left


def empty(folder: str) -> None:
    from harness.sandbox.tree import clear_folder

    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        clear_folder(fd)
    finally:
        os.close(fd)
