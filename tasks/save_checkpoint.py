"""Between steps: a checkpoint, and its entry in MLflow."""

import asyncio
from pathlib import Path

from prefect import task

from tasks.policy import staged
from tasks.run import RunRef
from tasks.tracking import Tracker
from trainer.learner.checkpoint import prune
from trainer.learner.group import LearnerGroup


@task(**staged("save_checkpoint"))
async def save_checkpoint(run: RunRef, label: str, step: int, keep: int) -> Path:
    """Write checkpoints/global_step_<step> and keep the newest `keep`."""
    path = await LearnerGroup.attach(run.name).save(run.journal.checkpoints)
    await asyncio.to_thread(prune, run.journal.checkpoints, keep)
    await asyncio.to_thread(Tracker.open(run).log_checkpoint, path, step)
    return path
