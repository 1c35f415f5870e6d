"""Random ragged batches for advantage estimators, and what slow references in plain Python need of them."""

import importlib
import pkgutil
from collections.abc import Sequence
from dataclasses import dataclass, fields
from random import Random
from typing import Any

import torch
from hypothesis import strategies as st

from trainer.algorithms import advantages
from trainer.algorithms.advantages.base import AdvantageInputs, Advantages, number_groups
from trainer.algorithms.config import AlgorithmConfig
from trainer.algorithms.registry import ADVANTAGE_ESTIMATORS

REWARDS = [0.0, 1.0, 0.5, 0.1, 1 / 3]
COLUMNS = ("penalties", "values", "old_logprobs", "sum_pi_squared")


def settings(**changes: Any) -> AlgorithmConfig:
    """Defaults but for `changes`, whatever else is registered."""
    return AlgorithmConfig.model_construct(**changes)


def estimators() -> list[str]:
    """Names of all estimators in the package."""
    modules = [f"{advantages.__name__}.{module.name}" for module in pkgutil.iter_modules(advantages.__path__)]
    for module in modules:
        importlib.import_module(module)
    return sorted(name for name, entry in ADVANTAGE_ESTIMATORS.items() if entry.function.__module__ in modules)


def estimate(name: str, inputs: AdvantageInputs, **changes: Any) -> Advantages:
    """The registered estimator's advantages."""
    estimators()
    return ADVANTAGE_ESTIMATORS[name].function(inputs, settings(**changes))


def make_inputs(
    rewards: Sequence[float], groups: Sequence[str], lengths: Sequence[int] | None = None, **columns: Any
) -> AdvantageInputs:
    """A batch of these rollouts; lengths of 1 to 3 in turn if not given."""
    lengths = [1 + i % 3 for i in range(len(rewards))] if lengths is None else lengths
    tensors = {k: torch.as_tensor(v, dtype=torch.float32) for k, v in columns.items() if k in COLUMNS}
    return AdvantageInputs(
        torch.tensor(rewards, dtype=torch.float64),
        number_groups(groups),
        torch.tensor(lengths, dtype=torch.long),
        **{**columns, **tensors},
    )


@dataclass(frozen=True)
class Rollout:
    """What a batch is made of, in lists."""

    group: str
    reward: float
    baseline: float
    named: tuple[float, float]
    penalties: list[float]
    values: list[float]
    logprobs: list[float]
    squares: list[float]

    @property
    def length(self) -> int:
        return len(self.values)

    @property
    def score(self) -> float:
        return self.reward - sum(self.penalties)


def to_inputs(rollouts: Sequence[Rollout], penalties: bool = True) -> AdvantageInputs:
    """A batch with all columns, or all but penalties."""

    def flat(name: str) -> list[float]:
        return [x for rollout in rollouts for x in getattr(rollout, name)]

    return make_inputs(
        [rollout.reward for rollout in rollouts],
        [rollout.group for rollout in rollouts],
        [rollout.length for rollout in rollouts],
        named_rewards={
            name: torch.tensor([rollout.named[i] for rollout in rollouts], dtype=torch.float64)
            for i, name in enumerate(("tests", "style"))
        },
        baselines=torch.tensor([rollout.baseline for rollout in rollouts], dtype=torch.float64),
        values=flat("values"),
        old_logprobs=flat("logprobs"),
        sum_pi_squared=flat("squares"),
        **({"penalties": flat("penalties")} if penalties else {}),
    )


@st.composite
def rollouts(draw: st.DrawFn, penalties: bool = True, longest: int = 6) -> Rollout:
    """One rollout; numbers are multiples of 1/64, exact in float32."""
    length = draw(st.integers(1, longest))
    random = Random(draw(st.integers(0, 2**16)))

    def column(low: int) -> list[float]:
        return [random.randint(low, 64) / 64 for _ in range(length)]

    probabilities, rest = column(1), column(0)
    reward = st.sampled_from(REWARDS)
    return Rollout(
        draw(st.sampled_from("abcd")),
        draw(reward),
        draw(reward),
        (draw(reward), draw(reward)),
        column(-64) if penalties else [0.0] * length,
        column(-64),
        [float(torch.tensor(p).log()) for p in probabilities],
        [p**2 + r * (1 - p) ** 2 for p, r in zip(probabilities, rest, strict=True)],
    )


def batches(penalties: bool = True, min_size: int = 1, longest: int = 6) -> st.SearchStrategy[list[Rollout]]:
    """Up to 12 rollouts of up to four groups, in any order."""
    return st.lists(rollouts(penalties, longest), min_size=min_size, max_size=12)


def members(batch: Sequence[Rollout]) -> dict[str, list[Rollout]]:
    """The rollouts of each group."""
    return {group: [rollout for rollout in batch if rollout.group == group] for group in {r.group for r in batch}}


def whitened(rows: Sequence[Sequence[float]]) -> list[list[float]]:
    """Mean 0 and deviation 1 over all numbers of all rows; 0 where they are equal."""
    numbers = [x for row in rows for x in row]
    if len(set(numbers)) < 2:
        return [[0.0] * len(row) for row in rows]
    mean = sum(numbers) / len(numbers)
    variance = sum((x - mean) ** 2 for x in numbers) / (len(numbers) - 1)
    return [[(x - mean) / (variance + 1e-8) ** 0.5 for x in row] for row in rows]


def assert_close(actual: Advantages, expected: Sequence[Sequence[float]], tolerance: float = 2e-5) -> None:
    """Advantages of each token of each rollout, in float32."""
    assert actual.advantages.dtype == torch.float32
    flat = [x for row in expected for x in row]
    torch.testing.assert_close(actual.advantages, torch.tensor(flat), rtol=tolerance, atol=tolerance)


def permuted(inputs: AdvantageInputs, order: Sequence[int]) -> tuple[AdvantageInputs, torch.Tensor]:
    """The batch with its rollouts in another order, and which of the old tokens each new one is."""
    index = torch.tensor(order, dtype=torch.long)
    starts = inputs.starts.tolist()
    tokens = torch.tensor([starts[i] + t for i in order for t in range(int(inputs.lengths[i]))], dtype=torch.long)
    changed: dict[str, Any] = {}
    for field in fields(inputs):
        value = getattr(inputs, field.name)
        if field.name in COLUMNS:
            changed[field.name] = None if value is None else value[tokens]
        elif field.name == "named_rewards":
            changed[field.name] = {name: rewards[index] for name, rewards in value.items()}
        else:
            changed[field.name] = None if value is None else value[index]
    return AdvantageInputs(**changed), tokens
