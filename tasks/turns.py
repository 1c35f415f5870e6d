"""Whose turn it is on GPUs that learner and replicas share; where each has its own, nothing moves."""

from tasks.run import RunRef
from trainer.colocation import Metrics, learner_turn, replicas_turn
from trainer.learner.group import LearnerGroup
from trainer.serving.config import ServingConfig
from trainer.serving.pool import ReplicaPool


async def turn_of_learner(run: RunRef, serving: ServingConfig) -> Metrics:
    """Before anything that needs the learner's weights. Returns metrics of memory and time, none if nothing moved."""
    if not serving.colocated:
        return {}
    return await learner_turn(LearnerGroup.attach(run.name), ReplicaPool.attach(run.name))


async def turn_of_replicas(run: RunRef, serving: ServingConfig) -> Metrics:
    """Before anything is sampled. Returns what `turn_of_learner` does."""
    if not serving.colocated:
        return {}
    return await replicas_turn(LearnerGroup.attach(run.name), ReplicaPool.attach(run.name))
