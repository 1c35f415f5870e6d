"""What a run of the crash matrix imports, wherever its trials run: answers that never waver, and advantages.

The engine takes the likeliest token each time, at the log-probs of temperature 1: a trial that is repeated after a
crash then says what it said before, so that all weights must come out the same. A tiny random model repairs nothing,
and the trials of a group are alike: any estimator that compares them finds no signal. Here one group is encouraged and
the next discouraged.
"""

import dataclasses
from collections.abc import Sequence

import torch

from trainer.algorithms.advantages.base import AdvantageInputs, Advantages
from trainer.algorithms.config import AlgorithmConfig
from trainer.algorithms.registry import ADVANTAGE_ESTIMATORS, register
from trainer.rollout import Generation, Sampling
from trainer.serving.pool import ReplicaPool

_sampled = ReplicaPool.generate


async def _greedy(self: ReplicaPool, prompt_ids: Sequence[int], sampling: Sampling, session_id: str) -> Generation:
    return await _sampled(self, prompt_ids, dataclasses.replace(sampling, temperature=0.0), session_id)


ReplicaPool.generate = _greedy  # type: ignore[method-assign]


@register(ADVANTAGE_ESTIMATORS, "alternate_groups")
def alternate_groups(inputs: AdvantageInputs, config: AlgorithmConfig) -> Advantages:
    """+1 and -1 in turn, by group."""
    return inputs.spread(1.0 - 2.0 * (inputs.group_index % 2).to(torch.float32))
