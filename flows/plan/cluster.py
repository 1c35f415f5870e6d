"""A simulated cluster: replicas, a learner, and what they do to each other."""

import random
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import simpy

from flows.plan.layout import Layout, Workload
from flows.plan.profile import PlanError, Profile
from flows.plan.shared_server import SharedServer


class ReplicaLost(Exception):
    """The replica died under the turn that it was to answer."""


@dataclass(eq=False)
class SimulatedReplica:
    """A server of tokens, how many sessions stick to it, and how many turns it is asked for now."""

    server: SharedServer
    sessions: int = 0
    turns: int = 0
    alive: bool = True


class SimulatedCluster:
    """The replicas and the learner of a layout.

    Engines and learner that share nodes slow each other down while both are busy.
    """

    def __init__(
        self, env: simpy.Environment, profile: Profile, layout: Layout, workload: Workload, random: random.Random
    ) -> None:
        count = workload.replicas(layout)
        if not count:
            raise PlanError(
                f"{layout.rollout_nodes} rollout nodes hold no replica at {workload.replicas_per_node:g} a node; "
                "plan with more nodes"
            )
        self.env, self.profile = env, profile
        self.replicas = [SimulatedReplica(SharedServer(env, self._tokens_per_s)) for _ in range(count)]
        self.learner = SharedServer(env, lambda _: 1.0)
        self._random, self._seats = random, workload.seats
        self._faster = (layout.train_nodes / profile.train_nodes) ** workload.scaling
        self._back = env.event()
        self._shared = layout.shared
        self.learner.on_change = self._contend
        if workload.replica_mtbf_hours is not None:
            for replica in self.replicas:
                env.process(self._dying(replica, workload.replica_mtbf_hours * 3600, workload.replica_boot_seconds))

    @property
    def servers(self) -> list[SharedServer]:
        return [self.learner, *(replica.server for replica in self.replicas)]

    def home(self) -> Any:
        """The replica with the fewest sessions, once one is alive; a process."""
        while not (alive := [replica for replica in self.replicas if replica.alive]):
            yield self._back
        return min(alive, key=lambda replica: replica.sessions)

    @contextmanager
    def turn(self, replica: SimulatedReplica) -> Iterator[None]:
        """The replica works on a turn inside the block, also before the first token."""
        replica.turns += 1
        self._contend()
        try:
            yield
        finally:
            replica.turns -= 1
            self._contend()

    def update(self, tokens: float) -> simpy.Event:
        """The event of an update on a batch for which `tokens` were sampled."""
        profile = self.profile
        seconds = profile.update_base + profile.update_token * profile.batch_tokens * tokens
        return self.learner.work(seconds * self._random.choice(profile.update_spread) / self._faster)

    def sync(self) -> Any:
        """Replicas stop, take the new weights and go on; a process."""
        for replica in self.replicas:
            replica.server.pause(True)
        yield self.env.timeout(self._random.choice(self.profile.sync))
        for replica in self.replicas:
            replica.server.pause(False)

    def _tokens_per_s(self, sequences: int) -> float:
        """Of each sequence, where more than `seats` wait for one: on average each is decoded a part of the time."""
        speed, decoded = self.profile.engine, min(sequences, self._seats)
        return decoded / sequences / (speed.token + speed.crowd * decoded)

    def _contend(self) -> None:
        if not self._shared:
            return
        both = self.learner.busy and any(replica.turns for replica in self.replicas)
        self.learner.slow_down(self.profile.learner_beside_trials if both else 1.0)
        for replica in self.replicas:
            replica.server.slow_down(self.profile.engine_beside_learner if both else 1.0)

    def _dying(self, replica: SimulatedReplica, mean_seconds: float, boot_seconds: float) -> Any:
        while True:
            yield self.env.timeout(self._random.expovariate(1 / mean_seconds))
            replica.alive = False
            replica.server.fail_all(ReplicaLost())
            yield self.env.timeout(boot_seconds)
            replica.alive = True
            self._back, back = self.env.event(), self._back
            back.succeed()
