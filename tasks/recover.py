"""At the start of a flow run: bring learner and replicas to where the journal says the run is."""

import asyncio
import math
from collections.abc import Mapping

from prefect import task
from prefect.cache_policies import NO_CACHE

from harness.pool.sampler import SamplerConfig
from tasks.journal import JournalError, step_label, write_json
from tasks.progress import Event, emit
from tasks.run import RunRef
from tasks.save_checkpoint import SAMPLER, sampler_digest
from tasks.sync_weights import bring_to_version
from tasks.turns import turn_of_learner
from trainer.learner.checkpoint import Checkpoint, list_checkpoints, remove_garbage
from trainer.learner.group import LearnerGroup
from trainer.serving.config import ServingConfig


@task(name="recover", cache_policy=NO_CACHE, retries=0)
async def recover(
    run: RunRef,
    temperature: float,
    serving: ServingConfig,
    sampler: SamplerConfig = SamplerConfig(),  # noqa: B008  (frozen)
) -> int:
    """Load the newest complete checkpoint, replay the journaled updates after it, serve the result.

    No trial runs again: updates are replayed from their journaled batches, and the weights after each must have the
    fingerprint that the journal holds; on another number of ranks than then, the same gradient but for rounding.
    Returns the number of updates applied.

    Raises:
        JournalError: an update is missing between the checkpoint and the newest, or its replay gives other weights.
    """
    await turn_of_learner(run, serving)
    newest = await restore_learner(run, temperature, sampler)
    await bring_to_version(run, newest, serving)
    return newest


async def restore_learner(
    run: RunRef,
    temperature: float,
    sampler: SamplerConfig = SamplerConfig(),  # noqa: B008  (frozen)
) -> int:
    """Bring the learner to the newest journaled update: the newest complete checkpoint, then replays. Returns it.

    What a save that was killed has left is deleted first.

    Raises:
        JournalError: as `recover` does; or the sampler would not go on as it would have at the time of the checkpoint.
    """
    learner = LearnerGroup.attach(run.name)
    journaled = run.journal.finished_steps("update.json")
    newest = max(journaled, default=0)
    done = await learner.updates()  # which a learner that outlived its run answers once it has saved
    for name in await asyncio.to_thread(remove_garbage, run.journal.checkpoints):
        emit(Event("note", "", f"removed {name}, which was never finished"))
    if done < newest:
        checkpoints = [c for c in list_checkpoints(run.journal.checkpoints) if c.step <= newest]
        if checkpoints and checkpoints[-1].step > done:
            emit(Event("note", "", f"restoring checkpoint {checkpoints[-1].path.name}"))
            await asyncio.to_thread(_require_sampler, run, checkpoints[-1], sampler)
            done = await learner.load(checkpoints[-1].path)
        await _replay(run, learner, done, newest, temperature)
    return newest


def _require_sampler(run: RunRef, checkpoint: Checkpoint, sampler: SamplerConfig) -> None:
    known = checkpoint.notes.get(SAMPLER)
    found = sampler_digest(run, checkpoint.step, sampler)
    if known not in (None, found):
        raise JournalError(
            f"the sampler knows other trials up to step {checkpoint.step} ({found}) than when {checkpoint.path.name} "
            f"was written ({known}): trials are missing in {run.journal.root / 'trials'}, and other tasks would be "
            "drawn; put them back, or start a new experiment"
        )


async def _replay(run: RunRef, learner: LearnerGroup, done: int, newest: int, temperature: float) -> None:
    for step in range(done + 1, newest + 1):
        emit(Event("note", "", f"replaying update {step} of {newest} from its journaled batch"))
        known = run.journal.stage(step_label(step), "update.json")
        if known is None:
            raise JournalError(f"update {step} is missing in {run.journal.root}, but update {newest} is there")
        record = await learner.update(step, run.journal.stage_dir(step_label(step)) / "batch.parquet", temperature)
        if record.fingerprint == known["fingerprint"]:
            continue
        ranks = len(learner.actors)
        if known.get("ranks", ranks) == ranks or not _differ_by_rounding(record.metrics, known["metrics"]):
            raise JournalError(
                f"replayed update {step} gave weights {record.fingerprint[:12]}, "
                f"the journal says {known['fingerprint'][:12]}: "
                "another machine kind or library; start a new experiment from a checkpoint"
            )
        text = f"update {step} was made by {known['ranks']} ranks, and is now by {ranks}: sums in another order"
        emit(Event("note", "", text))
        again = known | {"fingerprint": record.fingerprint, "metrics": record.metrics, "ranks": ranks}
        write_json(run.journal.stage_dir(step_label(step)) / "update.json", again)


def _differ_by_rounding(now: Mapping[str, float], then: Mapping[str, float]) -> bool:
    """Whether two runs of an update, on different numbers of ranks, had the same gradient."""
    return math.isclose(now["actor/grad_norm"], then["actor/grad_norm"], rel_tol=0.02)
