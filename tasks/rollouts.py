"""A run's groups in flight, and how the rollouter and the steps of one flow meet over them.

The ledger says what is so; this says when to look at it again. It lives as long as the flow: what is durable is in the
journal, from which the next flow makes another.
"""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

from tasks.progress import Event, emit
from tasks.rollout_ledger import GroupState, RolloutLedger, Taken
from tasks.run import RunRef

LABEL = "rollouter"

_live: dict[str, "Rollouts"] = {}
"""By the run's name, as actors are found: it is neither small nor plain, so it crosses no Prefect task's boundary."""


class Rollouts:
    """The ledger of a run that goes on, with those who wait for it to change."""

    def __init__(self, ledger: RolloutLedger) -> None:
        self.ledger = ledger
        self.stopping = False
        self.files = asyncio.Lock()
        """Held by whoever moves trials to their step, or reads where they are."""
        self._failure: BaseException | None = None
        self._changed = asyncio.Condition()

    async def take(self, step: int) -> Taken:
        """Wait for the groups of step `step`.

        Raises:
            Exception: what the rollouter failed with, since nobody else will complete them.
        """
        async with self._changed:
            while (taken := self.ledger.take(step)) is None:
                if self._failure is not None:
                    raise self._failure
                # what was too old is dropped by now, which makes room
                self._changed.notify_all()
                await self._changed.wait()
            self._changed.notify_all()
        self.tell()
        return taken

    async def synced(self, version: int) -> None:
        """The replicas serve `version`."""
        self.ledger.synced(version)
        await self.changed()

    async def complete(self, group: str, oldest: int | None) -> None:
        """The group's trials have ended and are graded."""
        self.ledger.complete(group, oldest)
        await self.changed()

    async def room(self) -> bool:
        """Wait until another group may start; False if none shall any more."""
        async with self._changed:
            await self._changed.wait_for(lambda: self.stopping or self.ledger.has_room())
        return not self.stopping

    async def stop(self) -> None:
        """No group starts from now on, and those that run end."""
        self.stopping = True
        await self.changed()

    async def fail(self, error: BaseException) -> None:
        """The rollouter is gone, and `error` is why."""
        self._failure = error
        await self.changed()

    async def changed(self) -> None:
        """Wake those who wait."""
        async with self._changed:
            self._changed.notify_all()
        self.tell()

    def tell(self) -> None:
        """Progress, for whoever watches: groups that are complete, of all that the run will take."""
        counts, pace = self.ledger.counts(), self.ledger.pace
        done = counts[GroupState.COMPLETE] + counts[GroupState.CONSUMED]
        emit(Event("rollouts", LABEL, done=done, total=pace.groups_per_step * pace.total_steps, data=counts))


@contextmanager
def live(run: RunRef, rollouts: Rollouts) -> Iterator[None]:
    """Inside the block the steps of the run find `rollouts`."""
    _live[run.name] = rollouts
    try:
        yield
    finally:
        del _live[run.name]


def rollouts_of(run: RunRef) -> Rollouts:
    """The groups in flight of a run whose flow goes on in this process."""
    return _live[run.name]
