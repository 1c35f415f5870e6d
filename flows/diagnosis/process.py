"""Which process works on a run, or did last, and how it ended: the lease, and `end.json` beside it.

A process that comes to its end gives its lease back and leaves end.json; one that is killed leaves its lease.
"""

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Literal

import psutil

from harness.sandbox.owner import this_host
from tasks.journal import write_json
from tasks.lease import NAME, STALE, last_holder, living_holder
from tasks.trial_table import read_object

END = "end.json"
_MAX_MESSAGE = 2000

Ending = Literal["finished", "stopped", "failed"]


@dataclass(frozen=True)
class Process:
    """Who holds the run's lease. `here`: on this host, so that it can be asked. Times are in seconds since 1970."""

    pid: int
    host: str
    work: str
    since: float
    alive: bool
    here: bool


@dataclass(frozen=True)
class End:
    """How the last process that came to an end did."""

    how: Ending
    at: float
    message: str


def read_process(root: Path) -> Process | None:
    """Who holds the lease of the run in `root`, alive or dead; None if nobody does.

    Raises:
        JournalError, TypeError, ValueError: the lease is damaged.
    """
    holder = last_holder(root)
    if holder is None:
        return None
    here = holder.host == this_host()
    try:
        alive = living_holder(root) is not None
    except OSError:  # a journal of another host that cannot be written to: by our own clock then
        alive = time.time() - (root / NAME).stat().st_mtime < STALE
    since = datetime.fromisoformat(holder.since).timestamp()
    return Process(holder.pid, holder.host, holder.work, since, alive, here)


def read_end(root: Path) -> End | None:
    """How the run in `root` ended last, None if no process has left word.

    Raises:
        OSError, ValueError, KeyError, TypeError: the record is damaged.
    """
    stored = read_object(str(root / END))
    if stored is None:
        return None
    how = stored["how"]
    if how not in ("finished", "stopped", "failed"):
        raise ValueError(f"{END} says that it {str(how)[:40]!r}")
    return End(how, float(stored["at"]), str(stored["message"])[:_MAX_MESSAGE])


@contextmanager
def recorded_end(root: Path) -> Iterator[None]:
    """Leave word in `root` of how the block ended. A configuration that is refused is no end of the run."""
    from flows.config import ConfigError
    from flows.configuration.redaction import Redactor  # both bring torch along; readers do without

    how: Ending = "finished"
    message = ""
    try:
        yield
    except ConfigError:
        raise
    except BaseException as error:
        # what is no Exception is somebody's wish: Ctrl-C, a cancelled task, the signal by which a worker cancels
        stopped = not isinstance(error, Exception)
        how, message = ("stopped", "") if stopped else ("failed", f"{type(error).__name__}: {error}")
        _leave(root, how, Redactor().text(message))
        raise
    _leave(root, how, message)


def _leave(root: Path, how: Ending, message: str) -> None:
    write_json(root / END, {"how": how, "at": time.time(), "message": message[:_MAX_MESSAGE]})


def holders(folder: Path) -> list[int]:
    """Other processes of this user that have files of the run open: its engine its log, for one."""
    if not folder.is_dir():
        return []
    inside, found = str(folder.resolve()) + os.sep, []
    for process in psutil.process_iter():
        try:
            if process.pid != os.getpid() and any(file.path.startswith(inside) for file in process.open_files()):
                found.append(process.pid)
        except (psutil.Error, OSError):  # it ended, or is somebody else's
            continue
    return found
