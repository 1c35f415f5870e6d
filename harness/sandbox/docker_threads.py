"""Blocking calls of the engine's client in threads of their own, which asyncio waits for to the end.

A thread cannot be cancelled, and what it makes must not be forgotten: cancelling therefore tells the call to end, and
goes on when it has.
"""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

_THREADS = ThreadPoolExecutor(max_workers=1024, thread_name_prefix="docker")

T = TypeVar("T")


async def in_thread(call: Callable[[], T], on_cancel: Callable[[], None] | None = None) -> T:
    """The result of `call()`. Cancellation calls `on_cancel` at once and propagates when `call` has returned."""
    future = asyncio.get_running_loop().run_in_executor(_THREADS, call)
    cancelled = False
    while not future.done():
        try:
            await asyncio.wait({future})
        except asyncio.CancelledError:
            cancelled = True
            if on_cancel is not None:
                on_cancel()
    if cancelled:
        if not future.cancelled():
            future.exception()  # looked at, else asyncio complains
        raise asyncio.CancelledError
    return future.result()
