"""What is simulated: which nodes do what, in which mode, and what a step consists of."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

Mode = Literal["sync", "one_step_off", "async"]
MODES: tuple[Mode, ...] = ("sync", "one_step_off", "async")


@dataclass(frozen=True)
class Layout:
    """Nodes and the mode. `shared`: all nodes do both, and `train_nodes == rollout_nodes`."""

    mode: Mode
    train_nodes: int
    rollout_nodes: int
    shared: bool = False

    @property
    def nodes(self) -> int:
        """Nodes that are paid for."""
        return self.train_nodes if self.shared else self.train_nodes + self.rollout_nodes

    @property
    def split(self) -> str:
        """For tables: `2 + 6`, or `8 shared`."""
        return f"{self.nodes} shared" if self.shared else f"{self.train_nodes} + {self.rollout_nodes}"


@dataclass(frozen=True)
class Workload:
    """A step's trials, and what bounds them.

    `replicas_per_node` may be less than one for replicas that span nodes. `concurrency` is trials at once for each
    replica, `seats` the sequences that it decodes at once. `max_staleness` bounds the age of a trained token in weight
    versions, in the mode async. `scaling` is the exponent by which an update gets faster with nodes: 1 if twice the
    nodes halve it.
    """

    tasks_per_step: int
    attempts_per_task: int
    concurrency: int
    seats: int
    replicas_per_node: float = 1.0
    infra_attempts: int = 3
    max_staleness: int = 1
    scaling: float = 0.9
    replica_mtbf_hours: float | None = None
    replica_boot_seconds: float = 120.0

    @property
    def trials_per_step(self) -> int:
        return self.tasks_per_step * self.attempts_per_task

    def replicas(self, layout: Layout) -> int:
        """Replicas on the layout's rollout nodes; 0 if not even one fits."""
        return int(layout.rollout_nodes * self.replicas_per_node)


def layouts(modes: Sequence[Mode], sizes: Sequence[int], *, one_machine: bool) -> Iterator[Layout]:
    """All layouts of clusters of these sizes.

    Nodes are shared in sync, where learner and replicas take turns. In the other modes both work at once, so they
    share a node only on one machine whose CPUs do all (`one_machine`), where nothing else is possible.
    """
    for size in sizes:
        for mode in modes:
            if mode == "sync" or (one_machine and size == 1):
                yield Layout(mode, size, size, shared=True)
            for train in range(1, size):
                yield Layout(mode, train, size - train)
