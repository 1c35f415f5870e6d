"""Between steps: a checkpoint, what it makes superfluous, and its entry in MLflow."""

import asyncio
import hashlib
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from prefect import task

from harness.pool.sampler import SamplerConfig
from tasks.policy import staged
from tasks.progress import Event, emit
from tasks.retention import apply_retention
from tasks.run import RunRef
from tasks.sampler_state import state_before
from tasks.tracking import Tracker
from trainer.learner.checkpoint import list_checkpoints
from trainer.learner.group import LearnerGroup
from trainer.learner.retention import Retention

SAMPLER = "sampler"
"""Among a checkpoint's notes: the digest of the sampler's state when it draws the step after."""


@task(**staged("save_checkpoint"))
async def save_checkpoint(
    run: RunRef,
    label: str,
    step: int,
    retention: Retention,
    sampler: SamplerConfig = SamplerConfig(),  # noqa: B008  (frozen)
    asked: asyncio.Event | None = None,
) -> Path:
    """Write checkpoints/global_step_<step>, and delete those that `retention` does not keep.

    `asked` is set once the learner has been asked: it then does nothing else before it has saved.
    """
    notes = {SAMPLER: await asyncio.to_thread(sampler_digest, run, step, sampler)}
    path = await LearnerGroup.attach(run.name).save(run.journal.checkpoints, step, notes, asked)
    await asyncio.to_thread(apply_retention, run.journal, retention)
    await asyncio.to_thread(_enter, run, path, step)
    return path


def sampler_digest(run: RunRef, step: int, sampler: SamplerConfig) -> str:
    """Of what the sampler knows after `step`, by the journal."""
    state = state_before(run, step + 1, sampler)
    return hashlib.sha256(state.to_json().encode()).hexdigest()[:16]


class Saving:
    """At most one checkpoint that is being written while the run goes on with trials.

    The learner writes it itself, and is asked for nothing else meanwhile: an update that comes too early waits. No
    copy of the weights is made, and what is written is what the step left.
    """

    def __init__(self) -> None:
        self._task: asyncio.Task[Any] | None = None

    async def start(self, save: Coroutine[Any, Any, Any], asked: asyncio.Event) -> None:
        """Wait for the one before, then begin `save`. Returns when the learner has been asked, by `asked`."""
        await self.end()
        self._task = asyncio.create_task(save)
        waiting = asyncio.create_task(asked.wait())
        # one that Prefect knows to be done already never asks
        await asyncio.wait([self._task, waiting], return_when=asyncio.FIRST_COMPLETED)
        waiting.cancel()
        self.check()

    def check(self) -> None:
        """Raise what the save raised, if it has failed by now."""
        if self._task is not None and self._task.done():
            done, self._task = self._task, None
            done.result()

    async def end(self) -> None:
        """Wait for it. Raises what it raised."""
        if self._task is not None:
            current, self._task = self._task, None
            await current

    async def stop(self) -> None:
        """Give it up, as the run ends otherwise. What it raised that nobody has heard of is told."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            if not self._task.cancelled() and self._task.exception() is not None:
                emit(Event("note", "", f"the last checkpoint was not written: {self._task.exception()}"))


@asynccontextmanager
async def saving() -> AsyncIterator[Saving]:
    """A block at whose end the last checkpoint has been written."""
    current = Saving()
    try:
        yield current
        await current.end()
    finally:
        await current.stop()


def _enter(run: RunRef, path: Path, step: int) -> None:
    tracker = Tracker.open(run)
    tracker.log_checkpoint(path, step)
    tracker.mark_removed([checkpoint.path for checkpoint in list_checkpoints(run.journal.checkpoints)])
