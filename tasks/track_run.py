"""The MLflow run of a training run: begun before the first step, ended after the last."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from prefect import task
from prefect.cache_policies import NO_CACHE

from tasks.progress import Event, emit
from tasks.run import RunRef
from tasks.tracking import Tracker, flat


@task(name="start_tracking", cache_policy=NO_CACHE, retries=2, retry_delay_seconds=2)
async def start_tracking(run: RunRef, config: dict[str, Any]) -> str:
    """Create or reopen the run with its parameters and config. Returns its MLflow id."""
    tracker = await asyncio.to_thread(Tracker.open, run)
    await asyncio.to_thread(tracker.start, flat(config), run.journal.root / "config.json")
    return tracker.run_id


@asynccontextmanager
async def tracked(run: RunRef, config: dict[str, Any]) -> AsyncIterator[None]:
    """In MLflow the run is at work within the block, and afterwards it has ended as the block did."""
    await start_tracking(run, config)
    status = "KILLED"
    try:
        yield
        status = "FINISHED"
    except Exception:
        status = "FAILED"
        raise
    finally:
        await end_tracking(run, status)


async def end_tracking(run: RunRef, status: str) -> None:
    """Mark the run as `FINISHED`, `FAILED` or `KILLED`. A server that is away is told, and nothing is raised.

    It is called as a run ends: an error here would hide the one that ended it, and leave its engines on their GPUs.
    """

    def mark() -> None:
        Tracker.open(run).end(status)

    try:
        await asyncio.to_thread(mark)
    except Exception as error:
        emit(Event("note", "", f"MLflow does not know that the run is {status} ({type(error).__name__}: {error})"))
