"""After the last step of a warm start: the policy as a Hugging Face folder."""

import asyncio
from pathlib import Path

from prefect import task

from tasks.policy import staged
from tasks.run import RunRef
from trainer.learner.checkpoint import list_checkpoints
from trainer.learner.export import export_checkpoint


@task(**staged("export_policy"))
async def export_policy(run: RunRef, label: str) -> Path:
    """Write the newest checkpoint to model/ in the run's folder, complete or not at all, and verified."""
    target = run.journal.root / "model"
    if not target.is_dir():
        await asyncio.to_thread(export_checkpoint, list_checkpoints(run.journal.checkpoints)[-1].path, target)
    return target
