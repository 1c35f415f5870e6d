"""Concurrent work ends as a whole."""

import asyncio

import pytest

from harness.pool.together import together


async def test_results_come_in_order():
    async def after(turns, value):
        for _ in range(turns):
            await asyncio.sleep(0)
        return value

    assert await together([after(3, "a"), after(1, "b")]) == ["a", "b"]


async def test_one_failure_ends_the_others_and_is_raised_as_it_is():
    ended = []

    async def endless():
        try:
            await asyncio.Event().wait()
        finally:
            ended.append(True)

    async def failing():
        await asyncio.sleep(0)
        raise KeyError("gone")

    with pytest.raises(KeyError, match="gone"):
        await together([endless(), failing()])
    assert ended == [True]
