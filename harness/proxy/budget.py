"""A bound on how much of a session's requests is held in memory at once."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


class ByteBudget:
    """`limit` bytes, lent to whoever holds a request's body; who finds too few left waits."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._held = 0
        self._room = asyncio.Event()

    @asynccontextmanager
    async def held(self, size: int) -> AsyncIterator[None]:
        """Hold `size` bytes, or all there are if it is more."""
        size = min(size, self.limit)
        while self._held + size > self.limit:
            self._room.clear()
            await self._room.wait()
        self._held += size
        try:
            yield
        finally:
            self._held -= size
            self._room.set()
