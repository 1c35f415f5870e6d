"""The places of trial workers, as the flow sees them; real ones run in tests/integration."""

from tasks import trial_workers as module
from tasks.trial_workers import TrialWorkers, _Seat


async def test_a_place_whose_worker_does_not_boot_is_tried_again_and_keeps_nobody_waiting(monkeypatch):
    """A run may go on for days in which it would have a node less."""
    monkeypatch.setattr(module, "AGAIN_SECONDS", 0.01)
    seat, seen = _Seat("node", 8), []
    workers = TrialWorkers(None, [seat])

    async def boot(place):
        seen.append(place.booting)
        if len(seen) < 5:
            raise TimeoutError
        place.actor = "worker"

    async def sleep(seconds):
        seen.append(seat.booting)

    monkeypatch.setattr(workers, "_boot", boot)
    monkeypatch.setattr(module.asyncio, "sleep", sleep)
    await workers._boot_again(seat)
    assert seat.actor == "worker" and not seat.booting
    assert seen == [True, False, True, False, True], "while it rests, whoever waits may learn that no worker is left"
