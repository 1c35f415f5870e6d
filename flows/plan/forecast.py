"""What a layout comes to: a simulation of some steps, and what is read from it."""

import itertools
import random
from collections import defaultdict
from collections.abc import Callable, Sequence
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
    profile: Profile,
    layout: Layout,
    workload: Workload,
    *,
    steps: int,
    seed: int = 0,
    price: float | None = None,
    replay: bool = False,
) -> Forecast:
    """Simulate `steps` steps after some of warm-up. `price` is that of a node for an hour.

    Groups are drawn by chance, and each trial of one from those that were measured; with `replay` they are the measured
    ones in their order, again from the first when they are used up.

    Raises:
        PlanError: the layout holds no replica.
    """
    env, dice = simpy.Environment(), random.Random(seed)
    cluster = SimulatedCluster(env, profile, layout, workload, dice)
    draw = _in_order(profile) if replay else _by_chance(profile, workload, dice)
    trials = SimulatedTrials(cluster, workload, dice, draw)
    training = Training(cluster, trials, layout, workload, lambda: dice.choice(profile.overhead))
    env.process(PROCESSES[layout.mode](training))
    _run_until(env, training.steps, WARM_UP)
    busy_before, began = _busy(cluster), env.now
    _run_until(env, training.steps, WARM_UP + steps)
    busy = [after - before for after, before in zip(_busy(cluster), busy_before, strict=True)]
    counted, seconds = training.steps[WARM_UP:], env.now - began
    ends = [began, *(step.ended for step in counted)]
    lengths = np.diff(ends)
    tokens: defaultdict[int, float] = defaultdict(float)
    for step in counted:
        for age, count in step.tokens_by_age.items():
            tokens[age] += count
    total, dropped = sum(tokens.values()), sum(step.dropped_groups for step in counted)
    groups = steps * workload.tasks_per_step
    return Forecast(
        layout,
        step_seconds=seconds / steps,
        step_error=float(lengths.std(ddof=1) / np.sqrt(steps)) if steps > 1 else float("nan"),
        trials_per_s=groups * workload.attempts_per_task / seconds,
        tokens_per_s=total / seconds,
        idle_rollout=1 - sum(busy[1:]) / len(busy[1:]) / seconds,
        idle_learner=1 - busy[0] / seconds,
        mean_age=sum(age * count for age, count in tokens.items()) / max(total, 1.0),
        max_age=max(tokens),
        dropped=dropped / (groups + dropped),
        price_per_hour=price,
    )  # fmt: skip


def _by_chance(profile: Profile, workload: Workload, dice: random.Random) -> Callable[[], Shapes]:
    return lambda: dice.choices(dice.choice(profile.groups), k=workload.attempts_per_task)


def _in_order(profile: Profile) -> Callable[[], Shapes]:
    groups = itertools.cycle(profile.groups)
    return lambda: next(groups)


def _run_until(env: simpy.Environment, steps: Sequence[Step], count: int) -> None:
    while len(steps) < count:
        env.step()


def _busy(cluster: SimulatedCluster) -> list[float]:
    """Busy seconds so far: of the learner, then of each replica."""
    for server in cluster.servers:
        server.settle()
    return [server.busy_seconds for server in cluster.servers]
