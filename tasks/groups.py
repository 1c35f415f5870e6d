"""Concurrent work inside a Prefect task, with the error that people and retry policies can read."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


@asynccontextmanager
async def task_group() -> AsyncIterator[asyncio.TaskGroup]:
    """`asyncio.TaskGroup` that raises its first failure itself: a group of errors has not its type, nor its message."""
    try:
        async with asyncio.TaskGroup() as group:
            yield group
    except BaseExceptionGroup as errors:
        raise first_leaf(errors) from errors


def first_leaf(error: BaseException) -> BaseException:
    """The first error that is no group."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error
