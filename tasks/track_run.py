"""The MLflow run of a training run: begun before the first step, ended after the last."""

import asyncio
from typing import Any

from prefect import task
from prefect.cache_policies import NO_CACHE

from tasks.run import RunRef
from tasks.tracking import Tracker, flat


@task(name="start_tracking", cache_policy=NO_CACHE, retries=2, retry_delay_seconds=2)
async def start_tracking(run: RunRef, config: dict[str, Any]) -> str:
    """Create or reopen the run with its parameters and config. Returns its MLflow id."""
    tracker = await asyncio.to_thread(Tracker.open, run)
    await asyncio.to_thread(tracker.start, flat(config), run.journal.root / "config.json")
    return tracker.run_id


async def end_tracking(run: RunRef, status: str) -> None:
    """Mark the run as `FINISHED`, `FAILED` or `KILLED`."""
    tracker = await asyncio.to_thread(Tracker.open, run)
    await asyncio.to_thread(tracker.end, status)
