"""What a layout comes to: a simulation of some steps, and what is read from it."""

import itertools
import random
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import simpy

from flows.plan.cluster import SimulatedCluster
from flows.plan.layout import Layout, Workload
from flows.plan.modes import PROCESSES, Step, Training
from flows.plan.profile import Profile
from flows.plan.trials import Shapes, SimulatedTrials

WARM_UP = 3
"""Steps that are simulated and not counted: pipelines fill."""


@dataclass(frozen=True)
class Forecast:
    """Figures of one layout, means over the counted steps.

    `step_error` is the standard error of `step_seconds`. Idle shares are of time: of a replica without a sequence to
    decode, and of the learner without an update. Ages are in weight versions, the mean over trained tokens. `dropped`
    is the share of groups that were too old. `cost` is that of 1,000 trained trials, None without a price.
    """

    layout: Layout
    step_seconds: float
    step_error: float
    trials_per_s: float
    tokens_per_s: float
    idle_rollout: float
    idle_learner: float
    mean_age: float
    max_age: int
    dropped: float
    price_per_hour: float | None = None

    @property
    def cost(self) -> float | None:
        if self.price_per_hour is None:
            return None
        return self.layout.nodes * self.price_per_hour / 3600 / self.trials_per_s * 1000


def forecast(
    profile: Profile, layout: Layout, workload: Workload, *, steps: int, seed: int = 0, price: float | None = None
) -> Forecast:
    """Simulate `steps` steps in the midst of a long run. `price` is that of a node for an hour.

    Groups are drawn by chance, and each trial of one from those that were measured.

    Raises:
        PlanError: the layout holds no replica.
    """
    dice = random.Random(seed)
    groups = iter(lambda: dice.choices(dice.choice(profile.groups), k=workload.attempts_per_task), None)
    return _simulated(profile, layout, workload, dice, groups, WARM_UP, steps, None, price)


def replay(
    profile: Profile, layout: Layout, workload: Workload, *, steps: int, skip: int = 0, ending: int = 0, seed: int = 0
) -> Forecast:
    """Simulate a run of `steps` steps from its beginning to its end, on the very groups that were measured, in order.

    Neither its first `skip` steps are counted nor the last `ending`, in which fewer trials are in flight, and steps
    wait for what is left. Groups that are needed beyond those that were measured are the first again.
    """
    dice, groups = random.Random(seed), itertools.cycle(profile.groups)
    return _simulated(profile, layout, workload, dice, groups, skip, steps - skip - ending, steps, None)


def _simulated(
    profile: Profile,
    layout: Layout,
    workload: Workload,
    dice: random.Random,
    groups: Iterator[Shapes],
    skip: int,
    steps: int,
    length: int | None,
    price: float | None,
) -> Forecast:
    env = simpy.Environment()
    cluster = SimulatedCluster(env, profile, layout, workload, dice)
    trials = SimulatedTrials(cluster, workload, dice, groups)
    training = Training(cluster, trials, layout, workload, lambda: dice.choice(profile.overhead), length)
    env.process(PROCESSES[layout.mode](training))
    _run_until(env, training.steps, skip)
    busy_before, began = _busy(cluster), env.now
    _run_until(env, training.steps, skip + steps)
    busy = [after - before for after, before in zip(_busy(cluster), busy_before, strict=True)]
    counted, seconds = training.steps[skip:], env.now - began
    ends = [began, *(step.ended for step in counted)]
    lengths = np.diff(ends)
    tokens: defaultdict[int, float] = defaultdict(float)
    for step in counted:
        for age, count in step.tokens_by_age.items():
            tokens[age] += count
    total, dropped = sum(tokens.values()), sum(step.dropped_groups for step in counted)
    taken = steps * workload.tasks_per_step
    return Forecast(
        layout,
        step_seconds=seconds / steps,
        step_error=float(lengths.std(ddof=1) / np.sqrt(steps)) if steps > 1 else float("nan"),
        trials_per_s=taken * workload.attempts_per_task / seconds,
        tokens_per_s=total / seconds,
        idle_rollout=1 - sum(busy[1:]) / len(busy[1:]) / seconds,
        idle_learner=1 - busy[0] / seconds,
        mean_age=sum(age * count for age, count in tokens.items()) / max(total, 1.0),
        max_age=max(tokens),
        dropped=dropped / (taken + dropped),
        price_per_hour=price,
    )  # fmt: skip


def _run_until(env: simpy.Environment, steps: Sequence[Step], count: int) -> None:
    while len(steps) < count:
        env.step()


def _busy(cluster: SimulatedCluster) -> list[float]:
    """Busy seconds so far: of the learner, then of each replica."""
    for server in cluster.servers:
        server.settle()
    return [server.busy_seconds for server in cluster.servers]
