"""All layouts that a budget allows, simulated, and the best of them."""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from flows.config import RunConfig
from flows.plan.forecast import Forecast, forecast
from flows.plan.layout import Layout, Mode, Workload, layouts
from flows.plan.profile import PlanError, Profile


@dataclass(frozen=True)
class Question:
    """What is asked: clusters of which sizes, at what price of a node for an hour, for how much an hour at most."""

    modes: Sequence[Mode]
    sizes: Sequence[int]
    price: float | None = None
    budget: float | None = None
    steps: int = 16
    seed: int = 0

    def affordable(self) -> list[int]:
        """The sizes that the budget allows.

        Raises:
            PlanError: there is none, or a budget without a price.
        """
        if self.budget is None:
            return sorted(set(self.sizes))
        if self.price is None:
            raise PlanError(f"--budget {self.budget:g} buys nothing known: state the --price of a node for an hour")
        sizes = sorted({size for size in self.sizes if size * self.price <= self.budget})
        if not sizes:
            raise PlanError(
                f"--budget {self.budget:g} an hour pays for {math.floor(self.budget / self.price)} nodes at "
                f"{self.price:g}, fewer than any of --nodes ({', '.join(map(str, sorted(self.sizes)))}); raise it, or "
                "ask for smaller clusters"
            )
        return sizes


@dataclass(frozen=True)
class Plan:
    """The forecasts in the order of their layouts, and what they were made of."""

    source: str
    workload: Workload
    forecasts: Sequence[Forecast]

    @property
    def fastest(self) -> Forecast:
        """The layout that trains most trials a second; of equals the smaller one."""
        return max(self.forecasts, key=lambda found: (found.trials_per_s, -found.layout.nodes))

    @property
    def best_splits(self) -> list[Forecast]:
        """The fastest split of each mode and size, for a table that fits a screen."""
        best: dict[tuple[str, int], Forecast] = {}
        for found in self.forecasts:
            key = found.layout.mode, found.layout.nodes
            if key not in best or found.trials_per_s > best[key].trials_per_s:
                best[key] = found
        return list(best.values())

    @property
    def cheapest(self) -> Forecast:
        """The layout whose trials take the fewest node-seconds."""
        return min(self.forecasts, key=lambda found: found.layout.nodes / found.trials_per_s)


def workload_of(
    config: RunConfig,
    *,
    replicas_per_node: float | None = None,
    max_staleness: int = 1,
    scaling: float = 0.9,
    replica_mtbf_hours: float | None = None,
) -> Workload:
    """What a run config asks of a cluster. Its replicas are those of one rollout node, if nothing else is said."""
    replicas = config.serving.replicas
    return Workload(
        tasks_per_step=config.rollout.tasks_per_step,
        attempts_per_task=config.rollout.attempts_per_task,
        concurrency=max(config.rollout.concurrency // replicas, 1),
        seats=config.serving.max_num_seqs,
        replicas_per_node=replicas_per_node or replicas,
        infra_attempts=config.rollout.infra_attempts,
        max_staleness=max_staleness,
        scaling=scaling,
        replica_mtbf_hours=replica_mtbf_hours,
    )


def sweep(
    profile: Profile,
    workload: Workload,
    question: Question,
    *,
    one_machine: bool,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> Plan:
    """Simulate all layouts that are asked for and hold a replica.

    Raises:
        PlanError: none is.
    """
    asked = list(_possible(workload, layouts(question.modes, question.affordable(), one_machine=one_machine)))
    if not asked:
        raise PlanError(
            f"no layout of {', '.join(map(str, question.affordable()))} nodes fits the modes "
            f"{', '.join(question.modes)}; they need a node to train and one to sample: ask for more nodes"
        )
    found = []
    for number, layout in enumerate(asked):
        progress(number, len(asked))
        found.append(
            forecast(profile, layout, workload, steps=question.steps, seed=question.seed, price=question.price)
        )
    progress(len(asked), len(asked))
    return Plan(profile.source, workload, found)


def _possible(workload: Workload, asked: Iterator[Layout]) -> Iterator[Layout]:
    return (layout for layout in asked if workload.replicas(layout))
