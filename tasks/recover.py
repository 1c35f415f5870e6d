"""At the start of a flow run: bring learner and replicas to where the journal says the run is."""

import asyncio
import math
from collections.abc import Mapping
from typing import Any

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
from trainer.serving.pool import ReplicaPool


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
    if serving.colocated:
        # what a flow that was killed had asked for would keep the replicas awake
        await ReplicaPool.attach(run.name).drop_requests()
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
    where = await astray(run, learner, done, newest)
    for name in await asyncio.to_thread(remove_garbage, run.journal.checkpoints):
        emit(Event("note", "", f"removed {name}, which was never finished"))
    if done != newest or where:
        checkpoints = [c for c in list_checkpoints(run.journal.checkpoints) if c.step <= newest]
        if checkpoints and (where or checkpoints[-1].step > done):
            emit(Event("note", "", f"restoring checkpoint {checkpoints[-1].path.name}"))
            await asyncio.to_thread(_require_sampler, run, checkpoints[-1], sampler)
            done = await learner.load(checkpoints[-1].path)
        elif where:
            raise JournalError(
                f"the learner that is alive {where}, the journal at {newest}, and no checkpoint leads back; "
                "stop the run and start it again: a new learner replays the journal"
            )
        await _replay(run, learner, done, newest, temperature)
    return newest


async def astray(run: RunRef, learner: LearnerGroup, done: int, newest: int) -> str | None:
    """Where a learner that outlived its run is, if not at an update of the journal.

    Weights are compared where they are at hand: those of one that is offloaded when it has had its turn, in `recover`.
    """
    if done < 0:
        return "is in the middle of an update that failed"
    if done > newest:
        return f"is at update {done}"
    known = run.journal.stage(step_label(done), "update.json") if done else None
    if known is None or not await learner.resident():
        return None
    if await learner.fingerprint() != known["fingerprint"]:
        return f"is at update {done} with other weights"  # a replay, which was refused
    return None


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
    """Apply the journaled updates from `done` on. The journal is only changed if all of them were as it says."""
    made_anew: dict[int, dict[str, Any]] = {}
    ranks = len(learner.actors)
    for step in range(done + 1, newest + 1):
        emit(Event("note", "", f"replaying update {step} of {newest} from its journaled batch"))
        known = run.journal.stage(step_label(step), "update.json")
        if known is None:
            raise JournalError(f"update {step} is missing in {run.journal.root}, but update {newest} is there")
        batch = run.journal.stage_dir(step_label(step)) / "batch.parquet"
        record = await learner.update(step, batch, temperature, known.get("lr_total_steps"))
        if record.fingerprint == known["fingerprint"] and record.adapters == known.get("adapters", record.adapters):
            continue
        # an update goes on from one that was rounded otherwise, or is rounded otherwise itself
        others = bool(made_anew) or known.get("ranks", ranks) != ranks
        if not others or not _same_but_for_rounding(record.metrics, known["metrics"]):
            raise JournalError(
                f"replayed update {step} gave weights {record.fingerprint[:12]}, "
                f"the journal says {known['fingerprint'][:12]}: "
                "another machine kind or library; start a new experiment from a checkpoint"
            )
        before = {"fingerprint": known["fingerprint"], "ranks": known.get("ranks", ranks)}
        made_anew[step] = known | record.to_json() | {"ranks": ranks, "earlier": [*known.get("earlier", []), before]}
        text = f"update {step} was made by {before['ranks']} ranks, and is now by {ranks}: sums in another order"
        emit(Event("note", "", text))
    for step, again in made_anew.items():
        write_json(run.journal.stage_dir(step_label(step)) / "update.json", again)


_EXACT = ("actor/lr", "actor/update_tokens", "actor/skipped_steps")
_ROUNDED = ("actor/grad_norm", "critic/grad_norm")
"""Metrics of an update that are the same on any number of ranks, and those that are but for rounding."""


def _same_but_for_rounding(now: Mapping[str, float], then: Mapping[str, float]) -> bool:
    """Whether two runs of an update, on different numbers of ranks, took the same steps with the same gradient."""
    if any(now.get(name) != then.get(name) for name in _EXACT):
        return False
    # an update that took no step has no norm
    norms = [(now.get(name), then.get(name)) for name in _ROUNDED]
    return all(one == other or (one and other and math.isclose(one, other, rel_tol=0.02)) for one, other in norms)
