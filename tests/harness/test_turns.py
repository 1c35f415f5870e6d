"""One piece of work for each turn of the event loop."""

import asyncio
from collections import Counter

from harness.turns import turn_of_loop


async def in_turns(pieces):
    """How many of the pieces were done in each turn of the loop, from the first on, and in which order."""
    loop, turn, counted, order = asyncio.get_running_loop(), 0, Counter(), []

    def count_turn():
        nonlocal turn
        turn += 1
        loop.call_soon(count_turn)

    async def piece(number):
        await turn_of_loop()
        counted[turn] += 1
        order.append(number)

    count_turn()
    await asyncio.wait_for(asyncio.gather(*map(piece, range(pieces))), 30)
    return counted, order


async def test_all_are_let_through_in_order_and_no_two_in_one_turn():
    for _ in range(2):  # and it is open again afterwards
        counted, order = await in_turns(50)
        assert set(counted.values()) == {1}
        assert order == list(range(50))


async def test_who_waits_alone_does_not_wait():
    for _ in range(3):
        waiting = turn_of_loop()
        try:
            waiting.send(None)
        except StopIteration:
            pass
        else:
            raise AssertionError("it waited")
        await asyncio.sleep(0)
        await asyncio.sleep(0)


async def test_who_gives_up_keeps_nobody_waiting():
    async def piece(done):
        await turn_of_loop()
        done.append(1)

    done = []
    tasks = [asyncio.create_task(piece(done)) for _ in range(6)]
    await asyncio.sleep(0)
    for task in tasks[1:5]:
        task.cancel()
    await asyncio.wait_for(asyncio.gather(*tasks, return_exceptions=True), 30)
    assert len(done) == 2
    await asyncio.wait_for(turn_of_loop(), 30)


def test_each_loop_has_its_own():
    for _ in range(2):
        counted, _ = asyncio.run(in_turns(5))
        assert set(counted.values()) == {1}
