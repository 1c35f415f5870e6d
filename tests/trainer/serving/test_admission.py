"""Who waits before a full replica, and who does not."""

import asyncio

import pytest

from trainer.serving.admission import Admission, AdmissionConfig


class Door:
    """An admission with a clock and caches that a test turns by hand."""

    def __init__(self, **settings):
        self.now, self.full, self.asked = 0.0, {}, 0
        config = AdmissionConfig(**{"look_seconds": 0.001} | settings)
        self.admission = Admission(config, self.usage, clock=lambda: self.now)

    async def usage(self, replica):
        self.asked += 1
        return self.full.get(replica)

    async def waits(self, session, tokens, replica="one"):
        try:
            await asyncio.wait_for(self.admission.admit(replica, session, tokens), 0.02)
        except TimeoutError:
            return True
        return False


@pytest.mark.parametrize(("usage", "waits"), [(0.0, False), (0.84, False), (0.85, True), (1.0, True), (None, False)])
async def test_a_new_session_waits_before_a_replica_that_is_full(usage, waits):
    door = Door()
    door.full["one"] = usage
    assert await door.waits("s", 100) is waits
    assert (door.admission.waits > 0) is waits


async def test_who_waits_is_let_in_once_there_is_room():
    door = Door()
    door.full["one"] = 0.9
    waiting = asyncio.create_task(door.admission.admit("one", "s", 100))
    await asyncio.sleep(0.01)
    assert not waiting.done()
    door.full["one"] = 0.5
    await asyncio.wait_for(waiting, 1)


async def test_a_session_keeps_its_place_for_a_while_after_an_answer():
    door = Door(lease_seconds=60)
    await door.admission.admit("one", "s", 100)
    door.admission.answered("one", "s", 150)
    door.full["one"], door.now = 1.0, 59.0
    assert not await door.waits("s", 5000)
    door.admission.answered("one", "s", 150)
    door.now = 59.0 + 61.0
    assert await door.waits("s", 5000)


async def test_a_prompt_that_is_mostly_cached_costs_little():
    door = Door(lease_seconds=0)
    door.admission.answered("one", "s", 800)
    door.full.update(one=1.0, other=1.0)
    door.now = 1.0
    assert not await door.waits("s", 1000)
    door.admission.answered("one", "s", 800)
    door.now = 2.0
    assert await door.waits("s", 1001)
    assert await door.waits("s", 1000, replica="other"), "its prefix is in another cache"


async def test_a_session_that_has_ended_has_no_place():
    door = Door()
    door.admission.answered("one", "s", 800)
    door.admission.release("s")
    door.full["one"] = 1.0
    assert await door.waits("s", 800)
