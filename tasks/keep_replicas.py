"""While trials run: a replica that dies is started again beside them.

Its sessions have gone on with others meanwhile. It serves nothing before the next sync of weights, which finds it among
the others. The only replica of a run is none of these: trials cannot go on without it, and the run starts it again.
"""

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from tasks.progress import Event, emit
from tasks.run import RunRef
from trainer.placement import end_numbered, find_numbered
from trainer.serving.config import ServingConfig
from trainer.serving.pool import ReplicaPool, boots_of

PERIOD = 15.0
"""Seconds between two looks."""

_log = logging.getLogger(__name__)


@asynccontextmanager
async def replicas_kept(run: RunRef, serving: ServingConfig) -> AsyncIterator[None]:
    """A block in which replicas that die are replaced."""
    if serving.replicas == 1 or serving.colocated:
        yield
        return
    keeping = asyncio.create_task(_keep(run, serving))
    try:
        yield
    finally:
        # a boot that is under way comes to its end without us
        keeping.cancel()
        await asyncio.wait({keeping})


async def _keep(run: RunRef, serving: ServingConfig) -> None:
    while True:
        await asyncio.sleep(PERIOD)
        try:
            await replace_dead(run.name, serving)
        except Exception as error:  # trials go on with those that are left
            _log.warning("replicas of %s: %s", run.name, error)


async def replace_dead(run_name: str, serving: ServingConfig) -> list[int]:
    """Boot a replica in the place of each that is dead, or whose engine is. Returns their numbers.

    One that merely takes long to answer is left alone: it may have much to do.
    """
    told = await boots_of(run_name)
    dead = [
        number for number, boot in told.items() if isinstance(boot, Exception) and not isinstance(boot, TimeoutError)
    ]
    await end_numbered(f"{run_name}/replica", dead)
    missing = sorted(set(range(serving.replicas)) - find_numbered(f"{run_name}/replica").keys())
    known = next((boot for boot in told.values() if not isinstance(boot, Exception)), None)
    if missing and known is not None:
        emit(Event("note", "", f"replica {', '.join(map(str, missing))} died, and is started again beside the trials"))
        await ReplicaPool.start_again(run_name, known, missing)
    return missing
