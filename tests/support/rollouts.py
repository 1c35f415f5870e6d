"""Makes valid token records in a line."""

import math
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from trainer.batch import BatchRow, make_batch, sampled_lengths, with_advantages
from trainer.learner.samples import TrainSample
from trainer.rollout import NO_VERSION, Outcome, Rollout


def make_rollout(
    session_id: str = "fix-add-00000000",
    group_id: str = "step_000001/fix-add",
    prompt: Sequence[int] = (1, 2, 3),
    turns: Sequence[Sequence[int]] = ((4, 5), (6,)),
    between: Sequence[int] = (7,),
    **changes: Any,
) -> Rollout:
    """A rollout whose sampled `turns` have `between` as the environment's tokens in between; `changes` are fields."""
    ids, mask = list(prompt), [0] * len(prompt)
    for number, turn in enumerate(turns):
        if number:
            ids, mask = [*ids, *between], [*mask, *[0] * len(between)]
        ids, mask = [*ids, *turn], [*mask, *[1] * len(turn)]
    fields: dict[str, Any] = {
        "session_id": session_id,
        "task_id": "fix-add",
        "group_id": group_id,
        "step": 1,
        "outcome": Outcome.COMPLETED,
        "token_ids": ids,
        "loss_mask": mask,
        "logprobs": [-0.5 - i / 8 if m else math.nan for i, m in enumerate(mask)],
        "weight_versions": [0 if m else NO_VERSION for m in mask],
        "prompt_length": len(prompt),
        "num_turns": len(turns),
    }
    return Rollout(**fields | changes)


def batch_of(rollouts: Sequence[Rollout], rewards: Sequence[float] | None = None) -> pa.Table:
    """A batch of these rollouts; every second one is good if no rewards are given."""
    rewards = [float(i % 2) for i in range(len(rollouts))] if rewards is None else rewards
    return make_batch([BatchRow(r, reward, reward) for r, reward in zip(rollouts, rewards, strict=True)])


def make_sample(rollout: Rollout, index: int = 0, advantage: float = 1.0) -> TrainSample:
    """What the learner reads of a rollout, with the same advantage for all tokens."""
    sampled = [i for i, m in enumerate(rollout.loss_mask) if m]
    return TrainSample(
        index=index,
        session_id=rollout.session_id,
        group_id=rollout.group_id,
        token_ids=rollout.token_ids,
        loss_mask=rollout.loss_mask,
        prompt_length=rollout.prompt_length,
        columns={
            "rollout_logprobs": np.array([rollout.logprobs[i] for i in sampled], dtype=np.float32),
            "advantages": np.full(len(sampled), advantage, dtype=np.float32),
        },
    )


def write_batch(path: Path, groups: int = 3, attempts: int = 4, signal: bool = True) -> Path:
    """A batch of rollouts of very unequal lengths, with advantages; every second one is good."""
    rng = random.Random(0)
    rollouts = []
    for group in range(groups):
        prompt = [rng.randrange(256) for _ in range(20 + 10 * group)]
        for number in range(attempts):
            answer = [rng.randrange(256) for _ in range(rng.randrange(1, 60))]
            logprobs = [math.nan] * len(prompt) + [-5.5] * len(answer)
            rollouts.append(make_rollout(f"s{group}-{number}", f"g{group}", prompt, [answer], logprobs=logprobs))
    batch = batch_of(rollouts)
    signs = [(2 * reward - 1) * signal for reward in batch.column("reward").to_pylist()]
    pq.write_table(with_advantages(batch, np.repeat(signs, sampled_lengths(batch))), path)
    return path
