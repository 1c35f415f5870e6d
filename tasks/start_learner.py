"""Before a warm start's first step: the learner alone, where the journal says it is; nothing is sampled here."""

import time
from pathlib import Path

from prefect import task
from prefect.cache_policies import NO_CACHE

from tasks.progress import Event, emit
from tasks.reattach import claim, end_unfit_learner
from tasks.recover import restore_learner
from tasks.run import RunRef
from trainer.learner.config import LearnerConfig
from trainer.learner.group import LearnerGroup
from trainer.supervised import ALGORITHM, TEMPERATURE


@task(name="start_learner", cache_policy=NO_CACHE, retries=1, retry_delay_seconds=5)
async def start_learner(run: RunRef, model: Path, learner: LearnerConfig) -> int:
    """Boot the learner, or find it, and restore the journaled updates. Returns their number.

    Raises:
        JournalError: an update is missing, or its replay gives other weights.
    """
    started = time.monotonic()
    await claim(run)
    await end_unfit_learner(run, model, learner, ALGORITHM)
    emit(Event("note", "", "starting the learner (DeepSpeed)"))
    await LearnerGroup.start(run.name, model, learner, ALGORITHM)
    done = await restore_learner(run, TEMPERATURE)
    emit(Event("note", "", f"the learner is up after {time.monotonic() - started:.0f} s, at update {done}"))
    return done
