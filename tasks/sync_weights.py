"""Stage 7 of a step: the replicas serve the new weights, verified."""

import asyncio
import time
from collections.abc import Awaitable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from prefect import task

from tasks.journal import JournalError, write_json
from tasks.policy import staged
from tasks.run import RunRef
from trainer.colocation import replicas_turn
from trainer.learner.group import LearnerGroup
from trainer.serving.buckets import WeightSyncError
from trainer.serving.config import ServingConfig
from trainer.serving.pool import ReplicaPool

T = TypeVar("T")

_syncing: set[str] = set()
"""Runs whose weights are on their way, in this process."""


@task(**staged("sync_weights"))
async def sync_weights(run: RunRef, label: str, step: int, serving: ServingConfig) -> dict[str, Any]:
    """Bring the replicas to weight version `step`. Returns version, fingerprint, seconds and metrics."""
    done = await bring_to_version(run, step, serving)
    write_json(run.journal.stage_dir(label) / "sync.json", done)
    return done


async def bring_to_version(run: RunRef, version: int, serving: ServingConfig) -> dict[str, Any]:
    """Sync the learner's weights to all replicas that stay, unless they serve that version already.

    One that leaves finishes its turns with the weights that it has; one that has booted meanwhile serves from now on.
    Replicas that share the learner's GPUs are awake afterwards, and the learner is offloaded.

    Raises:
        JournalError: the learner is at another version.
        WeightSyncError: the sync did not end in time, or replicas hold other weights; they serve nothing then.
    """
    with _sync_under_way(run.name):
        return await _bring_to_version(run, version, serving)


def sync_under_way(run_name: str) -> bool:
    """Whether replicas are being asked to take weights: none of them may end now, or the sync would fail."""
    return run_name in _syncing


@contextmanager
def _sync_under_way(run_name: str) -> Iterator[None]:
    _syncing.add(run_name)
    try:
        yield
    finally:
        _syncing.discard(run_name)


async def _bring_to_version(run: RunRef, version: int, serving: ServingConfig) -> dict[str, Any]:
    started = time.monotonic()
    learner = LearnerGroup.attach(run.name)
    # a learner whose sync hangs answers nothing
    updates = await _in_time(learner.updates(), version, serving)
    if updates != version:
        raise JournalError(f"weight version {version} was to be served, but the learner has applied {updates} updates")
    replicas = await _in_time(ReplicaPool.attach_staying(run.name), version, serving)
    fingerprint: str | None = None

    async def sync() -> None:
        nonlocal fingerprint
        fingerprint = await _in_time(learner.send_weights(version, replicas.actors, serving), version, serving)

    due = version == 0 or any(have != version for have in await replicas.versions())
    metrics: dict[str, float] = {}
    if serving.colocated:
        metrics = await replicas_turn(learner, replicas, sync if due else None)
    elif due:
        await sync()
        frozen = float(await replicas.frozen())
        metrics = {"sync/frozen_requests": frozen, "sync/kv_kept": float(serving.kv_after_sync == "keep")}
    await replicas.require_version(version)
    metrics["rollout/replicas"] = float(len(replicas.actors))
    seconds = time.monotonic() - started
    return {"version": version, "fingerprint": fingerprint, "seconds": seconds, "metrics": metrics}


async def _in_time(answer: Awaitable[T], version: int, serving: ServingConfig) -> T:
    try:
        return await asyncio.wait_for(answer, serving.sync_timeout)
    except TimeoutError:
        raise WeightSyncError(
            f"version {version} was not there after serving.sync_timeout of {serving.sync_timeout:g} s; "
            "see the logs of learner and replicas, or raise the limit"
        ) from None
