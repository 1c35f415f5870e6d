"""ATIF v1.8 as Harbor publishes it: what its own validator accepts, rule by rule.

Text parts only: a policy here reads and writes no pictures.
"""

from datetime import datetime
from typing import Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

AGENT_ONLY = ("model_name", "reasoning_effort", "reasoning_content", "tool_calls", "metrics")


class Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)


class Agent(Strict):
    name: str
    version: str
    model_name: str | None = None
    tool_definitions: list[dict[str, Any]] | None = None
    extra: dict[str, Any] | None = None


class ToolCall(Strict):
    tool_call_id: str
    function_name: str
    arguments: dict[str, Any]
    extra: dict[str, Any] | None = None


class SubagentTrajectoryRef(Strict):
    trajectory_id: str | None = None
    session_id: str | None = None
    trajectory_path: str | None = None
    extra: dict[str, Any] | None = None

    @model_validator(mode="after")
    def _resolvable(self) -> Self:
        assert self.trajectory_id or self.trajectory_path, "a reference needs trajectory_id or trajectory_path"
        return self


class ObservationResult(Strict):
    source_call_id: str | None = None
    content: str | None = None
    subagent_trajectory_ref: list[SubagentTrajectoryRef] | None = None
    extra: dict[str, Any] | None = None


class Observation(Strict):
    results: list[ObservationResult]


class Metrics(Strict):
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    cached_tokens: int | None = None
    cost_usd: float | None = None
    prompt_token_ids: list[int] | None = None
    completion_token_ids: list[int] | None = None
    logprobs: list[float] | None = None
    extra: dict[str, Any] | None = None

    @model_validator(mode="after")
    def _counts(self) -> Self:
        """The lengths that the specification asks for."""
        for ids, count in (
            (self.prompt_token_ids, self.prompt_tokens),
            (self.completion_token_ids, self.completion_tokens),
            (self.logprobs, self.completion_tokens),
        ):
            assert ids is None or len(ids) == count, f"{len(ids or [])} entries for {count} tokens"
        return self


class Step(Strict):
    step_id: int = Field(ge=1)
    timestamp: str | None = None
    source: Literal["system", "user", "agent"]
    model_name: str | None = None
    reasoning_effort: str | float | None = None
    message: str
    reasoning_content: str | None = None
    tool_calls: list[ToolCall] | None = None
    observation: Observation | None = None
    metrics: Metrics | None = None
    is_copied_context: bool | None = None
    llm_call_count: int | None = Field(None, ge=0)
    extra: dict[str, Any] | None = None

    @model_validator(mode="after")
    def _fields_of_its_source(self) -> Self:
        if self.timestamp is not None:
            datetime.fromisoformat(self.timestamp)
        given = [name for name in AGENT_ONLY if getattr(self, name) is not None]
        assert self.source == "agent" or not given, f"{given} on a step of {self.source}"
        if self.source == "agent" and self.llm_call_count == 0:
            assert self.metrics is None and self.reasoning_content is None, "nothing was inferred"
        return self


class FinalMetrics(Strict):
    total_prompt_tokens: int | None = None
    total_completion_tokens: int | None = None
    total_cached_tokens: int | None = None
    total_cost_usd: float | None = None
    total_steps: int | None = Field(None, ge=0)
    extra: dict[str, Any] | None = None


class Trajectory(Strict):
    schema_version: Literal["ATIF-v1.8"]
    session_id: str | None = None
    trajectory_id: str | None = None
    agent: Agent
    steps: list[Step] = Field(min_length=1)
    notes: str | None = None
    final_metrics: FinalMetrics | None = None
    continued_trajectory_ref: str | None = None
    extra: dict[str, Any] | None = None
    subagent_trajectories: list["Trajectory"] | None = None

    @model_validator(mode="after")
    def _adds_up(self) -> Self:
        assert [step.step_id for step in self.steps] == list(range(1, len(self.steps) + 1))
        embedded = [trajectory.trajectory_id for trajectory in self.subagent_trajectories or []]
        assert None not in embedded and len(set(embedded)) == len(embedded), f"ids of sub-agents: {embedded}"
        if self.final_metrics is not None and self.notes is None:
            assert self.final_metrics.total_steps in (None, len(self.steps))
        for step in self.steps:
            calls = {call.tool_call_id for call in step.tool_calls or []}
            for result in step.observation.results if step.observation else []:
                assert result.source_call_id is None or result.source_call_id in calls, "no such call in this step"
                for reference in result.subagent_trajectory_ref or []:
                    assert reference.trajectory_path or reference.trajectory_id in embedded, "no such sub-agent"
        return self
