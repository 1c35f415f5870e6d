"""The configuration of a warm start, made of the sections that a training run has too."""

import hashlib
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from flows.config import NAME, ConfigError
from flows.configuration.layers import nest
from flows.configuration.redaction import refuse_secrets
from flows.configuration.words import from_overrides
from flows.form_order import in_order
from harness.budgets import BudgetConfig
from harness.sandbox import SandboxConfig
from harness.scaffolds.base import ScaffoldConfig
from harness.verifier import VerifierConfig
from tasks.config import BUILTIN_KATA, DataConfig
from trainer.learner.config import LearnerConfig
from trainer.model import ModelConfig

SECTIONS = ("model", "learner", "scaffold", "sandbox", "verifier", "budgets")
"""Those of a run config that `--set` reaches here."""


class DemonstrationConfig(BaseModel):
    """Oracle demonstrations: the known fix of each task, said in the scaffold's format and graded."""

    model_config = ConfigDict(extra="forbid", frozen=True, json_schema_extra=in_order)

    index: str = Field(description=f"Index of the tasks, or `{BUILTIN_KATA}`")
    difficulty: list[str] = Field([], description="Only tasks to which the index gives one of these; all if empty")
    most: int | None = Field(None, ge=1, description="At most so many tasks, evenly over the index; all if unset")
    concurrency: int = Field(4, ge=1, description="Demonstrations at once")
    infra_attempts: int = Field(3, ge=1, description="Tries of one that fails for reasons of the machine")

    def train_index(self, root: Path) -> Path:
        """The index as a path."""
        return DataConfig(train=self.index).train_index(root)


class WarmStartConfig(BaseModel):
    """Supervised fine-tuning of a policy."""

    model_config = ConfigDict(extra="forbid", frozen=True, json_schema_extra=in_order)

    project: str = Field("warm-starts", pattern=NAME, description="Names the MLflow experiment and the folder")
    experiment: str = Field(pattern=NAME, description="Names this warm start; the same name goes on where it stopped")
    model: ModelConfig = Field(ModelConfig(), description="The policy that learns")
    sources: list[Path] = Field([], description="Folders of runs or collections whose accepted trials are learnt from")
    demonstrations: DemonstrationConfig | None = Field(None, description="Oracle demonstrations to learn from")
    heldout: list[str] = Field([], description=f"Indexes whose tasks must not be learnt from; `{BUILTIN_KATA}` too")
    per_task: int = Field(4, ge=1, description="Trajectories of one task, at most")
    window: int = Field(2048, ge=16, description="Longest trajectory that is learnt from, in tokens")
    epochs: int = Field(2, ge=1, description="Times that all trajectories are learnt from")
    batch_size: int = Field(16, ge=1, description="Trajectories of an optimizer step")
    validation_share: float = Field(0.1, ge=0, lt=1, description="Share held back to measure the loss on; 0 for none")
    validate_every: int = Field(0, ge=0, description="Steps between measures; 0 for one an epoch")
    save_every: int = Field(20, ge=1, description="Steps between checkpoints; the last step always has one")
    keep_checkpoints: int = Field(2, ge=1, description="Newest checkpoints that are kept")
    seed: int = Field(0, ge=0, description="Order of the trajectories, and which are held back")
    learner: LearnerConfig = Field(
        LearnerConfig(lr=1e-5, lr_schedule="cosine"), description="How the policy is trained"
    )
    scaffold: ScaffoldConfig = Field(ScaffoldConfig(), description="The agent that demonstrates")
    sandbox: SandboxConfig = Field(SandboxConfig(), description="Where demonstrations are made and graded")
    verifier: VerifierConfig = Field(VerifierConfig(), description="How they are graded")
    budgets: BudgetConfig = Field(BudgetConfig(), description="How long each stage of them may take")

    @model_validator(mode="after")
    def _learns_from_something(self) -> Self:
        if not self.sources and self.demonstrations is None:
            raise ValueError("nothing to learn from: name a folder of trials (--from), or an index (--demonstrations)")
        if self.learner.mini_batch_size is not None or self.learner.ppo_epochs != 1:
            raise ValueError(
                "learner.mini_batch_size and learner.ppo_epochs cut up a step of reinforcement learning; leave them "
                "unset, and set batch_size and epochs"
            )
        if self.learner.critic is not None:
            raise ValueError("learner.critic: nothing is foretold in a warm start; leave it unset")
        return self

    def heldout_indexes(self, root: Path) -> list[Path]:
        """The held-out indexes as paths; the kata pool's own comes along where its tasks are demonstrated."""
        names = list(self.heldout)
        if self.demonstrations is not None and self.demonstrations.index == BUILTIN_KATA and BUILTIN_KATA not in names:
            names.append(BUILTIN_KATA)
        return [DataConfig(heldout=name).heldout_index(root) for name in names]

    @property
    def needs_kata(self) -> bool:
        return BUILTIN_KATA in self.heldout or (
            self.demonstrations is not None and self.demonstrations.index == BUILTIN_KATA
        )

    def identity(self) -> str:
        """Digest of what the weights depend on."""
        watching = {"save_every", "keep_checkpoints", "validate_every"}
        fixed = self.model_dump(mode="json", exclude=watching)
        return hashlib.sha256(json.dumps(fixed, sort_keys=True).encode()).hexdigest()[:16]


def warm_start_config(values: dict[str, Any], overrides: Iterable[str]) -> WarmStartConfig:
    """The config of options and of `section.key=value` words, which go before them.

    Raises:
        ConfigError: values that cannot run.
    """
    layer = from_overrides(overrides)
    refuse_secrets([layer])
    words = layer.values
    for key in words:
        if key.partition(".")[0] not in SECTIONS:
            raise ConfigError(f"--set {key}: a warm start has no such setting; --set reaches {', '.join(SECTIONS)}")
    try:
        return WarmStartConfig.model_validate(_over(values, nest(words)))
    except ValidationError as error:
        raise ConfigError("\n".join(_explain(problem) for problem in error.errors())) from error


def _over(below: dict[str, Any], above: dict[str, Any]) -> dict[str, Any]:
    merged = dict(below)
    for key, value in above.items():
        inner = merged.get(key)
        merged[key] = _over(inner, value) if isinstance(inner, dict) and isinstance(value, dict) else value
    return merged


def _explain(problem: Any) -> str:
    field = ".".join(str(part) for part in problem["loc"])
    message = problem["msg"].removeprefix("Value error, ")
    if problem["type"] == "value_error":
        return f"{field}: {message}" if field else message
    return f"{field}: {message} (got {problem['input']!r})"
