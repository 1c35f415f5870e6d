"""Several engines as one: a new sandbox goes where most slots are free, and an engine that fails rests for a while."""

import asyncio
import random
import time
from dataclasses import dataclass, field
from weakref import WeakKeyDictionary

from harness.sandbox.docker_config import DockerConfig, DockerHost, hosts_of
from harness.sandbox.waiting import waiting

_REST = 5.0
_LONGEST_REST = 300.0


@dataclass
class Place:
    """An engine with its live sandboxes, and how it has behaved."""

    host: DockerHost
    taken: int = 0
    failures: int = 0
    rests_until: float = 0.0
    commands: dict[int, asyncio.Semaphore] = field(default_factory=dict)

    @property
    def free(self) -> int:
        return self.host.slots - self.taken

    def slot(self, size: int) -> asyncio.Semaphore:
        """What bounds the commands that run at a time on this engine, `size` of them."""
        return self.commands.setdefault(size, asyncio.Semaphore(size))


class HostPool:
    """The engines of one configuration, within one event loop."""

    def __init__(self, hosts: tuple[DockerHost, ...]) -> None:
        self.places = [Place(host) for host in hosts]
        self._changed = asyncio.Condition()

    async def take(self, avoid: set[str]) -> Place:
        """A slot on the engine with most of them free; waits while all are taken.

        Engines at the URLs in `avoid` are left out if there are others, and so are those that rest.
        """
        async with self._changed:
            while (place := self._best(avoid)) is None:
                with waiting():
                    await self._changed.wait()
            place.taken += 1
            return place

    def _best(self, avoid: set[str]) -> Place | None:
        now = time.monotonic()
        wanted = [place for place in self.places if place.host.url not in avoid] or self.places
        awake = [place for place in wanted if place.rests_until <= now]
        if not awake:  # all have failed: then the one that has rested longest is tried
            awake = [min(wanted, key=lambda place: place.rests_until)]
        free = [place for place in awake if place.free > 0]
        return max(free, key=lambda place: (place.free, random.random()), default=None)

    async def give_back(self, place: Place) -> None:
        async with self._changed:
            place.taken -= 1
            self._changed.notify_all()

    def worked(self, place: Place) -> None:
        place.failures, place.rests_until = 0, 0.0

    def failed(self, place: Place) -> None:
        """Let the engine rest, longer each time that it fails in a row."""
        rest = min(_REST * 2**place.failures, _LONGEST_REST)
        place.failures += 1
        place.rests_until = time.monotonic() + rest * random.uniform(0.8, 1.2)


_pools: "WeakKeyDictionary[asyncio.AbstractEventLoop, dict[tuple[DockerHost, ...], HostPool]]" = WeakKeyDictionary()


def pool_of(config: DockerConfig) -> HostPool:
    """The pool of the configured engines in the running event loop."""
    hosts = hosts_of(config)
    of_loop = _pools.setdefault(asyncio.get_running_loop(), {})
    if hosts not in of_loop:
        of_loop[hosts] = HostPool(hosts)
    return of_loop[hosts]
