"""Removes what dead processes have left in the backends; never what a living one owns, nor what somebody else made."""

import asyncio
import logging
import sys
import tempfile
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from harness.sandbox.base import SANDBOXES, SandboxConfig
from harness.sandbox.guard import finish_stops
from harness.sandbox.leftovers import Leftover, leftover_folders

PERIOD = 300.0
"""Seconds between two looks while a run goes on."""

Finder = Callable[[SandboxConfig], list[Leftover] | Coroutine[Any, Any, list[Leftover]]]

_log = logging.getLogger(__name__)


@dataclass
class Sweep:
    """What was found; if it was to be removed, what could not be (name -> error); and which backends did not answer."""

    found: list[Leftover] = field(default_factory=list)
    failed: dict[str, str] = field(default_factory=dict)
    unreachable: dict[str, str] = field(default_factory=dict)


def reap(config: SandboxConfig, backends: Iterable[str] | None = None, *, apply: bool = True) -> Sweep:
    """Find the leftovers on this host and in `backends` (none: the configured one), and with `apply` remove them.

    Blocks. A backend that does not answer is noted, and what cannot be removed keeps nothing else from being removed.
    """
    sweep = Sweep(_host_folders(config))
    for name in [config.backend] if backends is None else backends:
        try:
            found = _finder(name)(config.model_copy(update={"backend": name}))
            sweep.found += found if isinstance(found, list) else asyncio.run(found)
        except Exception as error:
            sweep.unreachable[name] = str(error) or type(error).__name__
    for leftover in sweep.found if apply else []:
        try:
            leftover.remove()
        except Exception as error:
            sweep.failed[leftover.name] = f"{type(error).__name__}: {error}"
    return sweep


@asynccontextmanager
async def reaping(config: SandboxConfig, period: float = PERIOD) -> AsyncIterator[None]:
    """Reap at the beginning and from time to time; at the end wait for sandboxes that still stop."""
    await _reap_and_log(config)
    again = asyncio.create_task(_reap_for_ever(config, period))
    try:
        yield
    finally:
        again.cancel()
        await asyncio.wait({again})
        await finish_stops()


def _finder(backend: str) -> Finder:
    """What finds a backend's leftovers: the function `leftovers` of the module that defines it, where it has one."""
    module = sys.modules[SANDBOXES[backend].__module__]
    finder: Finder = getattr(module, "leftovers", lambda config: [])
    return finder


def _host_folders(config: SandboxConfig) -> list[Leftover]:
    """Directories of sandboxes in `root`, and in the system's place for them, where every backend has its sockets."""
    places = {Path(place).resolve() for place in (config.root, tempfile.gettempdir()) if place is not None}
    return [leftover for place in sorted(places) for leftover in leftover_folders(place)]


async def _reap_for_ever(config: SandboxConfig, period: float) -> None:
    while True:
        await asyncio.sleep(period)
        await _reap_and_log(config)


async def _reap_and_log(config: SandboxConfig) -> None:
    try:
        sweep = await asyncio.to_thread(reap, config)
    except Exception:
        _log.exception("looking for leftovers failed")  # no reason to end a run
        return
    for leftover in sweep.found:
        error = sweep.failed.get(leftover.name)
        what = f"{leftover.kind} {leftover.name} of a dead process"
        _log.warning("cannot remove %s: %s", what, error) if error else _log.info("removed %s", what)
