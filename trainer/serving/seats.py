"""Which replica serves which session: about as many as others, none while it is dead, no new ones while it is slow."""

import asyncio
import time
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

from trainer.placement import find_numbered
from trainer.serving.errors import ReplicaError
from trainer.serving.speeds import Speeds

LOOK_SECONDS = 5.0
"""Between two looks for a replica that is absent, and for its answer."""


class Seats:
    """The replicas that are there, by number, and where sessions are at home.

    Args:
        run_name: Whose replicas they are. Without it none comes back that is absent.
        absent: Numbers of replicas that are not there.
    """

    def __init__(self, actors: Mapping[int, Any], run_name: str | None = None, absent: Iterable[int] = ()) -> None:
        self._actors = dict(actors)
        self._run_name = run_name
        self._due = dict.fromkeys(absent, 0.0)
        """When to look for the absent ones, by number."""
        self._looks: set[asyncio.Task[None]] = set()
        self._home: dict[str, int] = {}
        self._load: Counter[int] = Counter()
        self._speeds = Speeds()

    @property
    def actors(self) -> list[Any]:
        """Those that are there."""
        return list(self._actors.values())

    def home_of(self, session_id: str) -> Any:
        """The session's replica, another one if that is gone.

        Raises:
            ReplicaError: none is left.
        """
        self._look_for_absent()
        home = self._home.get(session_id)
        if home is None or home not in self._actors:
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
        """A replica gets no more sessions, until another has its number and serves. Safe to repeat."""
        for number in self._numbers(actor):
            del self._actors[number]
            self._speeds.forget(number)
            self._due[number] = time.monotonic() + LOOK_SECONDS

    def _numbers(self, actor: Any) -> list[int]:
        return [number for number, there in self._actors.items() if there is actor]

    def _look_for_absent(self) -> None:
        now = time.monotonic()
        for number in [number for number, due in self._due.items() if due <= now]:
            self._due[number] = now + LOOK_SECONDS
            look = asyncio.create_task(self._readmit(number))
            self._looks.add(look)
            look.add_done_callback(self._looks.discard)

    async def _readmit(self, number: int) -> None:
        if self._run_name is None:
            return
        actor = (await asyncio.to_thread(find_numbered, f"{self._run_name}/replica")).get(number)
        if actor is not None and await serves(actor) and number in self._due:
            del self._due[number]
            self._actors[number] = actor


async def serves(actor: Any) -> bool:
    """Whether a replica answers, and has weights to be trusted."""
    try:
        return await asyncio.wait_for(actor.version.remote(), LOOK_SECONDS) is not None
    except Exception:  # dead, or dying: whatever it says of that, it does not serve
        return False
