"""Optimal Token Baseline: at each position, rollouts that have gathered more gradient weigh more in the baseline.

Li et al., 2026 (arXiv:2602.07078). The squared norm of a token's gradient with respect to the logits is
1 - 2 pi + sum(pi^2); what a rollout has gathered up to a token is the sum of these.
"""

import torch
from jaxtyping import Float, Int

from trainer.algorithms.advantages.base import PART_TOKENS, AdvantageInputs, Advantages, split
from trainer.algorithms.advantages.discount import discounted_sums, token_rewards
from trainer.algorithms.config import AlgorithmConfig
from trainer.algorithms.registry import ADVANTAGE_ESTIMATORS, register

EPSILON = 1e-8


@register(
    ADVANTAGE_ESTIMATORS, "optimal_token_baseline", source="arXiv:2602.07078", needs=["old_logprobs", "sum_pi_squared"]
)
def optimal_token_baseline(inputs: AdvantageInputs, config: AlgorithmConfig) -> Advantages:
    """A[t] = G[t] - sum(G[t]*W[t]) / sum(W[t]), sums over the group; W[t] = sum up to t of 1 - 2 pi + sum(pi^2).

    G[t] is the reward less the penalties from t on. Sums are over the members that reach position t. A position that
    only one member reaches, or all with equal G, gets exactly 0. W is 1e-8 larger than said, so that members that are
    all certain weigh the same.
    """
    advantages = torch.empty(inputs.tokens, dtype=torch.float32)
    by_group = inputs.group_index.argsort(stable=True)
    members = torch.bincount(inputs.group_index, minlength=inputs.groups)
    tokens = torch.zeros(inputs.groups, dtype=torch.long).index_add_(0, inputs.group_index, inputs.lengths)
    ends = members.cumsum(0)
    for groups in split(tokens, PART_TOKENS):
        first = int(ends[groups.start] - members[groups.start])
        rollouts = by_group[first : int(ends[groups.stop - 1])]
        if len(rollouts):  # numbers of groups may have gaps, where a filter took a group out
            places, values = _of_whole_groups(inputs, rollouts)
            advantages[places] = values.float()
    return Advantages(advantages)


def _of_whole_groups(
    inputs: AdvantageInputs, rollouts: Int[torch.Tensor, " r"]
) -> tuple[Int[torch.Tensor, " n"], Float[torch.Tensor, " n"]]:
    """Where the tokens of these rollouts are, and their advantages."""
    lengths = inputs.lengths[rollouts]
    positions = torch.arange(int(lengths.sum())) - torch.repeat_interleave(lengths.cumsum(0) - lengths, lengths)
    places = torch.repeat_interleave(inputs.starts[rollouts], lengths) + positions

    to_go = discounted_sums(token_rewards(inputs, inputs.rewards[rollouts], lengths, places), lengths, 1.0)
    probabilities = inputs.need("old_logprobs")[places].double().exp()
    # Rounding may make the norm of a token that is all but certain slightly negative.
    norms = (1 - 2 * probabilities + inputs.need("sum_pi_squared")[places].double()).clamp(min=0)
    weights = discounted_sums(norms.flip(0), lengths.flip(0), 1.0).flip(0) + EPSILON

    # One cell for each position of each group.
    groups = inputs.group_index[rollouts] - inputs.group_index[rollouts[:1]]
    longest = torch.zeros(int(groups.max()) + 1, dtype=torch.long).scatter_reduce_(0, groups, lengths, "amax")
    cells = torch.repeat_interleave((longest.cumsum(0) - longest)[groups], lengths) + positions
    count = int(longest.sum())
    # Relative to the cell's highest, equal returns are 0 and stay exactly 0.
    highest = torch.full((count,), -torch.inf, dtype=torch.float64).scatter_reduce_(0, cells, to_go, "amax")
    relative = to_go - highest[cells]
    zeros = torch.zeros(count, dtype=torch.float64)
    baselines = zeros.index_add(0, cells, relative * weights) / zeros.index_add(0, cells, weights)
    return places, relative - baselines[cells]
