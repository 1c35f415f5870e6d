"""Processes that are killed, or run out of room, at every stage of what they do to a folder."""

import itertools
import os
import resource
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

_TOUCHES = {"open", "os.mkdir", "os.rename", "os.remove", "os.rmdir", "shutil.rmtree"}


def kill_at_every_stage(act: Callable[[], object], folder: Path, sizes: tuple[int, ...] = ()) -> Iterator[str]:
    """Run `act` in forked children: each is killed before another of its operations on files, until one lives.

    Then come children that the kernel kills in the middle of a file, when it is to grow beyond one of `sizes`. Yields
    the name of each stage, after the child has ended there; the caller looks at the folder, and sets it up anew.
    """
    for number in itertools.count(1):
        status, stage = _child(act, lambda number=number: _die_before(number, folder))
        if status == 0:
            yield "done"
            break
        assert status == -signal.SIGKILL, f"a child ended with {status} at {stage}"
        yield f"{number}: {stage}"
    for size in sizes:
        status, _ = _child(act, lambda size=size: _limit(size, signal.SIG_DFL))
        assert status == -signal.SIGXFSZ, f"no file grew beyond {size} bytes: {status}"
        yield f"after {size} bytes of a file"


def limit_file_size(size: int) -> None:
    """From now on files of this process cannot grow beyond `size`: a write that would fails as on a full disk."""
    _limit(size, signal.SIG_IGN)


def in_child(act: Callable[[], object]) -> None:
    """Run `act` in a forked child, which must succeed: what it does to itself goes with it."""
    status, _ = _child(act, lambda: None)
    assert status == 0, f"the child ended with {status}"


def _child(act: Callable[[], object], prepare: Callable[[], object]) -> tuple[int, str]:
    """How a child ended, negative for a signal, and the last it said of its stage."""
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(reader)
        os.dup2(writer, 3)
        try:
            prepare()
            act()
        except BaseException as error:
            os.write(2, f"{error!r}\n".encode())
            os._exit(1)
        os._exit(0)
    os.close(writer)
    with open(reader, "rb") as pipe:
        said = pipe.read().decode()
    _, status = os.waitpid(pid, 0)
    return os.waitstatus_to_exitcode(status), said


def _die_before(number: int, folder: Path) -> None:
    seen = itertools.count(1)

    def watch(event: str, arguments: tuple[object, ...]) -> None:
        # while a tree is removed its files have names relative to an open folder
        ours = event in ("os.remove", "os.rmdir") or str(arguments[0]).startswith(str(folder))
        if event in _TOUCHES and ours and next(seen) == number:
            os.write(3, f"{event} {str(arguments[0]).removeprefix(str(folder))}".encode())
            os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(watch)


def _limit(size: int, action: signal.Handlers) -> None:
    signal.signal(signal.SIGXFSZ, action)
    _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
