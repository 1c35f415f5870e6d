"""Makes valid token records in a line."""

import math
from collections.abc import Sequence
from typing import Any

from trainer.learner.packing import TrainSample
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


def make_sample(rollout: Rollout, index: int = 0, advantage: float = 1.0) -> TrainSample:
    """What the learner reads of a rollout."""
    return TrainSample(
        index=index,
        group_id=rollout.group_id,
        token_ids=rollout.token_ids,
        loss_mask=rollout.loss_mask,
        rollout_logprobs=rollout.logprobs,
        prompt_length=rollout.prompt_length,
        advantage=advantage,
    )
