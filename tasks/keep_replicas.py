"""While trials run: as many replicas as are wanted. Those that die are started again, others join or leave.

How many are wanted may change at any time (`tasks.wanted_replicas`). One that joins boots beside the trials, and serves
nothing before the next sync of weights, which finds it among the others. One that leaves is told so, takes no new
turns, and ends once those under way are answered; whoever asks it meanwhile goes on with another, as do the sessions of
one that dies. Where none is left that serves, trials cannot go on, and the run starts its engines again.
"""

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from typing import Any
from weakref import WeakKeyDictionary

from tasks.progress import Event, emit
from tasks.run import RunRef
from tasks.sync_weights import sync_under_way
from tasks.wanted_replicas import wanted_replicas
from trainer.placement import end_numbered, find_numbered
from trainer.serving.boot import Boot
from trainer.serving.census import LOOK_SECONDS, Standing, boots_of, standings_of
from trainer.serving.config import ServingConfig
from trainer.serving.pool import SHUTDOWN_SECONDS, ReplicaPool

PERIOD = 15.0
"""Seconds between two looks."""
REST = 120.0
"""Seconds after a boot that failed, or found no room, until the next."""

_log = logging.getLogger(__name__)


@asynccontextmanager
async def replicas_kept(run: RunRef, serving: ServingConfig) -> AsyncIterator[None]:
    """A block in which there are as many replicas as are wanted, as far as the cluster has room.

    Blocks of one run go on where the last was: none need be as long as a look or a boot takes. Of those that overlap,
    as trials of training and an evaluation do, one looks.
    """
    if serving.colocated:
        yield
        return
    keepers = _keepers.setdefault(asyncio.get_running_loop(), {})
    if run.name not in keepers or not keepers[run.name].is_of(run, serving):
        keepers[run.name] = Keeper(run, serving)
    keeping = asyncio.create_task(keepers[run.name].keep())
    try:
        yield
    finally:
        keeping.cancel()
        await asyncio.wait({keeping})


async def stop_keeping(run_name: str) -> None:
    """The engines of this run are about to end: wait for no boot any more."""
    keeper = _keepers.get(asyncio.get_running_loop(), {}).pop(run_name, None)
    if keeper is not None:
        await keeper.stop()


class Keeper:
    """Has replicas of one run join and leave, a look at a time. It remembers nothing that a new one would need."""

    def __init__(self, run: RunRef, serving: ServingConfig) -> None:
        self._run, self._serving = run, serving
        self._place = f"{run.name}/replica"
        self._turn = asyncio.Lock()
        self._next_look = time.monotonic() + PERIOD
        self._boot: asyncio.Task[None] | None = None
        self._booting: list[int] = []
        self._known: set[int] = set()
        """Numbers that have been seen: what is missing of them has died."""
        self._half_born: set[int] = set()
        """Those that were up at the last look, and had not been told to boot."""
        self._failed: list[int] = []
        """Those that could not be started at the last try, and have been told of."""
        self._next_try = 0.0

    def is_of(self, run: RunRef, serving: ServingConfig) -> bool:
        """Whether it keeps the replicas of this run, and as this says."""
        return (self._run, self._serving) == (run, serving)

    async def keep(self) -> None:
        """Look again and again, once nobody else does."""
        async with self._turn:
            while True:
                await asyncio.sleep(self._next_look - time.monotonic())
                try:
                    await self.look()
                except Exception as error:  # trials go on with those that are left
                    _log.warning("replicas of %s: %s", self._run.name, error)
                self._next_look = time.monotonic() + PERIOD

    async def look(self) -> None:
        """See who is there; end who is dead or has left, tell who is too many, and have boot who is missing."""
        wanted = wanted_replicas(self._run, self._serving)
        found = find_numbered(self._place)
        if wanted == 1 and list(found) == [0]:
            return  # if it is dead, nothing here could help
        if self._boot is None or self._boot.done():
            self._booting = []
        told = await standings_of({number: found[number] for number in found if number not in self._booting})
        for number in await self._end_those_that_left(found, told):
            del told[number]
        dead, boot = await self._dead_and_well(found, told)
        if boot is None:
            return
        await end_numbered(self._place, dead)
        up = {n: standing for n, standing in told.items() if isinstance(standing, Standing) and n not in dead}
        await self._let_leave(found, up, wanted)
        self._known |= up.keys()
        self._start_missing(boot, wanted)

    async def booted(self) -> None:
        """Wait until those that a look has boot are up."""
        if self._boot is not None:
            await asyncio.wait({self._boot})

    async def stop(self) -> None:
        """Wait for nobody any more: a boot that is under way comes to its end, or to that of its actor, without us."""
        if self._boot is not None:
            self._boot.cancel()
            await asyncio.wait({self._boot})

    async def _end_those_that_left(self, found: dict[int, Any], told: dict[int, Standing | Exception]) -> list[int]:
        """End those whose last turn is answered. Returns their numbers."""
        if sync_under_way(self._run.name):
            return []
        left = [number for number, standing in told.items() if isinstance(standing, Standing) and standing.may_end]
        for number in left:
            # in order, so that its last answers are with those who asked
            shutdown = asyncio.wait_for(found[number].shutdown.remote(), SHUTDOWN_SECONDS)
            await asyncio.gather(shutdown, return_exceptions=True)
            await end_numbered(self._place, [number])
            self._known.discard(number)
            _say(f"replica {number} has left")
        return left

    async def _dead_and_well(
        self, found: dict[int, Any], told: dict[int, Standing | Exception]
    ) -> tuple[set[int], Boot | None]:
        """Numbers of those that are dead or whose engine is, and what one was booted with that is well.

        One that merely takes long to answer is left alone: it may have much to do.
        """
        from ray.exceptions import RayActorError

        up = [number for number, standing in told.items() if isinstance(standing, Standing) and standing.up]
        # whoever has started one just now is about to tell it to boot
        unborn = {number for number, standing in told.items() if isinstance(standing, Standing) and not standing.up}
        dead = unborn & self._half_born
        self._half_born = unborn - dead
        boots = await boots_of({number: found[number] for number in up})
        dead |= {number for number, standing in told.items() if isinstance(standing, RayActorError)}
        dead |= {number for number, boot in boots.items() if not isinstance(boot, Boot | TimeoutError)}
        return dead, next((boot for boot in boots.values() if isinstance(boot, Boot)), None)

    async def _let_leave(self, found: dict[int, Any], up: dict[int, Standing], wanted: int) -> None:
        """Tell those that are too many, the highest first, if one serves that stays."""
        if not any(standing.serves for number, standing in up.items() if number < wanted):
            return
        for number in sorted((number for number in up if number >= wanted), reverse=True):
            if up[number].up and not up[number].leaving:
                turns = await asyncio.wait_for(found[number].leave.remote(), LOOK_SECONDS)
                _say(f"replica {number} leaves: {wanted} are wanted. It has {turns} turns to finish")

    def _start_missing(self, boot: Boot, wanted: int) -> None:
        """Have boot, beside us, those that are missing; those that could not be started lately rest for a while."""
        if self._boot is not None and not self._boot.done():
            return
        there = find_numbered(self._place).keys()
        missing = [number for number in range(wanted) if number not in there]
        again = missing == self._failed
        if not missing or (again and time.monotonic() < self._next_try):
            return
        died = [number for number in missing if number in self._known]
        joining = [number for number in missing if number not in self._known]
        if died and not again:
            _say(f"replica {_list(died)} died, and is started again beside the trials")
        if joining and not again:
            _say(f"replica {_list(joining)} joins: {wanted} are wanted. It boots, and serves from the next sync on")
        self._booting = missing
        self._boot = asyncio.create_task(self._start(boot, missing, again))

    async def _start(self, boot: Boot, numbers: list[int], again: bool) -> None:
        try:
            placed = await ReplicaPool.start_again(self._run.name, boot, numbers)
            failed = [number for number in numbers if number not in placed]
            gpus = f" of {boot.gpus} GPUs" if boot.gpus else ""
            why = f"the cluster has no room{gpus} for replica {_list(failed)}: the run goes on without"
        except Exception as error:
            failed = numbers
            why = f"replica {_list(failed)} could not be started: {str(error).strip().partition(chr(10))[0]}"
        if failed and not (again and failed == numbers):
            _say(why)
        if failed != numbers:
            _say(f"replica {_list(number for number in numbers if number not in failed)} has booted")
        self._failed, self._next_try = failed, time.monotonic() + REST


_keepers: WeakKeyDictionary[asyncio.AbstractEventLoop, dict[str, Keeper]] = WeakKeyDictionary()
"""By the name of the run."""


def _say(text: str) -> None:
    emit(Event("note", "", text))


def _list(numbers: Iterable[int]) -> str:
    return ", ".join(map(str, numbers))
