"""Trials and their grading run side by side and end together."""

import asyncio

import pytest

from flows.step import both


async def value(result):
    await asyncio.sleep(0)
    return result


async def fail():
    await asyncio.sleep(0)
    raise ConnectionError("engine is gone")


async def test_both_results():
    assert await both(value(1), value(2)) == (1, 2)


@pytest.mark.parametrize("first", [True, False])
async def test_a_failure_stops_the_other_and_is_raised(first):
    stopped = asyncio.Event()

    async def forever():
        try:
            await asyncio.Event().wait()
        finally:
            stopped.set()

    with pytest.raises(ConnectionError, match="engine is gone"):
        await (both(fail(), forever()) if first else both(forever(), fail()))
    assert stopped.is_set()


async def test_cancelling_stops_both():
    stopped = []

    async def forever(name):
        try:
            await asyncio.Event().wait()
        finally:
            stopped.append(name)

    running = asyncio.create_task(both(forever("trials"), forever("verdicts")))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert sorted(stopped) == ["trials", "verdicts"]
