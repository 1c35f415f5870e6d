"""How steps follow each other in each mode: a process that tells the ledger of every step."""

from collections import defaultdict, deque
from collections.abc import Callable, Generator
from dataclasses import dataclass, field
from typing import Any

import simpy

from flows.plan.cluster import SimulatedCluster
from flows.plan.layout import Layout, Mode, Workload
from flows.plan.trials import SimulatedGroup, SimulatedTrials, total_tokens

Steps = Generator[simpy.Event, Any, None]
"""A process; what it waits for tells it how that ended."""


@dataclass
class Step:
    """A simulated step: when it ended, and the age in weight versions of the tokens that it trained on."""

    ended: float
    tokens_by_age: dict[int, float]
    dropped_groups: int = 0


@dataclass
class Training:
    """What a mode acts on; `steps` are those that have ended, and `length` is how many the run has, None for no end."""

    cluster: SimulatedCluster
    trials: SimulatedTrials
    layout: Layout
    workload: Workload
    overhead: Callable[[], float]
    length: int | None = None
    steps: list[Step] = field(default_factory=list)

    @property
    def env(self) -> simpy.Environment:
        return self.cluster.env

    def known(self, steps: int) -> int:
        """How many of so many steps, counted from the first, the run will come to."""
        return steps if self.length is None else min(steps, self.length)

    def batch(self) -> simpy.Event:
        """The groups of one step, all begun now."""
        return self.env.all_of([self.trials.group() for _ in range(self.workload.tasks_per_step)])

    def learn(self, groups: list[SimulatedGroup], dropped: int = 0) -> Steps:
        """Update and sync, which end the step; a process."""
        ages: defaultdict[int, float] = defaultdict(float)
        for group in groups:
            for version, tokens in group.tokens.items():
                ages[self.trials.version - version] += tokens
        yield self.cluster.update(total_tokens(groups))
        yield self.env.process(self.cluster.sync())
        self.trials.version += 1
        self.steps.append(Step(self.env.now, ages, dropped))

    def prepare(self) -> simpy.Event:
        """What comes before a step's trials, and belongs to nobody."""
        turns = self.cluster.profile.turns_of_devices if self.layout.shared else 0.0
        return self.env.timeout(self.overhead() + turns)


def sync(training: Training) -> Steps:
    """Trials, then the update on all of them, then the sync: nothing overlaps."""
    while True:
        yield training.prepare()
        done = yield training.batch()
        yield from training.learn(list(done.values()))


def one_step_off(training: Training) -> Steps:
    """The next step's trials run while this step's stragglers and its update do."""
    begun, pending = 0, deque[simpy.Event]()
    while True:
        while begun < training.known(training.trials.version + 2):
            pending.append(training.batch())
            begun += 1
        yield training.prepare()
        done = yield pending.popleft()
        yield from training.learn(list(done.values()))


def asynchronous(training: Training) -> Steps:
    """A rollouter keeps groups in flight; a step takes the first complete ones that are young enough."""
    env, trials, workload = training.env, training.trials, training.workload
    complete: simpy.Store = simpy.Store(env)
    counts = {"submitted": 0, "dropped": 0}

    def carry(group: simpy.Process) -> Steps:
        done = yield group
        yield complete.put(done)

    def submit() -> None:
        """As many groups as the bound allows: those of the steps that the newest weights may still take part in."""
        allowed = training.known(trials.version + workload.max_staleness + 1) * workload.tasks_per_step
        while counts["submitted"] - counts["dropped"] < allowed:
            counts["submitted"] += 1
            env.process(carry(trials.group()))

    while True:
        submit()
        yield training.prepare()
        groups: list[SimulatedGroup] = []
        dropped = counts["dropped"]
        while len(groups) < workload.tasks_per_step:
            group = yield complete.get()
            if trials.version - group.oldest <= workload.max_staleness:
                groups.append(group)
            else:
                counts["dropped"] += 1
                submit()
        yield from training.learn(groups, counts["dropped"] - dropped)


PROCESSES: dict[Mode, Callable[[Training], Steps]] = {
    "sync": sync,
    "one_step_off": one_step_off,
    "async": asynchronous,
}
