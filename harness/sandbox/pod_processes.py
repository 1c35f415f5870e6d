"""Processes of a container, as the program inside a pod sees and ends them. Runs in the pod, see `pod_main`."""

import ctypes
import os
import signal

_PR_SET_DUMPABLE = 4


def wake_on_child() -> int:
    """A descriptor that becomes readable whenever a child ends."""
    woken, wake = os.pipe()
    os.set_blocking(woken, False)
    os.set_blocking(wake, False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
    return woken


def kill_all() -> None:
    """SIGKILL for every process of the container but process 1 and this one; one call, so no fork escapes it."""
    try:
        os.kill(-1, signal.SIGKILL)
    except ProcessLookupError:
        pass


def others() -> "list[int]":
    """Processes of the container that live, without process 1 and this one."""
    found = []
    for name in os.listdir("/proc"):
        if name.isdigit() and int(name) not in (1, os.getpid()):
            try:
                with open(f"/proc/{name}/stat", "rb") as file:
                    state = file.read().rpartition(b")")[2].split()[0]
            except (OSError, IndexError):
                continue
            if state not in (b"Z", b"X"):
                found.append(int(name))
    return found


def hide() -> None:
    """Keep other processes of this user from reading this one's memory and descriptors."""
    if ctypes.CDLL(None).prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0) != 0:
        raise OSError("prctl(PR_SET_DUMPABLE) failed")
