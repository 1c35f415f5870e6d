"""Work in threads that cancelling does not leave behind."""

import asyncio
import threading

import pytest

from tasks.groups import to_the_end


async def test_a_cancelled_caller_waits_for_what_its_thread_still_does():
    begun, go_on, written = threading.Event(), threading.Event(), []

    def write(what):
        begun.set()
        go_on.wait(60)
        written.append(what)

    calling = asyncio.create_task(to_the_end(write, "trial"))
    await asyncio.to_thread(begun.wait, 60)
    calling.cancel()
    await asyncio.sleep(0.01)
    assert not calling.done() and not written
    go_on.set()
    with pytest.raises(asyncio.CancelledError):
        await calling
    assert written == ["trial"]


async def test_results_and_errors_are_the_functions_own():
    assert await to_the_end(max, 1, 2) == 2
    with pytest.raises(ZeroDivisionError):
        await to_the_end(lambda: 1 / 0)
