"""What a simulation is fed with: how long the parts of trials, updates and syncs take, as measured or as stated."""

from typing import Self

from pydantic import BaseModel, ConfigDict, Field, model_validator


class PlanError(ValueError):
    """There is nothing to plan with, or it contradicts itself."""


class TrialShape(BaseModel):
    """A trial as it would be on an engine of any speed: what it samples, and what else it waits for, in seconds."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    turns: int = Field(ge=1, description="Answers of the policy")
    tokens: int = Field(ge=0, description="Tokens that it samples, in all turns")
    setup: float = Field(0.0, ge=0, description="Before the first turn: the sandbox")
    tools: float = Field(0.0, ge=0, description="Between its turns, all together: what the agent runs")
    finish: float = Field(0.0, ge=0, description="After the last turn: reading the patch, removing the sandbox")
    grading: float = Field(0.0, ge=0, description="The hidden tests, which run beside other trials")


class EngineSpeed(BaseModel):
    """A replica that decodes n sequences at once gives each a token every `token + crowd × n` seconds."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    token: float = Field(0.0, ge=0, description="Seconds a token, however few are decoded")
    crowd: float = Field(0.0, ge=0, description="Seconds a token more for each sequence decoded at once")
    turn: float = Field(0.0, ge=0, description="Seconds before the first token of a turn")

    @model_validator(mode="after")
    def _takes_time(self) -> Self:
        if not self.token + self.crowd:
            raise ValueError("token and crowd are 0: an engine would sample in no time; state one of them")
        return self

    @property
    def most_tokens_per_s(self) -> float:
        """What a replica comes to with very many sequences; infinite if they do not slow each other down."""
        return 1 / self.crowd if self.crowd else float("inf")


class Profile(BaseModel):
    """All that is known of a workload on one kind of machine.

    `update`, `sync` and `overhead` are those of `train_nodes` nodes.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    source: str = Field(description="Where the figures are from")
    groups: tuple[tuple[TrialShape, ...], ...] = Field(
        min_length=1, description="Trials by group, in order: those of one task are alike, so a group is drawn from one"
    )
    engine: EngineSpeed
    update_base: float = Field(0.0, ge=0, description="Seconds of an update without tokens")
    update_token: float = Field(0.0, ge=0, description="Seconds of an update for each token of its batch")
    batch_tokens: float = Field(1.0, ge=0, description="Tokens of the batch for each that was sampled: prompts too")
    update_spread: tuple[float, ...] = Field((1.0,), min_length=1, description="Factors by which updates differ")
    sync: tuple[float, ...] = Field((0.0,), min_length=1, description="Seconds of a sync, one of which is drawn")
    overhead: tuple[float, ...] = Field(
        (0.0,), min_length=1, description="Seconds of a step in which neither trials nor learner work, one is drawn"
    )
    turns_of_devices: float = Field(0.0, ge=0, description="Seconds a step to hand devices over, where they are shared")
    infra_failures: float = Field(0.0, ge=0, lt=1, description="Share of attempts that infrastructure breaks")
    train_nodes: int = Field(1, ge=1, description="Nodes that `update` was measured on")
    engine_share: float = Field(1.0, gt=0, le=1, description="Part of a machine that busy engines take when alone")
    learner_share: float = Field(1.0, gt=0, le=1, description="Part of a machine that a busy learner takes when alone")
    trial_share: float = Field(0.0, ge=0, description="Part of a machine that agents, proxy and graders take meanwhile")

    @model_validator(mode="after")
    def _has_trials(self) -> Self:
        if not all(self.groups):
            raise ValueError("groups holds one without a trial; leave it out")
        return self

    @property
    def learner_beside_trials(self) -> float:
        """How many times more slowly a learner works on a machine on which trials run too."""
        return max(1.0, self.engine_share + self.trial_share + self.learner_share)

    @property
    def engine_beside_learner(self) -> float:
        """How many times more slowly engines work than they do beside trials alone, as they were measured."""
        return self.learner_beside_trials / max(1.0, self.engine_share + self.trial_share)
