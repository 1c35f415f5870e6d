"""What checks may look at: the configuration, and what of its model, pools and machine is within reach."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from flows.config import RunConfig
from flows.configuration.schema import is_set
from flows.preflight.machine import Machine
from flows.preflight.model_facts import ModelFacts, local_folder
from harness.pool.index import PoolError, TaskPointer
from harness.scaffolds.base import ScaffoldConfig
from tasks.draw import read_pool


@dataclass
class Facts:
    """Facts of one run, each looked up once. `root` is where runs, models and pools are kept."""

    config: RunConfig
    root: Path
    machine: Machine = field(default_factory=Machine.here)

    def is_set(self, key: str) -> bool:
        """Whether somebody chose the setting at the dotted `key`, in whatever layer."""
        return is_set(self.config, key)

    @cached_property
    def model(self) -> ModelFacts | None:
        """The policy, None while it is not on this machine.

        Raises:
            ModelError: it is here, and unusable.
        """
        folder = local_folder(self.config.model.path, self.root)
        return None if folder is None else ModelFacts(folder)

    @property
    def trials(self) -> int:
        """Trials of a step."""
        return self.config.rollout.tasks_per_step * self.config.rollout.attempts_per_task

    @property
    def gpus(self) -> int:
        """GPUs that learner and replicas take, each their own unless they take turns; 0 on CPUs."""
        learner, serving = self.config.learner, self.config.serving
        if not learner.gpus_per_rank:
            return 0
        if serving.colocated:
            return learner.ranks * learner.gpus_per_rank
        return learner.ranks * learner.gpus_per_rank + serving.replicas * serving.tensor_parallel

    @property
    def scaffolds(self) -> list[ScaffoldConfig]:
        """The agents that will run: those of `mixed`, or the one that is configured.

        Raises:
            ScaffoldError: one of them cannot be.
        """
        from harness.scaffolds.mixed import member

        scaffold = self.config.scaffold
        if scaffold.name != "mixed":
            return [scaffold]
        return [member(scaffold, name) for name, weight in scaffold.mixed.weights.items() if weight > 0]

    @cached_property
    def train_pool(self) -> "Pool":
        return Pool.read(self.config.data.train_index(self.root), self.config.data.difficulty)

    @cached_property
    def heldout_pool(self) -> "Pool":
        return Pool.read(self.config.data.heldout_index(self.root), self.config.data.difficulty)


@dataclass(frozen=True)
class Pool:
    """An index, its rows, or why it has none that can be used."""

    index: Path
    rows: Sequence[TaskPointer] = ()
    problem: str = ""

    @classmethod
    def read(cls, index: Path, difficulty: Sequence[str]) -> "Pool":
        try:
            return cls(index, read_pool(index, difficulty))
        except PoolError as error:
            return cls(index, problem=str(error))
