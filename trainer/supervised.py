"""Supervised learning by the learner of reinforcement learning: a batch in which every advantage is 1.

The policy gradient -A log pi of `reinforce` is then the negative log-likelihood of the tokens with loss mask 1, divided
by their number over the whole batch. Packing, ZeRO-3, checkpoints and replay are those of any update.
"""

import dataclasses
from collections.abc import Mapping, Sequence

import numpy as np
import pyarrow as pa

from trainer.algorithms.config import AlgorithmConfig
from trainer.algorithms.rollout_correction.config import RolloutCorrectionConfig
from trainer.batch import BatchRow, make_batch, sampled_lengths, with_advantages
from trainer.rollout import Rollout, RolloutError

# What the engine thought of a token plays no part: the data may be another policy's, or nobody's.
ALGORITHM = AlgorithmConfig(
    policy_loss="reinforce",
    loss_agg="token-mean",
    rollout_correction=RolloutCorrectionConfig(mode="off", weights="none"),
)

TEMPERATURE = 1.0
"""Of the distribution whose likelihood is raised: the model's own."""


def supervised_batch(rollouts: Sequence[Rollout]) -> pa.Table:
    """A batch that trains exactly the sampled tokens of `rollouts`, each with the same weight.

    Rollouts of a task become a group, so that the learner computes what their prompts share once.

    Raises:
        RolloutError: nothing was sampled in a rollout, or a segment is there twice.
    """
    for rollout in rollouts:
        if not rollout.response_length:
            raise RolloutError(f"{rollout.session_id}: segment {rollout.segment} has no token to learn from")
    batch = make_batch([BatchRow(dataclasses.replace(r, group_id=r.task_id), 1.0, 1.0) for r in rollouts])
    return with_advantages(batch, np.ones(sampled_lengths(batch).sum(), dtype=np.float32))


def steps_per_epoch(trajectories: int, batch_size: int) -> int:
    """Optimizer steps that go over all trajectories once; the last may have fewer."""
    return -(-trajectories // batch_size)


def sessions_of_step(sessions: Sequence[str], step: int, batch_size: int, seed: int) -> list[str]:
    """Which trajectories step `step` (from 1) learns from: each epoch is another order, by seed and epoch alone."""
    per_epoch = steps_per_epoch(len(sessions), batch_size)
    epoch, place = divmod(step - 1, per_epoch)
    order = np.random.default_rng([seed, epoch]).permutation(len(sessions))
    known = sorted(sessions)
    return [known[i] for i in order[place * batch_size : (place + 1) * batch_size]]


def loss_metrics(metrics: Mapping[str, float]) -> dict[str, float]:
    """Of an update's metrics those that mean something here; none compares with an engine."""
    names = {"actor/pg_loss": "train/loss", "actor/entropy": "train/entropy"}
    kept = ("actor/grad_norm", "actor/lr", "actor/skipped_steps", "actor/update_tokens")
    return {new: metrics[old] for old, new in names.items() if old in metrics} | {
        name: metrics[name] for name in kept if name in metrics
    }
