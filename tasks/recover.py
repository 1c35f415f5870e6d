"""At the start of a flow run: bring learner and replicas to where the journal says the run is."""

from prefect import task
from prefect.cache_policies import NO_CACHE

from tasks.journal import JournalError, step_label
from tasks.progress import Event, emit
from tasks.run import RunRef
from tasks.sync_weights import bring_to_version
from trainer.learner.checkpoint import list_checkpoints
from trainer.learner.group import LearnerGroup
from trainer.serving.config import ServingConfig


@task(name="recover", cache_policy=NO_CACHE, retries=0)
async def recover(run: RunRef, temperature: float, serving: ServingConfig) -> int:
    """Load the newest complete checkpoint, replay the journaled updates after it, serve the result.

    No trial runs again: updates are replayed from their journaled batches, and the weights after each must have the
    fingerprint that the journal holds. Returns the number of updates applied.

    Raises:
        JournalError: an update is missing between the checkpoint and the newest, or its replay gives other weights.
    """
    learner = LearnerGroup.attach(run.name)
    journaled = run.journal.finished_steps("update.json")
    newest = max(journaled, default=0)
    done = await learner.updates()
    if done < newest:
        checkpoints = [c for c in list_checkpoints(run.journal.checkpoints) if c.step <= newest]
        if checkpoints and checkpoints[-1].step > done:
            emit(Event("note", "", f"restoring checkpoint {checkpoints[-1].path.name}"))
            done = await learner.load(checkpoints[-1].path)
        await _replay(run, learner, done, newest, temperature)
    await bring_to_version(run, newest, serving)
    return newest


async def _replay(run: RunRef, learner: LearnerGroup, done: int, newest: int, temperature: float) -> None:
    for step in range(done + 1, newest + 1):
        emit(Event("note", "", f"replaying update {step} of {newest} from its journaled batch"))
        known = run.journal.stage(step_label(step), "update.json")
        if known is None:
            raise JournalError(f"update {step} is missing in {run.journal.root}, but update {newest} is there")
        record = await learner.update(step, run.journal.stage_dir(step_label(step)) / "batch.parquet", temperature)
        if record.fingerprint != known["fingerprint"]:
            raise JournalError(
                f"replayed update {step} gave weights {record.fingerprint[:12]}, "
                f"the journal says {known['fingerprint'][:12]}: "
                "another machine kind or library; start a new experiment from a checkpoint"
            )
