"""Whose a container, pod, volume or network is: labels that name the process, so that leftovers can be told apart.

A pid alone is used again, and means nothing in another container or after a reboot. So an owner is a pid together with
the moment at which its process started, within one pid namespace of one host. Whoever is on another host cannot be
seen from here and counts as alive.
"""

import functools
import os
import re
import socket
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

PREFIX = "testgrad."
"""What the keys of all labels begin with."""

MARK = "TESTGRAD_OWNER"
"""The variable by which what a command has started is found and ended when the command was killed."""

PROJECT_VARIABLE = "TESTGRAD_PROJECT"
RUN_VARIABLE = "TESTGRAD_RUN"

_MAX_LABEL_CHARS = 63  # Kubernetes' limit; Docker has none
_current: "ContextVar[tuple[str, str, str] | None]" = ContextVar("testgrad_owner", default=None)


@dataclass(frozen=True)
class Owner:
    """A trial of a run, in a process of a host. All but `pid` are valid label values."""

    project: str
    run: str
    trial: str
    host: str
    pid: int
    started: str
    """When the process started: the host's boot, and clock ticks since."""


def current_owner() -> Owner:
    """The owner of what is made here and now: what `owned_by` says, else the environment, else `none`."""
    project, run, trial = _current.get() or (
        os.environ.get(PROJECT_VARIABLE, "testgrad"),
        os.environ.get(RUN_VARIABLE, "none"),
        "none",
    )
    pid = os.getpid()
    return Owner(label(project), label(run), label(trial), this_host(), pid, _own_start(pid))


def mark() -> dict[str, str]:
    """The environment of a helper that needs none: only that by which it is found if this process is killed."""
    return {MARK: os.environ[MARK]} if MARK in os.environ else {}


def current_trial() -> str | None:
    """The trial that `owned_by` names here and now."""
    names = _current.get()
    return None if names is None or names[2] == "none" else names[2]


@contextmanager
def owned_by(*, project: str | None = None, run: str | None = None, trial: str | None = None) -> Iterator[Owner]:
    """Within this context, and in the asyncio tasks made in it, `current_owner` says so; None leaves as it is."""
    outer = current_owner()
    given = {"project": project, "run": run, "trial": trial}
    names: dict[str, Any] = {name: label(value) for name, value in given.items() if value is not None}
    inner = replace(outer, **names)
    token = _current.set((inner.project, inner.run, inner.trial))
    try:
        yield inner
    finally:
        _current.reset(token)


def labels(owner: Owner) -> dict[str, str]:
    """The labels of what `owner` makes: `testgrad.project` and so on, one for each field."""
    return {PREFIX + field.name: str(getattr(owner, field.name)) for field in fields(Owner)}


def is_ours(labels: Mapping[str, str]) -> bool:
    """Whether something with these labels was made by a testgrad process at all."""
    return all(PREFIX + field.name in labels for field in fields(Owner))


def is_alive(labels: Mapping[str, str]) -> bool:
    """Whether the process that these labels name may still run; only False permits to remove what bears them.

    True for what is not ours and for what another host owns.
    """
    if not is_ours(labels) or labels[PREFIX + "host"] != this_host():
        return True
    pid = labels[PREFIX + "pid"]
    if not pid.isdecimal():
        return True
    return is_running(int(pid), labels[PREFIX + "started"])


def is_running(pid: int, started: str) -> bool:
    """Whether the process of this host that had `pid` when it started at `started` may still run."""
    found = _started(pid)
    return _is_hidden(pid) if found is None else found == started


@functools.cache
def this_host() -> str:
    """This host's name with its pid namespace: containers that share a name and an engine share no pids."""
    namespace = re.sub(r"\D", "", os.readlink("/proc/self/ns/pid"))
    name = label(socket.gethostname())[: _MAX_LABEL_CHARS - len(namespace) - 1].rstrip("-._")
    return f"{name}.{namespace}"


def label(value: str) -> str:
    """`value` as a label value that Docker and Kubernetes both accept."""
    return re.sub(r"[^A-Za-z0-9._-]+", "-", value)[:_MAX_LABEL_CHARS].strip("-._") or "none"


@functools.lru_cache(maxsize=1)
def _own_start(pid: int) -> str:
    """Of this process; by pid, since a fork has another one."""
    started = _started(pid)
    assert started is not None, "a process that asks lives"
    return started


def _started(pid: int) -> str | None:
    """The start of process `pid`, None if there is no such process, or if only its corpse is left."""
    try:
        status = Path(f"/proc/{pid}/stat").read_text(errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return None
    state, *rest = status.rpartition(")")[2].split()  # the program's name before may hold spaces and brackets
    return None if state in "ZX" else f"{_boot()}.{rest[18]}"


def _is_hidden(pid: int) -> bool:
    """Whether process `pid` is another user's, which a /proc mounted with hidepid does not show."""
    try:
        os.kill(pid, 0)
    except PermissionError:
        return True
    except (ProcessLookupError, OverflowError):
        return False
    return False


@functools.cache
def _boot() -> str:
    return Path("/proc/sys/kernel/random/boot_id").read_text()[:8]
