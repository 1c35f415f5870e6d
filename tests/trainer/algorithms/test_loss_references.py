"""Each policy loss against a slow reference in Python floats: its value, and its gradient by finite differences.

A reference is the surrogate of the paper, token by token, in which what stands behind a stop-gradient is computed from
`frozen` log-probs: differences of the surrogate in the others are then the gradient that the loss must have.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support.losses import make_config, make_inputs

from trainer.algorithms.config import AlgorithmConfig
from trainer.algorithms.policy_losses.base import LossInputs
from trainer.algorithms.registry import POLICY_LOSSES, load_builtin

load_builtin()

CONFIG = make_config(sapo_tau_pos=1.3, sapo_tau_neg=2.1, kl_cov_coef=0.7, clip_ratio_c=1.6)
STEP = 1e-6


@dataclass
class Row:
    """A row as lists of numbers."""

    new: list[float]
    frozen: list[float]
    old: list[float]
    advantages: list[float]
    owners: list[int]
    selected: list[bool]

    def mates(self, t: int) -> list[int]:
        return [u for u, owner in enumerate(self.owners) if owner == self.owners[t]]


Reference = Callable[[Row, int, AlgorithmConfig], float]


def clip(x: float, low: float, high: float) -> float:
    return min(max(x, low), high)


def ppo(row: Row, t: int, c: AlgorithmConfig) -> float:
    r, a = math.exp(row.new[t] - row.old[t]), row.advantages[t]
    objective = min(r * a, clip(r, 1 - c.clip_ratio_low, 1 + c.clip_ratio_high) * a)
    if a < 0:
        objective = max(objective, c.clip_ratio_c * a)
    return -objective


def sequence_clip(row: Row, t: int, c: AlgorithmConfig, a: float) -> float:
    mates = row.mates(t)
    s = math.exp(sum(row.frozen[u] - row.old[u] for u in mates) / len(mates))
    r = s * math.exp(row.new[t]) / math.exp(row.frozen[t])
    return -min(r * a, clip(r, 1 - c.clip_ratio_low, 1 + c.clip_ratio_high) * a)


def gspo_token(row: Row, t: int, c: AlgorithmConfig) -> float:
    return sequence_clip(row, t, c, row.advantages[t])


def mean_advantage(row: Row, t: int) -> float:
    mates = row.mates(t)
    return sum(row.advantages[u] for u in mates) / len(mates)


def gspo(row: Row, t: int, c: AlgorithmConfig) -> float:
    return sequence_clip(row, t, c, mean_advantage(row, t))


def gmpo(row: Row, t: int, c: AlgorithmConfig) -> float:
    a, mates = mean_advantage(row, t), row.mates(t)
    sign = (a > 0) - (a < 0)

    def bounded(new: float, old: float) -> float:
        r, low, high = math.exp(new - old), math.exp(-c.clip_ratio_low), math.exp(c.clip_ratio_high)
        return min(r**sign, clip(r, low, high) ** sign) ** sign

    product = math.prod(bounded(row.frozen[u], row.old[u]) for u in mates) ** (1 / len(mates))
    return -a * product * bounded(row.new[t], row.old[t]) / bounded(row.frozen[t], row.old[t])


def cispo(row: Row, t: int, c: AlgorithmConfig) -> float:
    weight = clip(math.exp(row.frozen[t] - row.old[t]), 1 - c.clip_ratio_low, 1 + c.clip_ratio_high)
    return -row.advantages[t] * weight * row.new[t]


def sapo(row: Row, t: int, c: AlgorithmConfig) -> float:
    tau = c.sapo_tau_pos if row.advantages[t] > 0 else c.sapo_tau_neg
    gate = 4 / tau / (1 + math.exp(-tau * (math.exp(row.new[t] - row.old[t]) - 1)))
    return -row.advantages[t] * gate


def clip_cov(row: Row, t: int, c: AlgorithmConfig) -> float:
    r, a = math.exp(row.new[t] - row.old[t]), row.advantages[t]
    return 0.0 if row.selected[t] else -min(r * a, clip(r, 1 - c.clip_ratio_low, 1 + c.clip_ratio_high) * a)


def kl_cov(row: Row, t: int, c: AlgorithmConfig) -> float:
    log_ratio = row.new[t] - row.old[t]
    return -math.exp(log_ratio) * row.advantages[t] + row.selected[t] * c.kl_cov_coef * abs(log_ratio)


def dppo(row: Row, t: int, c: AlgorithmConfig, divergence: Callable[[float, float], float]) -> float:
    p, q, a = math.exp(row.frozen[t]), math.exp(row.old[t]), row.advantages[t]
    if (a > 0 and p > q and divergence(q, p) > c.clip_ratio_high) or (
        a < 0 and p < q and divergence(q, p) > c.clip_ratio_low
    ):
        return 0.0
    return -a * min(p / q, c.clip_ratio_c) * row.new[t]


def dppo_tv(row: Row, t: int, c: AlgorithmConfig) -> float:
    return dppo(row, t, c, lambda q, p: (abs(p - q) + abs((1 - p) - (1 - q))) / 2)


def dppo_kl(row: Row, t: int, c: AlgorithmConfig) -> float:
    return dppo(row, t, c, lambda q, p: q * math.log(q / p) + (1 - q) * math.log((1 - q) / (1 - p)))


def policy_gradient(row: Row, t: int, c: AlgorithmConfig) -> float:
    return -row.advantages[t] * row.new[t]


REFERENCES: dict[str, Reference] = {
    "ppo": ppo,
    "gspo": gspo,
    "gspo_token": gspo_token,
    "gmpo": gmpo,
    "cispo": cispo,
    "sapo": sapo,
    "clip_cov": clip_cov,
    "kl_cov": kl_cov,
    "dppo_tv": dppo_tv,
    "dppo_kl": dppo_kl,
    "gpg": policy_gradient,
    "reinforce": policy_gradient,
}
WITHOUT_STOP_GRADIENT = ("ppo", "sapo", "clip_cov", "kl_cov", "gpg", "reinforce")


def test_every_loss_has_a_reference():
    assert set(REFERENCES) == {
        name for name, e in POLICY_LOSSES.items() if e.function.__module__.startswith("trainer.")
    }


def as_row(inputs: LossInputs) -> Row:
    new = inputs.logprobs.tolist()
    selected = inputs.selected.tolist() if inputs.selected is not None else []
    return Row(
        new, list(new), inputs.old_logprobs.tolist(), inputs.advantages.tolist(), inputs.sample_index.tolist(), selected
    )


def slope(reference: Reference, row: Row, weights: list[float], t: int) -> float:
    """Central difference of the weighted sum of token losses in the log-prob of token t."""
    sums = []
    for step in (STEP, -STEP):
        new = list(row.new)
        new[t] += step
        moved = replace(row, new=new)
        sums.append(sum(weights[u] * reference(moved, u, CONFIG) for u in row.mates(t)))
    return (sums[0] - sums[1]) / (2 * STEP)


@pytest.mark.parametrize("name", sorted(REFERENCES))
@settings(deadline=None, max_examples=20)
@given(
    lengths=st.lists(st.integers(1, 6), min_size=1, max_size=4),
    spread=st.sampled_from([0.05, 0.4, 1.5]),
    by_token=st.booleans(),
    seed=st.integers(0, 10**6),
)
def test_value_and_gradient(name, lengths, spread, by_token, seed):
    inputs = make_inputs(tuple(lengths), spread, seed=seed, by_token=by_token)
    inputs = replace(inputs, logprobs=inputs.logprobs.detach().clamp(max=-1e-3).requires_grad_())
    row, reference = as_row(inputs), REFERENCES[name]
    losses = POLICY_LOSSES[name].function(inputs, CONFIG).losses
    assert losses.tolist() == pytest.approx([reference(row, t, CONFIG) for t in range(len(row.new))], abs=1e-9)

    weights = [1.0 + (t % 3) for t in range(len(row.new))]
    (gradient,) = torch.autograd.grad(losses @ torch.tensor(weights, dtype=torch.float64), inputs.logprobs)
    expected = [slope(reference, row, weights, t) for t in range(len(row.new))]
    assert gradient.tolist() == pytest.approx(expected, rel=1e-5, abs=1e-6)


@pytest.mark.parametrize("name", WITHOUT_STOP_GRADIENT)
def test_gradcheck(name):
    inputs = make_inputs((3, 1, 5, 4), spread=0.6, seed=3, by_token=True)

    def losses(logprobs: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = POLICY_LOSSES[name].function(replace(inputs, logprobs=logprobs), CONFIG).losses
        return result

    assert torch.autograd.gradcheck(losses, (inputs.logprobs,))
