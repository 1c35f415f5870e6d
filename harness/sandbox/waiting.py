"""A clock that stands still while something waits for its turn: to stand in a queue is not to hang, nor to be slow."""

import asyncio
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from contextvars import ContextVar


class Clock:
    """Seconds of work, as opposed to seconds of waiting."""

    def __init__(self) -> None:
        self._waiting = 0
        self._since = 0.0
        self._lost = 0.0

    def now(self) -> float:
        """Seconds, from no point in particular."""
        now = time.monotonic()
        return now - self._lost - (now - self._since if self._waiting else 0.0)

    @contextmanager
    def stopped(self) -> Iterator[None]:
        """Let the clock stand still within this context."""
        if not self._waiting:
            self._since = time.monotonic()
        self._waiting += 1
        try:
            yield
        finally:
            self._waiting -= 1
            if not self._waiting:
                self._lost += time.monotonic() - self._since


CLOCK: "ContextVar[Clock | None]" = ContextVar("testgrad_clock", default=None)
"""The clock that measures what is done in this context."""


@contextmanager
def waiting() -> Iterator[None]:
    """Tell whoever measures that from here to the end of the context there is nothing but a queue."""
    clock = CLOCK.get()
    if clock is None:
        yield
        return
    with clock.stopped():
        yield


@asynccontextmanager
async def in_turn(semaphore: asyncio.Semaphore) -> AsyncIterator[None]:
    """`async with semaphore`, with the wait for it told as such."""
    with waiting():
        await semaphore.acquire()
    try:
        yield
    finally:
        semaphore.release()
