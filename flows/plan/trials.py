"""Trials on a simulated cluster, in groups."""

import random
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import simpy

from flows.plan.cluster import ReplicaLost, SimulatedCluster, SimulatedReplica
from flows.plan.layout import Workload
from flows.plan.profile import TrialShape

Shapes = Sequence[TrialShape]
"""The trials of a group."""

MOST_TURNS = 4
"""Longer trials are simulated in so many longer turns, which changes little and saves most of the time."""


@dataclass
class SimulatedGroup:
    """The trials of one task: tokens by the weight version that sampled them."""

    tokens: defaultdict[int, float] = field(default_factory=lambda: defaultdict(float))

    @property
    def oldest(self) -> int:
        """The weight version of its oldest token."""
        return min(self.tokens)


class SimulatedTrials:
    """Runs groups of trials; `version` is that of the weights which replicas serve."""

    def __init__(
        self, cluster: SimulatedCluster, workload: Workload, random: random.Random, groups: Iterator[Shapes]
    ) -> None:
        self.version = 0
        self._cluster, self._env, self._workload, self._random = cluster, cluster.env, workload, random
        self._groups = groups
        self._slots = simpy.Resource(self._env, workload.concurrency * len(cluster.replicas))

    def group(self) -> simpy.Process:
        """A process that runs a group, and returns it when all its trials are graded."""
        return self._env.process(self._group())

    def _group(self) -> Any:
        group = SimulatedGroup()
        yield self._env.all_of([self._env.process(self._trial(shape, group)) for shape in next(self._groups)])
        return group

    def _trial(self, shape: TrialShape, group: SimulatedGroup) -> Any:
        with self._slots.request() as slot:
            yield slot
            for attempt in range(self._workload.infra_attempts):
                last = attempt == self._workload.infra_attempts - 1
                broken = not last and self._random.random() < self._cluster.profile.infra_failures
                yield from self._attempt(shape, group, self._random.random() if broken else 1.0)
                if not broken:
                    break
        yield self._env.timeout(shape.grading)

    def _attempt(self, shape: TrialShape, group: SimulatedGroup, part: float) -> Any:
        """One attempt up to this part of its turns; only a whole one leaves tokens."""
        yield self._env.timeout(shape.setup)
        replica: SimulatedReplica = yield from self._cluster.home()
        replica.sessions += 1
        turns = min(shape.turns, MOST_TURNS)
        wait = self._cluster.profile.engine.turn * shape.turns / turns
        sampled: list[tuple[int, float]] = []
        for _ in range(round(turns * part)):
            replica = yield from self._turn(replica, wait, shape.tokens / turns, sampled)
            yield self._env.timeout(shape.tools / turns)
        replica.sessions -= 1
        if part == 1.0:
            yield self._env.timeout(shape.finish)
            for version, tokens in sampled:
                group.tokens[version] += tokens

    def _turn(self, replica: SimulatedReplica, wait: float, tokens: float, sampled: list[tuple[int, float]]) -> Any:
        """A turn on the session's replica, or on another one from its beginning if that dies; returns which it was."""
        while True:
            version = self.version
            try:
                with self._cluster.turn(replica):
                    yield self._env.timeout(wait)
                    if not replica.alive:
                        raise ReplicaLost
                    yield replica.server.work(tokens)
            except ReplicaLost:
                replica.sessions -= 1
                replica = yield from self._cluster.home()
                replica.sessions += 1
                continue
            sampled.append((version, tokens))
            return replica


def total_tokens(groups: Sequence[SimulatedGroup]) -> float:
    """Tokens sampled for these groups."""
    return sum(sum(group.tokens.values()) for group in groups)
