"""Stage 7 of a step: the replicas serve the new weights, verified."""

import time
from typing import Any

from prefect import task

from tasks.journal import JournalError, write_json
from tasks.policy import staged
from tasks.run import RunRef
from trainer.learner.group import LearnerGroup
from trainer.serving.config import ServingConfig
from trainer.serving.pool import ReplicaPool


@task(**staged("sync_weights"))
async def sync_weights(run: RunRef, label: str, step: int, serving: ServingConfig) -> dict[str, Any]:
    """Bring the replicas to weight version `step`. Returns version, fingerprint and seconds."""
    done = await bring_to_version(run, step, serving)
    write_json(run.journal.stage_dir(label) / "sync.json", done)
    return done


async def bring_to_version(run: RunRef, version: int, serving: ServingConfig) -> dict[str, Any]:
    """Sync the learner's weights to all replicas, unless they serve that version already.

    Raises:
        JournalError: the learner is at another version.
    """
    started = time.monotonic()
    learner, replicas = LearnerGroup.attach(run.name), ReplicaPool.attach(run.name)
    updates = await learner.updates()
    if updates != version:
        raise JournalError(f"weight version {version} was to be served, but the learner has applied {updates} updates")
    fingerprint = None
    if version == 0 or any(have != version for have in await replicas.versions()):
        fingerprint = await learner.send_weights(version, replicas.actors, serving.dtype, serving.bucket_mib * 2**20)
    await replicas.require_version(version)
    return {"version": version, "fingerprint": fingerprint, "seconds": time.monotonic() - started}
