"""Concurrent work inside a Prefect task, with the error that people and retry policies can read."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


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


async def to_the_end(function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """`asyncio.to_thread`, whose caller is cancelled only once the function has ended: a thread cannot be stopped, and
    what it still writes would be missed by whoever goes on from the journal."""
    running = asyncio.create_task(asyncio.to_thread(function, *args, **kwargs))
    try:
        return await asyncio.shield(running)
    except asyncio.CancelledError:
        await asyncio.wait([running])
        raise


class StepOverdue(ValueError):
    """The trials of a step take longer than the run gives them."""


@asynccontextmanager
async def due_within(seconds: float | None, so_far: Callable[[], str]) -> AsyncIterator[None]:
    """Cancel the block after so many seconds; None for never.

    Raises:
        StepOverdue: it was cancelled. `so_far` tells how far it had come.
    """
    try:
        async with asyncio.timeout(seconds) as limit:
            yield
    except TimeoutError as error:
        if not limit.expired():
            raise
        raise StepOverdue(
            f"{so_far()} after {seconds:g} s, all that rollout.step_timeout gives them. Where one hangs, testgrad "
            "status says what it does; raise rollout.step_timeout if they are merely slow. The same names go on: "
            "trials that have ended stay, and the others get as long again"
        ) from error
