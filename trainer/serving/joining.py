"""Room for replicas that join a run: they take what is free, and nobody waits for what is not."""

import asyncio
from collections.abc import Callable, Container, Iterable
from typing import Any

from trainer.nodes import ROLLOUT, demand

ROOM_SECONDS = 60.0
"""How long the cluster may take to say that there is room: one that grows by demand needs a while."""
PLACE_SECONDS = 120.0
"""How long an actor may take to begin where there was room just now."""


async def find_or_place(
    numbers: Iterable[int], start: Callable[[int], tuple[Any, bool]], gpus: float, up: Container[int] = ()
) -> dict[int, tuple[Any, bool]]:
    """Actors of replicas by number, and whether they are new, as far as the cluster has room for them.

    Args:
        start: Finds the actor of a number, or starts it.
        gpus: What each of them takes; 0 on CPUs, where there always is room.
        up: Those that have their room already.
    """
    placed: dict[int, tuple[Any, bool]] = {}
    for number in numbers:
        if number not in up and not await has_room(gpus):
            break
        actor, is_new = start(number)
        if is_new and not await _begins(actor):
            break
        placed[number] = actor, is_new
    return placed


async def has_room(gpus: float) -> bool:
    """Whether a node for trials has so many GPUs free, or is given them while we wait.

    An actor that waits for its place is found by its name like all others, and who asks it hangs. So something nameless
    is placed first.
    """
    if not gpus:
        return True
    import ray

    options = {"num_cpus": 0, "num_gpus": gpus, "resources": demand(ROLLOUT), "max_retries": 0}
    room = ray.remote(_take_nothing).options(**options).remote()
    try:
        await asyncio.wait_for(room, ROOM_SECONDS)
    except TimeoutError:
        return False
    finally:
        ray.cancel(room)
    return True


async def _begins(actor: Any) -> bool:
    """Whether an actor is placed. If not, or if nobody waits for the answer, it is given up."""
    import ray

    try:
        await asyncio.wait_for(actor.standing.remote(), PLACE_SECONDS)
    except TimeoutError:
        ray.kill(actor)
        return False
    except BaseException:
        ray.kill(actor)
        raise
    return True


def _take_nothing() -> None:
    """Stands in for a replica while room is looked for."""
