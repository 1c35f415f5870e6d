"""Learner and replicas on the same GPUs: they take turns, in an order that every one of them checks for itself.

The learner's turn:   replicas sleep (weights to host memory, KV cache gone) -> the learner reloads.
The replicas' turn:   the learner trims its memory -> replicas wake their weights -> are synced, if the learner has
                      newer ones -> the learner offloads -> replicas wake their KV cache.

Weights and optimizer of the learner are never on a device together with a KV cache. Between turns nothing is held back:
whoever finds that it is its turn already does nothing.
"""

import time
from collections.abc import Awaitable, Callable

from trainer.learner.group import LearnerGroup
from trainer.serving.errors import PhaseError
from trainer.serving.phases import Memory
from trainer.serving.pool import ReplicaPool

Metrics = dict[str, float]
GIB = 2**30


async def learner_turn(learner: LearnerGroup, replicas: ReplicaPool) -> Metrics:
    """Give the GPUs to the learner. Returns bytes in use after each move, as `memory_gib/…`, and the seconds taken.

    Raises:
        PhaseError: requests are running, or a sync is not finished.
        LearnerError: ranks are in different states.
    """
    started, metrics = time.monotonic(), Metrics()
    if await learner.resident():
        return metrics
    if await _all_are(replicas, Memory.WEIGHTS):
        # their last turn was interrupted after the learner had left
        await replicas.wake_cache()
    if await _all_are(replicas, Memory.AWAKE):
        metrics["memory_gib/replicas_awake"] = await replicas.memory_used() / GIB
        metrics["memory_gib/replicas_asleep"] = await replicas.sleep() / GIB
    metrics["memory_gib/learner_resident"] = await learner.reload() / GIB
    return metrics | {"timing_s/learner_turn": time.monotonic() - started}


async def replicas_turn(
    learner: LearnerGroup, replicas: ReplicaPool, sync: Callable[[], Awaitable[object]] | None = None
) -> Metrics:
    """Give the GPUs to the replicas; `sync` brings them newer weights on the way. Returns metrics, as `learner_turn`.

    Raises:
        PhaseError, LearnerError: somebody is not where the order wants them.
    """
    started, metrics = time.monotonic(), Metrics()
    if sync is not None:
        metrics |= await learner_turn(learner, replicas)
    resident = await learner.resident()
    if resident and await _all_are(replicas, Memory.AWAKE):
        await replicas.sleep()
    if await _all_are(replicas, Memory.ASLEEP):
        if resident:
            # what the update took for its activations is where the weights have to go
            await learner.trim()
        metrics["memory_gib/replicas_weights"] = await replicas.wake_weights() / GIB
    if sync is not None:
        await sync()
    if resident:
        metrics["memory_gib/learner_offloaded"] = await learner.offload() / GIB
    if not await _all_are(replicas, Memory.AWAKE):
        metrics["memory_gib/replicas_awake"] = await replicas.wake_cache() / GIB
    return metrics | {"timing_s/replicas_turn": time.monotonic() - started}


async def _all_are(replicas: ReplicaPool, memory: Memory) -> bool:
    """Raises PhaseError if some are and some are not: they move together."""
    found = set(await replicas.memories())
    if len(found) > 1:
        raise PhaseError(f"replicas of one run are {' and '.join(sorted(found))}; stop the run and start it again")
    return found == {memory}
