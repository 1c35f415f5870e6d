"""Server processes: whether one still runs, what belongs to it, and its end.

A process is known by its id *and* its start time, so that nothing is ever stopped but what was started here.
"""

import os
import signal
import subprocess
import time
from contextlib import suppress
from pathlib import Path

import psutil

from deployments.server_record import Server

STOP_TIMEOUT_S = 15.0

_children: list[subprocess.Popen[bytes]] = []
"""Servers that this process started, kept so that it can reap them when they end."""


def adopt(child: "subprocess.Popen[bytes]") -> int:
    """Reap this child when it ends. Returns its start time."""
    _children.append(child)
    found = stat(child.pid)
    assert found is not None, "a child that nobody waited for stays visible"
    return found[1]


def stat(pid: int) -> tuple[str, int] | None:
    """State letter and start time (ticks since boot) of a process, or None if there is none."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return None
    return fields[0], int(fields[19])


def is_running(server: Server) -> bool:
    """Whether the process that was started still runs."""
    found = stat(server.pid)
    return found is not None and found[0] != "Z" and found[1] == server.started


def members(server: Server) -> list[int]:
    """The living processes of the server's session.

    The kernel does not give a process id out again while a session bears it. So if the leader's id now belongs to a
    process with another start time, the session has ended and all that bears the id is a stranger's.
    """
    leader = stat(server.pid)
    if leader is not None and leader[1] != server.started:
        return []
    living = []
    for pid in psutil.pids():
        with suppress(ProcessLookupError, PermissionError):
            if os.getsid(pid) == server.pid:
                found = stat(pid)
                if found is not None and found[0] != "Z":
                    living.append(pid)
    return living


def listens(pid: int, port: int) -> bool:
    """Whether a process listens on this TCP port."""
    try:
        connections = psutil.Process(pid).net_connections("tcp")
    except psutil.Error:  # it ended meanwhile
        return False
    return any(seen.status == psutil.CONN_LISTEN and seen.laddr.port == port for seen in connections)


def stop(server: Server) -> None:
    """TERM to the whole session, KILL to what is still there after a while."""
    for number, patience in ((signal.SIGTERM, STOP_TIMEOUT_S), (signal.SIGKILL, 5.0)):
        deadline = time.monotonic() + patience
        for pid in members(server):
            with suppress(ProcessLookupError):
                os.kill(pid, number)
        while members(server) and time.monotonic() < deadline:
            time.sleep(0.1)
    for child in _children:
        if child.pid == server.pid:
            # its first thread may be gone while others still end: until then it cannot be reaped
            with suppress(subprocess.TimeoutExpired):
                child.wait(timeout=5.0)
        child.poll()
