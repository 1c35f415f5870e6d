"""The lease of a run's directory: one process works on it at a time, and everybody can see which.

`lease.json` names the holder: host, process and what it does. On the holder's own host a holder that has died is seen
at once, by its pid and the moment its process started. From another host only the heartbeat can be seen: the file's
time, set every few seconds, and compared with the time that the same file system gives to a fresh file, so that clocks
need not agree. Whoever finds a lease without a living holder takes it over.
"""

import fcntl
import logging
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path

from harness.sandbox.owner import current_owner, is_running, this_host
from tasks.journal import JournalError, read_json, write_json

NAME = "lease.json"
_LOCK = ".lease.lock"
BEAT = 15.0
"""Seconds between two heartbeats."""
STALE = 90.0
"""Seconds without a heartbeat after which a holder on another host counts as dead."""

_log = logging.getLogger(__name__)


class LeaseError(ValueError):
    """Another process holds the directory; the message says which, and what to do."""


@dataclass(frozen=True)
class Holder:
    """Who holds a lease. `work` is what it does there (`train`), `since` an ISO time in UTC."""

    host: str
    pid: int
    started: str
    work: str
    since: str

    def __str__(self) -> str:
        return f"process {self.pid} on {self.host.rpartition('.')[0]} ({self.work}, since {self.since})"


def living_holder(root: Path) -> Holder | None:
    """Who works on the run in `root` now; None if nobody does, or who did has died."""
    holder = last_holder(root)
    if holder is None:
        return None
    if holder.host == this_host():
        return holder if is_running(holder.pid, holder.started) else None
    return holder if _age(root) < STALE else None


def last_holder(root: Path) -> Holder | None:
    """Who holds the lease of `root`, alive or not. A holder that came to its end has given it back: then None."""
    stored = read_json(root / NAME)
    return None if stored is None else Holder(**stored)


@contextmanager
def lease(root: Path, work: str, *, lost: Callable[[], None] | None = None) -> Iterator[Holder]:
    """Hold `root` for `work` within the block.

    `lost` is called, in another thread, if another host took the lease over while this process was frozen for longer
    than `STALE`; by default the process is interrupted as by Ctrl-C, for two would write one journal.

    Raises:
        LeaseError: a living process holds it.
    """
    root.mkdir(parents=True, exist_ok=True)
    owner = current_owner()
    me = Holder(owner.host, owner.pid, owner.started, work, datetime.now(UTC).isoformat(timespec="seconds"))
    with _locked(root):
        other = living_holder(root)
        if other is not None:
            raise LeaseError(
                f"{root} is held by {other}: wait for it, or stop it"
                + (f" (kill {other.pid})" if other.host == me.host else "")
                + "; a holder that has died loses the lease by itself"
            )
        if last_holder(root) is not None:
            _log.warning("the lease of %s is taken over from %s, which has died", root, last_holder(root))
        write_json(root / NAME, asdict(me))
    done = threading.Event()
    beating = threading.Thread(target=_beat, args=(root, me, done, lost or _interrupt), name="lease", daemon=True)
    beating.start()
    try:
        yield me
    finally:
        done.set()
        beating.join()
        with _locked(root):
            if last_holder(root) == me:
                (root / NAME).unlink()


def _beat(root: Path, me: Holder, done: threading.Event, lost: Callable[[], None]) -> None:
    while not done.wait(BEAT):
        try:
            with _locked(root):
                if last_holder(root) != me:
                    lost()
                    return
                os.utime(root / NAME)
        except (OSError, JournalError) as error:  # a full disk, or a network file system that is away for a while
            _log.warning("no heartbeat of the lease of %s: %s", root, error)


def _interrupt() -> None:
    print("the lease of this run was taken over by another process; stopping", file=sys.stderr)
    os.kill(os.getpid(), signal.SIGINT)


def _age(root: Path) -> float:
    """Seconds since the last heartbeat, by the clock of the file system."""
    probe = root / f".lease.{os.getpid()}.{threading.get_ident()}.probe"
    probe.touch()
    try:
        return probe.stat().st_mtime - (root / NAME).stat().st_mtime
    except FileNotFoundError:
        return 0.0  # given back or taken over just now
    finally:
        probe.unlink()


@contextmanager
def _locked(root: Path) -> Iterator[None]:
    """Held for moments only, so that of two that find a dead holder one takes over."""
    with open(root / _LOCK, "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
