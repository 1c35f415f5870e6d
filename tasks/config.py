"""Which tasks are tried, how often, and how the policy is scored."""

from pathlib import Path
from typing import Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from tasks.trial_workers import WorkersConfig
from trainer.rollout import Outcome, Sampling

BUILTIN_KATA = "builtin:kata"


class DataConfig(BaseModel):
    """The pools."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    train: str = Field(BUILTIN_KATA, description=f"Index of the tasks to train on, or `{BUILTIN_KATA}`")
    heldout: str = Field(BUILTIN_KATA, description=f"Index of the tasks to score on, or `{BUILTIN_KATA}`")
    difficulty: list[str] = Field([], description="Only tasks to which the index gives one of these; all if empty")
    seed: int = Field(0, description="Order in which tasks are drawn")

    def train_index(self, root: Path) -> Path:
        """The training index as a path."""
        return (
            root / "pools" / "kata" / "train.parquet" if self.train == BUILTIN_KATA else Path(self.train).expanduser()
        )

    def heldout_index(self, root: Path) -> Path:
        """The held-out index as a path."""
        return (
            root / "pools" / "kata" / "heldout.parquet"
            if self.heldout == BUILTIN_KATA
            else Path(self.heldout).expanduser()
        )

    @property
    def needs_kata(self) -> bool:
        return BUILTIN_KATA in (self.train, self.heldout)


class RolloutConfig(BaseModel):
    """The trials of a step."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    tasks_per_step: int = Field(64, ge=1, description="Tasks drawn a step")
    attempts_per_task: int = Field(8, ge=2, description="Trials of each task: a group")
    temperature: float = Field(
        1.0, gt=0, le=10, description="Sampling temperature; the learner divides its logits by the same"
    )
    top_p: float = Field(
        1.0, gt=0, le=1, description="Nucleus of sampling; below 1 the trained distribution is another"
    )
    max_tokens_per_turn: int = Field(512, ge=1, description="Longest answer of one turn, in tokens")
    concurrency: int = Field(64, ge=1, description="Trials at once")
    infra_attempts: int = Field(3, ge=1, description="Tries of a trial that fails for reasons the policy cannot cause")
    max_infra_share: float = Field(
        0.5,
        ge=0,
        le=1,
        description="Part of a step's trials that infrastructure may cost; beyond it the step stops",
    )
    workers: WorkersConfig = Field(WorkersConfig(), description="Processes that run the trials")
    step_timeout: float | None = Field(
        None, gt=0, description="Seconds that the trials of a step may take before it stops; no limit if unset"
    )

    @model_validator(mode="after")
    def _whole_distribution(self) -> Self:
        if self.top_p < 1:
            raise ValueError(
                f"top_p is {self.top_p}: log-probs of a truncated distribution are not the ones the learner computes; "
                "set top_p: 1.0"
            )
        return self

    @property
    def sampling(self) -> Sampling:
        return Sampling(self.temperature, self.top_p, self.max_tokens_per_turn)


class FilterConfig(BaseModel):
    """Which rollouts and groups leave the batch; they then count in no baseline, no loss and no normaliser."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    drop_outcomes: list[Outcome] = Field(
        [], description="Trials that ended so are left out; infra_error is left out always"
    )
    min_response_tokens: int = Field(0, ge=0, description="Trials with fewer sampled tokens are left out")
    drop_uniform_groups: bool = Field(False, description="Leave out groups whose rewards are all equal")
    refill_rounds: int = Field(
        0, ge=0, description="How often a step may try fresh tasks in the place of groups that were left out (DAPO)"
    )

    @model_validator(mode="after")
    def _leaves_something(self) -> Self:
        if Outcome.INFRA_ERROR in self.drop_outcomes:
            raise ValueError("drop_outcomes names infra_error, which is left out always; take it off the list")
        if set(self.drop_outcomes) | {Outcome.INFRA_ERROR} == set(Outcome):
            raise ValueError("drop_outcomes names every outcome, so nothing is left to train on; take one off the list")
        if self.refill_rounds and not self.drop_uniform_groups:
            raise ValueError(
                f"refill_rounds is {self.refill_rounds}, but groups without signal stay in the batch; "
                "set drop_uniform_groups: true, or refill_rounds: 0"
            )
        return self


class EvaluationConfig(BaseModel):
    """How the policy is scored on held-out tasks."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    attempts_per_task: int = Field(4, ge=1, description="Trials of each task")
    temperature: float = Field(0.7, ge=0, le=10, description="Sampling temperature when scoring")
    top_p: float = Field(1.0, gt=0, le=1, description="Nucleus of sampling when scoring")
    max_tasks: int | None = Field(
        None, ge=1, description="Score on this many tasks only, spread over the index; all if unset"
    )
    concurrency: int | None = Field(
        None, ge=1, description="Trials at once, beside those of training; rollout.concurrency if unset"
    )
    timeout: float | None = Field(
        None, gt=0, description="Seconds after which a run gives an evaluation up and goes on; no limit if unset"
    )
