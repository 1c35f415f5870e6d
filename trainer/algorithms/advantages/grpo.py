"""Group Relative Policy Optimization: a rollout's reward against the other attempts at the same task.

Shao et al., DeepSeekMath, 2024 (arXiv:2402.03300). Without the division by the standard deviation it is Dr.GRPO,
Liu et al., 2025 (arXiv:2503.20783).
"""

from collections.abc import Sequence

import numpy as np
from jaxtyping import Float

from trainer.algorithms.registry import ADVANTAGE_ESTIMATORS, register

EPSILON = 1e-6


@register(ADVANTAGE_ESTIMATORS, "grpo")
def grpo(
    rewards: Float[np.ndarray, " rollouts"], group_ids: Sequence[str], norm_by_std: bool = True
) -> Float[np.ndarray, " rollouts"]:
    """A = (r - mean_group) / (std_group + 1e-6), with the unbiased standard deviation.

    A group whose rewards are all equal, a group of one among them, gets exactly 0: it says nothing about the policy.

    Raises:
        ValueError: a reward that is not finite.
    """
    rewards = np.asarray(rewards, dtype=np.float64)
    if not np.isfinite(rewards).all():
        raise ValueError(f"rewards must be finite, got {rewards[~np.isfinite(rewards)][:3]}")
    members: dict[str, list[int]] = {}
    for i, group_id in enumerate(group_ids):
        members.setdefault(group_id, []).append(i)
    advantages = np.zeros_like(rewards)
    for rows in members.values():
        group = rewards[rows]
        if len(rows) < 2 or (group == group[0]).all():
            continue
        scale = group.std(ddof=1) + EPSILON if norm_by_std else 1.0
        advantages[rows] = (group - group.mean()) / scale
    return advantages
