"""Which tasks a step tries. Pure functions of the pool, the settings, the step and a state that is plain JSON.

`uniform` goes through the pool in shuffled order, epoch after epoch. `stratified` does so within each stratum, so that
every step has its share of each. `adaptive` draws by the chance that a task's group will be mixed, some trials solving
it and some not, as far as earlier groups tell; a part of each step goes to what was tried longest ago.

A state knows the last step that was told to it, and the same step told again changes nothing: a run that is resumed
tells its journal's steps in order and draws what it would have drawn.
"""

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Self

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, model_validator

from harness.pool.index import PoolError, TaskPointer
from harness.pool.index_tools import repository_of

_NEVER = -1
_FLOOR = 1e-3


class SamplerConfig(BaseModel):
    """How tasks are drawn."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    sampler: Literal["uniform", "stratified", "adaptive"] = Field(
        default="uniform",
        description="uniform: shuffled epochs; stratified: the same by stratum; adaptive: mixed groups",
    )
    strata: str = Field(
        default="difficulty",
        min_length=1,
        description="stratified: the index's key that tells a task's stratum; repository: what a pool is split by",
    )
    balance: float = Field(
        default=0.0, ge=0, le=1, description="stratified: 0 gives strata their share of the pool, 1 the same to each"
    )
    explore: float = Field(
        default=0.1, ge=0, le=1, description="adaptive: part of a step that goes to tasks tried longest ago"
    )
    decay: float = Field(
        default=0.98, gt=0, le=1, description="adaptive: weight of a result after each step, since the policy moves on"
    )
    focus: float = Field(
        default=2.0,
        ge=0,
        le=8,
        description="adaptive: power of the chance of a mixed group; 1 draws in proportion to it, 0 evenly",
    )
    prior_trials: float = Field(
        default=1.0, gt=0, le=64, description="adaptive: trials that a pass rate in the index, or none, counts for"
    )

    @model_validator(mode="after")
    def _settings_have_an_effect(self) -> Self:
        owners = dict.fromkeys(("strata", "balance"), "stratified")
        owners |= dict.fromkeys(("explore", "decay", "focus", "prior_trials"), "adaptive")
        for name, setting in sorted(type(self).model_fields.items()):
            # A value that is spelled out as it would be anyway does no harm: configurations are written down whole.
            if name in owners and self.sampler != owners[name] and getattr(self, name) != setting.default:
                raise ValueError(f"{name} has no effect with sampler {self.sampler}; set sampler: {owners[name]}")
        return self


@dataclass(frozen=True)
class GroupResult:
    """What one group came to: of `trials` that count, none of them an infra_error, `passes` solved the task."""

    task_id: str
    passes: int
    trials: int


@dataclass(frozen=True)
class SamplerState:
    """What earlier groups told: by task id the weighted passes and trials, and the step of the last group.

    `step` is the last step that was told, 0 before the first.
    """

    step: int = 0
    tasks: Mapping[str, tuple[float, float, int]] = field(default_factory=dict)

    def to_json(self) -> str:
        tasks = {name: list(values) for name, values in sorted(self.tasks.items())}
        return json.dumps({"step": self.step, "tasks": tasks})

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Read `to_json` back.

        Raises:
            PoolError: it is something else.
        """
        try:
            stored: dict[str, Any] = json.loads(text)
            tasks = {str(k): (float(p), float(t), int(s)) for k, (p, t, s) in stored["tasks"].items()}
            return cls(int(stored["step"]), tasks)
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise PoolError(f"no state of a sampler ({error!r}); tell a fresh one the journal's steps") from error


def tell(state: SamplerState, step: int, groups: Iterable[GroupResult], config: SamplerConfig) -> SamplerState:
    """The state after the groups of `step`. A step that was told already changes nothing.

    A group without a trial that counts leaves its task as it was.

    Raises:
        PoolError: a group has more passes than trials.
    """
    if step <= state.step:
        return state
    tasks = dict(state.tasks)
    for group in groups:
        if not 0 <= group.passes <= group.trials:
            raise PoolError(f"group of {group.task_id}: {group.passes} passes of {group.trials} trials cannot be")
        if group.trials:
            passes, trials, last = tasks.get(group.task_id, (0.0, 0.0, step))
            kept = config.decay ** (step - last)
            tasks[group.task_id] = (passes * kept + group.passes, trials * kept + group.trials, step)
    return SamplerState(step, tasks)


def draw_tasks(
    pool: Sequence[TaskPointer],
    count: int,
    step: int,
    seed: int,
    config: SamplerConfig = SamplerConfig(),  # noqa: B008  (frozen)
    state: SamplerState = SamplerState(),
    attempts: int = 8,
) -> list[TaskPointer]:
    """The `count` tasks of step `step` (from 1), none of them twice.

    Args:
        pool: The pool, in the index's order, on which the draw depends.
        attempts: Trials of a group: what mixed means depends on it.

    Raises:
        PoolError: the pool has fewer tasks, or they lack the key of the strata.
    """
    if not 1 <= count <= len(pool):
        raise PoolError(
            f"{count} tasks are wanted of a pool of {len(pool)}; lower rollout.tasks_per_step, or add tasks"
        )
    if step < 1:
        raise PoolError(f"step is {step}; steps are counted from 1")
    if config.sampler == "uniform":
        chosen = _uniform(len(pool), count, step, seed)
    elif config.sampler == "stratified":
        chosen = _stratified(_strata(pool, config.strata), count, step, seed, config.balance)
    else:
        chosen = _adaptive(pool, count, step, seed, config, state, attempts)
    return [pool[i] for i in chosen]


def mixed_chance(passes: float, trials: float, attempts: int) -> float:
    """Chance that of `attempts` trials some pass and some do not, for a pass rate of which Beta(passes, rest) is known.

    1 - E[p^n] - E[(1-p)^n], where E is over Beta(a, b) with a = passes, b = trials - passes, both above 0.
    """
    failures = trials - passes

    def all_of(kind: float) -> float:
        return math.prod((kind + i) / (trials + i) for i in range(attempts))

    return 1.0 - all_of(passes) - all_of(failures)


def _uniform(size: int, count: int, step: int, seed: int) -> list[int]:
    """Each epoch is a fresh shuffle, and what is left of it after its last whole step stays out."""
    epoch, place = divmod(step - 1, size // count)
    order = np.random.default_rng([seed, epoch]).permutation(size)
    return [int(i) for i in order[place * count : (place + 1) * count]]


def _strata(pool: Sequence[TaskPointer], key: str) -> dict[str, list[int]]:
    strata: dict[str, list[int]] = {}
    for i, row in enumerate(pool):
        value = repository_of(row) if key == "repository" else row.extra.get(key)
        if value is None:
            raise PoolError(
                f"strata are told by {key!r}, which {row.instance_id} does not have; choose a key that every task has, "
                "such as repository"
            )
        strata.setdefault(str(value), []).append(i)
    return dict(sorted(strata.items()))


def _stratified(strata: Mapping[str, list[int]], count: int, step: int, seed: int, balance: float) -> list[int]:
    sizes = [len(members) for members in strata.values()]
    drawn = [0] * len(sizes)
    for earlier in range(1, step):
        drawn = [a + b for a, b in zip(drawn, _quotas(sizes, count, earlier, seed, balance), strict=True)]
    quotas = _quotas(sizes, count, step, seed, balance)
    chosen: list[int] = []
    for number, members in enumerate(strata.values()):
        chosen += [members[i] for i in _turns(len(members), drawn[number], quotas[number], [seed, number])]
    return chosen


def _quotas(sizes: Sequence[int], count: int, step: int, seed: int, balance: float) -> list[int]:
    """Draws of each stratum in one step: its share, rounded by lot, and never more than it holds."""
    total, live = sum(sizes), len(sizes)
    shares = [count * ((1 - balance) * size / total + balance / live) for size in sizes]
    quotas = [min(int(share), size) for share, size in zip(shares, sizes, strict=True)]
    lots = np.random.default_rng([seed, step, 1]).random(live)
    # Of the remainders a larger one is likelier to be rounded up, so that over the steps each gets its share.
    order = sorted(range(live), key=lambda i: lots[i] - (shares[i] - int(shares[i])))
    while sum(quotas) < count:
        for i in order:
            if sum(quotas) < count and quotas[i] < sizes[i]:
                quotas[i] += 1
    return quotas


def _turns(size: int, first: int, count: int, seed: Sequence[int]) -> list[int]:
    """Places `first` to `first + count` of an endless row of shuffles; where two meet, none is taken twice."""
    taken: list[int] = []
    for turn in range(first, first + count):
        epoch, place = divmod(turn, size)
        order = np.random.default_rng([*seed, epoch]).permutation(size)
        wanted = int(order[place])
        taken.append(wanted if wanted not in taken else next(int(i) for i in order if int(i) not in taken))
    return taken


def _adaptive(
    pool: Sequence[TaskPointer],
    count: int,
    step: int,
    seed: int,
    config: SamplerConfig,
    state: SamplerState,
    attempts: int,
) -> list[int]:
    random = np.random.default_rng([seed, step, 2])
    known = [state.tasks.get(row.instance_id, (0.0, 0.0, _NEVER)) for row in pool]
    ties = random.random(len(pool))
    oldest = sorted(range(len(pool)), key=lambda i: (known[i][2], ties[i]))
    # A part of a task is a task now and then.
    exploring = int(config.explore * count + random.random())
    chosen = oldest[: min(exploring, count)]
    weights = np.array([_weight(row, known[i], step, config, attempts) for i, row in enumerate(pool)])
    # The largest of u^(1/w) are a draw without replacement in proportion to w (Efraimidis and Spirakis, 2006).
    keys = np.log(random.random(len(pool))) / weights
    rest = [int(i) for i in np.argsort(-keys, kind="stable") if int(i) not in set(chosen)]
    return chosen + rest[: count - len(chosen)]


def _weight(
    row: TaskPointer, known: tuple[float, float, int], step: int, config: SamplerConfig, attempts: int
) -> float:
    """A power of the chance of a mixed group; never 0, so that a task lost or learned meanwhile is seen again."""
    passes, trials, last = known
    kept = config.decay ** (step - last) if trials else 0.0
    rate = row.extra.get("pass_rate")
    prior = min(max(float(rate), 0.02), 0.98) if isinstance(rate, int | float) else 0.5
    believed = prior * config.prior_trials + passes * kept
    chance = mixed_chance(believed, config.prior_trials + trials * kept, attempts)
    return float(max(chance, _FLOOR) ** config.focus)
