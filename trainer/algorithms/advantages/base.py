"""What an advantage estimator sees of a step's batch, and what it gives back.

Only sampled tokens are here: R rollouts, one after the other, N tokens in all. What tools and prompts wrote is left out
before, so that no estimator can read it, and a recursion over time steps from one sampled token to the next.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import torch
from jaxtyping import Float, Int

PART_TOKENS = 2**18  # what float64 copies are made of at a time: 2 MiB each, however large the batch


@dataclass(frozen=True)
class AdvantageInputs:
    """A batch. `rewards` is in float64, columns of tokens in float32; each rollout has at least one sampled token.

    `group_index` numbers the groups from 0. `penalties` are subtracted from the reward of each token (KL in the
    reward). `baselines` is the reward of the group's greedy trial. `sum_pi_squared` is the sum over the vocabulary of
    squared probabilities. What an estimator does not name in its `needs` may be None.

    Raises:
        ValueError: a count that does not fit, or a number that is not finite.
    """

    rewards: Float[torch.Tensor, " R"]
    group_index: Int[torch.Tensor, " R"]
    lengths: Int[torch.Tensor, " R"]
    named_rewards: Mapping[str, Float[torch.Tensor, " R"]] = field(default_factory=dict)
    baselines: Float[torch.Tensor, " R"] | None = None
    penalties: Float[torch.Tensor, " N"] | None = None
    values: Float[torch.Tensor, " N"] | None = None
    old_logprobs: Float[torch.Tensor, " N"] | None = None
    sum_pi_squared: Float[torch.Tensor, " N"] | None = None

    def __post_init__(self) -> None:
        rollouts = len(self.rewards)
        if len(self.group_index) != rollouts or len(self.lengths) != rollouts:
            raise ValueError(f"{rollouts} rewards, {len(self.group_index)} group ids, {len(self.lengths)} lengths")
        if rollouts and int(self.lengths.min()) < 1:
            raise ValueError("a rollout without sampled tokens has no place in a batch; filter it")
        given = {"reward": self.rewards, **self.named_rewards}
        if self.baselines is not None:
            given["baseline"] = self.baselines
        for name, rewards in given.items():
            if len(rewards) != rollouts or not bool(torch.isfinite(rewards).all()):
                raise ValueError(f"{name}: {rollouts} finite numbers are needed, got {rewards.tolist()[:8]}")
        for name in ("penalties", "values", "old_logprobs", "sum_pi_squared"):
            column = getattr(self, name)
            if column is not None and len(column) != self.tokens:
                raise ValueError(f"{name}: {len(column)} entries for {self.tokens} sampled tokens")
            # A sum is finite where its terms are, and reads the column once without a copy.
            if column is not None and not bool(torch.isfinite(column.sum())):
                raise ValueError(f"{name}: some of the {len(column)} numbers are NaN or infinite")

    def need(self, name: str) -> torch.Tensor:
        """A column that may be None, for an estimator that cannot do without it.

        Raises:
            ValueError: it is None.
        """
        column = getattr(self, name)
        if column is None:
            raise ValueError(f"{name} is missing; an estimator gets it if it is registered with `needs`")
        return column

    @cached_property
    def tokens(self) -> int:
        """N."""
        return int(self.lengths.sum())

    @cached_property
    def groups(self) -> int:
        """Number of groups."""
        return int(self.group_index.max()) + 1 if len(self.group_index) else 0

    @cached_property
    def sample_index(self) -> Int[torch.Tensor, " N"]:
        """Which rollout each token belongs to."""
        return torch.repeat_interleave(torch.arange(len(self.lengths)), self.lengths)

    @cached_property
    def starts(self) -> Int[torch.Tensor, " R"]:
        """Where each rollout's first token is."""
        return self.lengths.cumsum(0) - self.lengths

    def parts(self) -> Iterator[tuple[slice, slice]]:
        """The batch in parts of whole rollouts, about PART_TOKENS tokens each: which rollouts, and which tokens."""
        for rollouts in split(self.lengths, PART_TOKENS):
            first, last = rollouts.start, rollouts.stop - 1
            yield rollouts, slice(int(self.starts[first]), int(self.starts[last] + self.lengths[last]))

    @cached_property
    def scores(self) -> Float[torch.Tensor, " R"]:
        """Reward of a whole rollout, penalties included."""
        if self.penalties is None:
            return self.rewards
        return self.rewards - self.sum_by_rollout(self.penalties)

    @cached_property
    def group_sizes(self) -> Int[torch.Tensor, " R"]:
        """Size of the group of each rollout."""
        return torch.bincount(self.group_index, minlength=self.groups)[self.group_index]

    def sum_by_rollout(self, values: Float[torch.Tensor, " N"]) -> Float[torch.Tensor, " R"]:
        """Sums over the tokens of each rollout, in float64."""
        sums = torch.zeros(len(self.lengths), dtype=torch.float64)
        for rollouts, tokens in self.parts():
            sums[rollouts] = torch.segment_reduce(values[tokens].double(), "sum", lengths=self.lengths[rollouts])
        return sums

    def sum_by_group(self, values: Float[torch.Tensor, " R"]) -> Float[torch.Tensor, " R"]:
        """Sums over each group, for each of its members."""
        return torch.zeros(self.groups, dtype=values.dtype).index_add(0, self.group_index, values)[self.group_index]

    def mean_by_group(self, values: Float[torch.Tensor, " R"]) -> Float[torch.Tensor, " R"]:
        """Means over each group, for each of its members."""
        return self.sum_by_group(values) / self.group_sizes

    def std_by_group(self, values: Float[torch.Tensor, " R"]) -> Float[torch.Tensor, " R"]:
        """Unbiased standard deviations over each group, for each of its members; 0 in a group of one."""
        squares = self.sum_by_group((values - self.mean_by_group(values)) ** 2)
        return (squares / (self.group_sizes - 1).clamp(min=1)).sqrt()

    def max_by_group(self, values: Float[torch.Tensor, " R"]) -> Float[torch.Tensor, " R"]:
        """Maximum over each group, for each of its members."""
        highest = torch.full((self.groups,), -torch.inf, dtype=values.dtype)
        return highest.scatter_reduce_(0, self.group_index, values, "amax")[self.group_index]

    def informative(self, values: Float[torch.Tensor, " R"]) -> torch.Tensor:
        """[R] bool: the rollout's group holds different `values`. Compared exactly: a mean may be off by a rounding."""
        return self.max_by_group(values) > -self.max_by_group(-values)

    def spread(self, values: Float[torch.Tensor, " R"]) -> "Advantages":
        """One advantage for all tokens of a rollout."""
        return Advantages(torch.repeat_interleave(values.float(), self.lengths))


@dataclass(frozen=True)
class Advantages:
    """Advantage of each sampled token, float32; `returns` are the critic's targets."""

    advantages: Float[torch.Tensor, " N"]
    returns: Float[torch.Tensor, " N"] | None = None


def split(sizes: Int[torch.Tensor, " R"], limit: int) -> Iterator[slice]:
    """Consecutive items whose sizes add up to `limit` at most; a larger item is alone."""
    ends = sizes.cumsum(0)
    first = 0
    while first < len(sizes):
        before = int(ends[first - 1]) if first else 0
        last = max(int(torch.searchsorted(ends, before + limit, right=True)), first + 1)
        yield slice(first, last)
        first = last


def number_groups(group_ids: Sequence[str]) -> Int[torch.Tensor, " R"]:
    """Groups numbered in order of appearance: by id, never by position."""
    numbers: dict[str, int] = {}
    return torch.tensor([numbers.setdefault(group_id, len(numbers)) for group_id in group_ids], dtype=torch.long)
