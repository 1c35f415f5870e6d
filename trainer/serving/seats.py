"""Which replica serves which session: about as many as others, none while it is dead, no new ones while it is slow.

Replicas come and go while trials run. They are looked for by name, so that every process that samples finds out for
itself: one that has joined gets sessions once it serves, one that leaves says so to whoever asks it.
"""

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Mapping
from typing import Any

from trainer.placement import find_numbered
from trainer.serving.census import LOOK_SECONDS, serves
from trainer.serving.errors import ReplicaError
from trainer.serving.speeds import Speeds

_log = logging.getLogger(__name__)


class Seats:
    """The replicas that serve, by number, and where sessions are at home.

    Args:
        run_name: Whose replicas they are. Without it none joins.
    """

    def __init__(self, actors: Mapping[int, Any], run_name: str | None = None) -> None:
        self._actors = dict(actors)
        self._run_name = run_name
        self._next_look = 0.0
        self._looking: asyncio.Task[None] | None = None
        self._home: dict[str, int] = {}
        self._load: Counter[int] = Counter()
        self._speeds = Speeds()

    @property
    def actors(self) -> list[Any]:
        """Those that serve."""
        return list(self._actors.values())

    async def home_of(self, session_id: str) -> Any:
        """The session's replica, another one if that is gone.

        Raises:
            ReplicaError: none is left.
        """
        if time.monotonic() >= self._next_look:
            self._start_look()
        home = self._home.get(session_id)
        if home is None or home not in self._actors:
            if not self._actors:
                await self.look()
            if not self._actors:
                raise ReplicaError("the last replica died; see the engine's log")
            self.release(session_id)
            slow = self._speeds.slow(self._actors)
            home = min(self._actors.keys() - slow, key=lambda number: (self._load[number], number))
            self._home[session_id] = home
            self._load[home] += 1
        return self._actors[home]

    def release(self, session_id: str) -> None:
        """Forget a session, so that its replica counts as less loaded."""
        home = self._home.pop(session_id, None)
        if home is not None:
            self._load[home] -= 1

    def answered(self, actor: Any, tokens: int, seconds: float) -> None:
        """A replica took so long for an answer: one that is much slower than the others gets no new sessions."""
        for number in self._numbers(actor):
            self._speeds.observe(number, tokens, seconds)

    def lose(self, actor: Any) -> None:
        """A replica gets no more sessions, until it, or another with its number, is found to serve. Safe to repeat."""
        for number in self._numbers(actor):
            del self._actors[number]
            self._speeds.forget(number)
            self._next_look = time.monotonic() + LOOK_SECONDS

    async def look(self) -> None:
        """Look for replicas that have joined, or are back, now."""
        await asyncio.shield(self._start_look())

    def _numbers(self, actor: Any) -> list[int]:
        return [number for number, there in self._actors.items() if there is actor]

    def _start_look(self) -> "asyncio.Task[None]":
        if self._looking is None or self._looking.done():
            self._next_look = time.monotonic() + LOOK_SECONDS
            self._looking = asyncio.create_task(self._admit_others())
        return self._looking

    async def _admit_others(self) -> None:
        if self._run_name is None:
            return
        try:
            found = await asyncio.to_thread(find_numbered, f"{self._run_name}/replica")
        except Exception as error:  # the cluster does not answer: there will be another look
            _log.warning("replicas of %s cannot be looked for: %s", self._run_name, error)
            return
        others = {number: actor for number, actor in found.items() if number not in self._actors}
        ready = await asyncio.gather(*map(serves, others.values()))
        for (number, actor), serving in zip(others.items(), ready, strict=True):
            if serving:
                self._actors.setdefault(number, actor)
