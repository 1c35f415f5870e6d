"""Discounted sums over the tokens that follow, without a loop over tokens.

Rollouts are cut into rows of 32 tokens. One product with a triangle of powers sums within each row; what follows a row
is a discounted sum over the rows behind it, which is the same problem, 32 times smaller. Nothing is divided by a power
of the discount, so that nothing overflows, however long the rollout.
"""

import torch
from jaxtyping import Float, Int

from trainer.algorithms.advantages.base import AdvantageInputs

ROW = 32


def discounted_sums(
    values: Float[torch.Tensor, " N"], lengths: Int[torch.Tensor, " R"], discount: float
) -> Float[torch.Tensor, " N"]:
    """y[t] = v[t] + discount * y[t + 1] within each rollout, in float64; each rollout has at least one token."""
    if len(values) == len(lengths):
        return values.double()
    rows = (lengths + ROW - 1) // ROW
    first_slots = (rows.cumsum(0) - rows) * ROW
    starts = lengths.cumsum(0) - lengths
    slots = torch.arange(len(values)) + torch.repeat_interleave(first_slots - starts, lengths)

    table = torch.zeros(int(rows.sum()) * ROW, dtype=torch.float64)
    table[slots] = values.double()
    column = torch.arange(ROW, dtype=torch.float64)
    distance = column[:, None] - column
    sums = table.view(-1, ROW) @ torch.where(distance >= 0, discount ** distance.clamp(min=0), 0.0)

    following = discounted_sums(sums[:, 0], rows, discount**ROW).roll(-1)
    following[rows.cumsum(0) - 1] = 0.0
    sums += following[:, None] * discount ** (ROW - column)
    return sums.flatten()[slots]


def token_rewards(
    inputs: AdvantageInputs,
    terminal: Float[torch.Tensor, " r"],
    lengths: Int[torch.Tensor, " r"],
    tokens: slice | Int[torch.Tensor, " n"],
) -> Float[torch.Tensor, " n"]:
    """Reward of each of `tokens`, in float64: less its penalty, and `terminal` on the last one of each rollout."""
    if inputs.penalties is None:
        rewards = torch.zeros(int(lengths.sum()), dtype=torch.float64)
    else:
        rewards = -inputs.penalties[tokens].double()
    rewards[lengths.cumsum(0) - 1] += terminal
    return rewards


def rewards_to_go(
    inputs: AdvantageInputs, terminal: Float[torch.Tensor, " R"], discount: float
) -> Float[torch.Tensor, " N"]:
    """Discounted sum of the rewards from each token on, in float32."""
    to_go = torch.empty(inputs.tokens, dtype=torch.float32)
    for rollouts, tokens in inputs.parts():
        lengths = inputs.lengths[rollouts]
        to_go[tokens] = discounted_sums(token_rewards(inputs, terminal[rollouts], lengths, tokens), lengths, discount)
    return to_go
