"""The configuration of a run: one model, made of the sections that each part defines beside its own code."""

import hashlib
import importlib
import json
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any, Literal, Self, get_args

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from flows.diagnosis.config import DiagnosisConfig
from harness.budgets import BudgetConfig
from harness.pool.sampler import SamplerConfig
from harness.proxy.tool_calls import ToolParserError, require_known
from harness.sandbox import SANDBOXES, SandboxConfig
from harness.scaffolds.base import SCAFFOLDS, ScaffoldConfig
from harness.verifier import VerifierConfig
from tasks.config import DataConfig, EvaluationConfig, FilterConfig, RolloutConfig
from tasks.reward import RewardConfig
from tasks.rollout_ledger import Mode
from tasks.thin_trials import Keep
from tasks.tracing import TracingConfig
from trainer.algorithms.check import Finding, StepFacts, check
from trainer.algorithms.config import AlgorithmConfig
from trainer.algorithms.registry import POLICY_LOSSES
from trainer.algorithms.staleness import StalenessConfig
from trainer.fidelity.config import FidelityConfig
from trainer.learner.config import LearnerConfig
from trainer.learner.retention import Retention
from trainer.model import ModelConfig
from trainer.serving.colocated import check_colocation
from trainer.serving.config import ServingConfig

NAME = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$"
MODULE = r"^[A-Za-z_]\w*(\.[A-Za-z_]\w*)*$"


class ConfigError(ValueError):
    """A configuration that cannot run; the message names field, value and mend, a line each."""


class ScheduleConfig(BaseModel):
    """How long a run lasts, and what happens on the way."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    total_steps: int = Field(100, ge=1, description="Steps of the run; raise it to continue a finished run")
    save_freq: int = Field(10, ge=1, description="Steps between checkpoints; the last step always has one")
    test_freq: int = Field(10, ge=0, description="Steps between evaluations; 0 for none on the way")
    eval_before: bool = Field(True, description="Evaluate before the first step")
    eval_after: bool = Field(True, description="Evaluate after the last step")
    keep_checkpoints: int = Field(2, ge=1, description="Newest checkpoints that are kept")
    keep_every: int | None = Field(None, ge=1, description="Keep those of every so many steps as well; none if unset")
    keep_best: int = Field(0, ge=0, description="Keep so many of the best as well, by best_metric")
    best_metric: str | None = Field(
        None, description="What ranks them: a key of an evaluation's record (mean_reward, pass_at_1), else of a step's"
    )
    best_is: Literal["max", "min"] = Field("max", description="Whether the best is the largest or the smallest")
    save_in_background: bool = Field(
        True, description="Go on with trials while a checkpoint is written; an update waits for it"
    )

    max_hours: float | None = Field(
        None,
        gt=0,
        description="Hours after which a run stops by itself, after a step and with a checkpoint; none if unset",
    )
    keep_trials: Keep = Field(
        "all",
        description="Trials of finished steps that stay whole: all; sampled: those that are traced, and failures; "
        "failures: those in which something broke. Of the others stays how they ended",
    )

    @model_validator(mode="after")
    def _keeps_what_it_can_tell(self) -> Self:
        if self.keep_best and self.best_metric is None:
            raise ValueError(
                f"keep_best is {self.keep_best}, but best_metric is unset; name what ranks them, such as mean_reward"
            )
        if self.best_metric is not None and not self.keep_best:
            raise ValueError(
                f"best_metric is {self.best_metric!r}, but keep_best is 0; set how many of the best are kept"
            )
        if self.keep_every is not None and self.keep_every % self.save_freq:
            raise ValueError(
                f"keep_every is {self.keep_every}, but checkpoints are made every {self.save_freq} steps (save_freq); "
                "take a multiple of that"
            )
        return self

    @property
    def retention(self) -> Retention:
        return Retention(self.keep_checkpoints, self.keep_every, self.keep_best, self.best_metric, self.best_is)


class RunConfig(BaseModel):
    """A training run."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    project: str = Field("testgrad", pattern=NAME, description="Names the MLflow experiment and the folder of its runs")
    experiment: str = Field(pattern=NAME, description="Names this run; the same name goes on where it stopped")
    plugins: list[Annotated[str, Field(pattern=MODULE)]] = Field(
        [], description="Modules to import first, which add to the registries"
    )
    mode: Mode = Field(
        "sync",
        description="sync: a step's trials on the newest weights; one_step_off: those of the next step run beside "
        "this step's stragglers and its update; async: groups are kept in flight, and a step takes the first that are "
        "complete",
    )
    staleness: StalenessConfig = Field(StalenessConfig(), description="How old tokens may be that are trained on")
    model: ModelConfig = Field(ModelConfig(), description="The policy")
    data: DataConfig = Field(DataConfig(), description="The pools")
    pool: SamplerConfig = Field(SamplerConfig(), description="How tasks are drawn")
    rollout: RolloutConfig = Field(RolloutConfig(), description="The trials of a step")
    scaffold: ScaffoldConfig = Field(ScaffoldConfig(), description="The agent")
    sandbox: SandboxConfig = Field(SandboxConfig(), description="Where the agent works")
    verifier: VerifierConfig = Field(VerifierConfig(), description="How patches are graded")
    budgets: BudgetConfig = Field(BudgetConfig(), description="How long each stage of a trial may take")
    reward: RewardConfig = Field(RewardConfig(), description="What a trial earns")
    filter: FilterConfig = Field(FilterConfig(), description="Which rollouts are trained on")
    algorithm: AlgorithmConfig = Field(AlgorithmConfig(), description="From rewards to gradients")
    fidelity: FidelityConfig = Field(FidelityConfig(), description="How far engine and trainer may disagree")
    learner: LearnerConfig = Field(LearnerConfig(), description="How the policy is trained")
    serving: ServingConfig = Field(ServingConfig(), description="How the policy is served")
    schedule: ScheduleConfig = Field(ScheduleConfig(), description="How long, and what on the way")
    evaluation: EvaluationConfig = Field(EvaluationConfig(), description="How the policy is scored")
    tracing: TracingConfig = Field(TracingConfig(), description="Which trials can be looked at as traces in MLflow")
    diagnosis: DiagnosisConfig = Field(DiagnosisConfig(), description="What the verdict on the first step may do")

    @model_validator(mode="before")
    @classmethod
    def _load_plugins(cls, values: Any) -> Any:
        """Plugins first: they add names that the sections are then checked against."""
        plugins = values.get("plugins") if isinstance(values, dict) else None
        for plugin in plugins if isinstance(plugins, list) else []:
            if isinstance(plugin, str) and re.match(MODULE, plugin):  # else the field's own check says so
                import_plugin(plugin)
        return values

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        check_colocation(self.serving, self.learner)
        if self.scaffold.name not in SCAFFOLDS:
            raise ValueError(f"scaffold.name is {self.scaffold.name!r}; known are {', '.join(sorted(SCAFFOLDS))}")
        SCAFFOLDS[self.scaffold.name].check(self.scaffold)
        if self.sandbox.backend not in SANDBOXES:
            raise ValueError(f"sandbox.backend is {self.sandbox.backend!r}; known are {', '.join(sorted(SANDBOXES))}")
        if self.rollout.max_tokens_per_turn >= self.serving.window:
            raise ValueError(
                f"rollout.max_tokens_per_turn is {self.rollout.max_tokens_per_turn}, which leaves no room for a prompt "
                f"in serving.window of {self.serving.window} tokens; raise the window or lower the answer"
            )
        if self.reward.overlong_buffer and (self.reward.overlong_length or 0) > self.serving.window:
            raise ValueError(
                f"reward.overlong_length is {self.reward.overlong_length}, which no answer reaches in "
                f"serving.window of {self.serving.window} tokens; lower it, or raise the window"
            )
        try:
            require_known(self.serving.tool_call_parser, self.serving.reasoning_parser)
        except ToolParserError as error:
            raise ValueError(f"serving.tool_call_parser, serving.reasoning_parser: {error}") from error
        if self.serving.tool_call_parser is None and SCAFFOLDS[self.scaffold.name].calls_tools(self.scaffold):
            raise ValueError(
                f"scaffold.name is {self.scaffold.name!r}, whose agent offers tools, but serving.tool_call_parser is "
                "unset, so that every call would be text; name the parser that fits the policy, such as hermes"
            )
        trials = self.rollout.tasks_per_step * self.rollout.attempts_per_task
        if self.learner.mini_batch_size is not None and self.learner.mini_batch_size > trials:
            raise ValueError(
                f"learner.mini_batch_size is {self.learner.mini_batch_size}, but a step has {trials} trials; "
                "lower it, or leave it unset"
            )
        lora, room = self.learner.lora, self.serving.lora_rank
        if lora is not None and lora.sync == "adapters" and (room is None or room < lora.rank):
            raise ValueError(
                f"learner.lora.sync is adapters, of rank {lora.rank}, but serving.lora_rank is {room}; set "
                f"serving.lora_rank: {lora.rank}, or learner.lora.sync: merged"
            )
        if room is not None and (lora is None or lora.sync != "adapters"):
            raise ValueError(
                f"serving.lora_rank is {room}, but replicas are synced with whole weights; leave it unset, or set "
                "learner.lora.sync: adapters"
            )
        if self.learner.moe.replay and not self.serving.capture_routing:
            raise ValueError(
                "learner.moe.replay is on, but serving.capture_routing is off, so that there would be nothing to "
                "replay; set serving.capture_routing: true, or learner.moe.replay: false"
            )
        if self.learner.gpus_per_rank and self.learner.ranks > 1 and self.serving.tensor_parallel > self.learner.ranks:
            raise ValueError(
                f"serving.tensor_parallel is {self.serving.tensor_parallel}, more than the {self.learner.ranks} "
                "devices of the learner"
            )
        return self

    @model_validator(mode="after")
    def _can_sample_ahead(self) -> Self:
        if not self.samples_ahead:
            return self
        if self.serving.colocated:
            raise ValueError(
                f"mode is {self.mode}, where the engine samples while the learner updates, but serving.colocated makes "
                "them take turns on the same GPUs; set mode: sync, or serving.colocated: false"
            )
        if self.filter.refill_rounds:
            raise ValueError(
                f"filter.refill_rounds is {self.filter.refill_rounds}, but with mode {self.mode} a step draws nothing "
                "itself; set it to 0, and raise rollout.tasks_per_step to have more groups with a signal"
            )
        correction, loss = self.algorithm.rollout_correction, POLICY_LOSSES[self.algorithm.policy_loss]
        if correction.mode == "off" or (correction.mode == "decoupled" and correction.weights == "none"):
            raise ValueError(
                f"mode is {self.mode}, where tokens are sampled from older weights, but nothing corrects for them: "
                f"algorithm.rollout_correction has mode: {correction.mode}, weights: {correction.weights}; set mode: "
                "decoupled and weights: token, or mode: bypass"
            )
        if self.staleness.too_old == "down_weight" and loss.options.get("averages"):
            raise ValueError(
                f"staleness.too_old is down_weight, which weighs tokens, but policy_loss {loss.name} takes the mean of "
                "a rollout's advantages, and older tokens would be trained on like the others; set policy_loss: "
                "gspo_token, or too_old: drop"
            )
        if self.mode == "one_step_off" and not self.staleness.max_staleness:
            raise ValueError(
                "mode is one_step_off, where tokens are a weight version old, but staleness.max_staleness is 0; set it "
                "to 1, or mode: sync"
            )
        return self

    @model_validator(mode="after")
    def _means_what_it_says(self) -> Self:
        errors = [finding.message for finding in self._findings() if finding.level == "error"]
        if errors:
            raise ValueError("algorithm: " + "; ".join(errors))
        return self

    @property
    def samples_ahead(self) -> bool:
        """Whether trials run beside the steps, so that their tokens may be of older weights."""
        return self.mode != "sync"

    @property
    def stale_tokens(self) -> StalenessConfig | None:
        """What holds for tokens of older weights; None if there can be none."""
        return self.staleness if self.samples_ahead else None

    @property
    def warnings(self) -> list[str]:
        """What this configuration would do that its author may not expect."""
        return [finding.message for finding in self._findings() if finding.level == "warning"]

    def _findings(self) -> list[Finding]:
        facts = StepFacts(
            attempts_per_task=self.rollout.attempts_per_task,
            response_tokens=self.rollout.max_tokens_per_turn * self.scaffold.max_turns,
            ppo_epochs=self.learner.ppo_epochs,
            has_critic=self.learner.critic is not None,
            has_reward_function=self.reward.function is not None,
            has_overlong_penalty=self.reward.overlong_buffer > 0,
        )
        return check(self.algorithm, facts)

    def identity(self) -> str:
        """Digest of what a run's results depend on.

        That is all but its length, its saving, what stops it and who watches; and ranks, whose number is rounding.
        """
        whole = dict.fromkeys(("schedule", "evaluation", "fidelity", "tracing", "diagnosis"), True)
        fixed = self.model_dump(
            mode="json", exclude=whole | {"rollout": {"max_infra_share", "step_timeout", "workers"}}
        )
        fixed["learner"] = {key: value for key, value in fixed["learner"].items() if key not in ("ranks", "nodes")}
        return hashlib.sha256(json.dumps(fixed, sort_keys=True).encode()).hexdigest()[:16]


def import_plugin(name: str) -> None:
    """Import a module that adds to the registries.

    Raises:
        ConfigError: it cannot be imported.
    """
    try:
        importlib.import_module(name)
    except ImportError as error:
        raise ConfigError(f"plugins: cannot import {name!r} ({error}); install it, or correct the name") from error


def load_config(path: Path, overrides: Iterable[str] = ()) -> RunConfig:
    """The run that a file configures, with profiles and site below it, environment and `overrides` on top.

    See `flows.configuration.load_run`, which also tells which layer said what.

    Raises:
        ConfigError: a layer cannot be read, or what they add up to cannot run.
    """
    from flows.configuration import load_run  # built on this module

    return load_run(path, overrides).config


def parse_config(values: dict[str, Any], source: str) -> RunConfig:
    """A run config from nested values.

    Raises:
        ConfigError: values that cannot run.
    """
    try:
        return RunConfig.model_validate(values)
    except ValidationError as error:
        raise ConfigError("\n".join(_explain(source, problem) for problem in error.errors())) from error


def _explain(source: str, problem: Any) -> str:
    field = ".".join(str(part) for part in problem["loc"])
    message = problem["msg"].removeprefix("Value error, ")
    if problem["type"] == "extra_forbidden":
        known = ", ".join(_fields_at(problem["loc"][:-1]))
        return f"{source}: {field}: unknown key; known here are {known}"
    if problem["type"] == "missing":
        return f"{source}: {field}: required, and missing"
    place = f"{source}: {field}" if field else source
    if problem["type"] == "value_error":
        return f"{place}: {message}"
    return f"{place}: {message} (got {problem['input']!r})"


def _fields_at(location: Iterable[Any]) -> list[str]:
    model: Any = RunConfig
    for part in location:
        annotation = model.model_fields[part].annotation
        # an optional section is a union of it and None
        model = next((kind for kind in get_args(annotation) if hasattr(kind, "model_fields")), annotation)
    return sorted(model.model_fields)
