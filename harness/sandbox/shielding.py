"""Work that cancellation does not shorten: what it makes, or removes, must not be left half done."""

import asyncio
import logging
from collections.abc import Coroutine
from typing import Any, TypeVar

_log = logging.getLogger(__name__)

T = TypeVar("T")


async def to_its_end(work: Coroutine[Any, Any, T]) -> T:
    """The result of `work`, which goes on to its end although the caller be cancelled; that is raised after it."""
    task = asyncio.ensure_future(work)
    cancelled: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.wait([task])
        except asyncio.CancelledError as error:
            cancelled = error
    if cancelled is not None:
        if not task.cancelled() and task.exception() is not None:
            _log.warning("while being cancelled: %s", task.exception())
        raise cancelled
    return task.result()
