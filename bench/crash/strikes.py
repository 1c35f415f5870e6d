"""What is done to a run, and to whom: SIGKILL by mark and name, a full disk, databases that nobody else may touch."""

import os
import signal
import sqlite3
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing, suppress
from pathlib import Path
from typing import Literal

import psutil

MARK = "TESTGRAD_CRASH_MATRIX"
"""Variable by which the processes of one matrix are told from everybody else's: `<matrix>:<part>`."""

Victim = Literal["flow", "worker", "rank", "engine", "prefect", "ray", "disk", "databases"]

_PART: dict[Victim, tuple[str, str]] = {
    "worker": ("ray", "ray::TrialWorker"),
    "rank": ("ray", "ray::LearnerRank"),
    "engine": ("ray", "ray::Replica"),
    "prefect": ("prefect", ""),
    "ray": ("ray", ""),
}
"""Of which part a victim is, and how its name begins: Ray gives its workers that of their actor."""

FILLER = "filler"
"""The file under the root of runs that takes all room."""

LOCKED_SECONDS = 12.0


def strike(victim: Victim, matrix: str, root: Path, databases: Sequence[Path]) -> None:
    """Do it, from within the flow's process."""
    if victim == "flow":
        os.kill(os.getpid(), signal.SIGKILL)
    elif victim == "disk":
        _fill(root)
    elif victim == "databases":
        for path in databases:
            threading.Thread(target=_lock, args=(path,), daemon=True).start()
    else:
        for process in _victims(victim, matrix):
            with suppress(psutil.NoSuchProcess):
                process.kill()


def marked(mark: str) -> Iterator[psutil.Process]:
    """Living processes whose mark begins so."""
    for process in psutil.process_iter():
        with suppress(psutil.NoSuchProcess, psutil.AccessDenied):
            if process.environ().get(MARK, "").startswith(mark) and process.status() != psutil.STATUS_ZOMBIE:
                yield process


def naming(folder: Path) -> Iterator[psutil.Process]:
    """Living processes whose command line names a place in the folder: sandboxes, which bear no mark of a matrix."""
    for process in psutil.process_iter():
        if f"{folder}/" in _name(process):
            yield process


def wait_until_gone(found: Callable[[], Iterable[psutil.Process]], seconds: float) -> list[str]:
    """What of the processes that are found is still there after so long."""
    deadline = time.monotonic() + seconds
    while (left := list(found())) and time.monotonic() < deadline:
        time.sleep(0.1)
    return [f"{process.pid} {_name(process)[:100]}" for process in left]


def _victims(victim: Victim, matrix: str) -> list[psutil.Process]:
    part, beginning = _PART[victim]
    return [process for process in marked(f"{matrix}:{part}") if _name(process).startswith(beginning)]


def _name(process: psutil.Process) -> str:
    with suppress(psutil.NoSuchProcess, psutil.AccessDenied):
        return " ".join(process.cmdline())
    return ""


def _fill(root: Path) -> None:
    with open(root / FILLER, "wb") as file, suppress(OSError):
        while True:
            file.write(bytes(2**16))
            file.flush()


def _lock(path: Path) -> None:
    with closing(sqlite3.connect(path, timeout=60, isolation_level=None)) as database:
        database.execute("BEGIN EXCLUSIVE")
        time.sleep(LOCKED_SECONDS)
        database.execute("ROLLBACK")
