"""Pieces of work that take milliseconds take turns: one for each turn of the event loop.

When thousands of trials begin or end at once, all that is ready would be done in one turn of the loop, and timeouts,
heartbeats and everything short would wait for seconds. So long pieces wait in a queue, and the loop does not.
"""

import asyncio
from collections import deque
from weakref import WeakKeyDictionary


async def turn_of_loop() -> None:
    """Return when the caller may compute for some milliseconds: in a turn of the loop in which nobody else was told so.

    In the order in which it was asked for; at once if nobody waits.
    """
    loop = asyncio.get_running_loop()
    if loop not in _gates:
        _gates[loop] = _Gate()
    await _gates[loop].passed()


class _Gate:
    def __init__(self) -> None:
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._open = True

    async def passed(self) -> None:
        loop = asyncio.get_running_loop()
        if self._open:
            self._open = False
            loop.call_soon(self._next, loop)
            return
        waiter = loop.create_future()
        self._waiting.append(waiter)
        await waiter

    def _next(self, loop: asyncio.AbstractEventLoop) -> None:
        """Runs in the turn after one in which somebody was let through."""
        while self._waiting:
            waiter = self._waiting.popleft()
            if not waiter.done():  # it was not cancelled
                waiter.set_result(None)
                loop.call_soon(self._next, loop)
                return
        self._open = True


_gates: WeakKeyDictionary[asyncio.AbstractEventLoop, _Gate] = WeakKeyDictionary()
