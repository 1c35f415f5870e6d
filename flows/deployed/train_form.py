"""The run form of `train`: what one changes often, and all the rest under `advanced`.

Its sections are made from those of `RunConfig`, so that a setting that is added there appears here. A field that is not
filled in says nothing: the config file does. What is filled in wins over the file, and `settings` over everything.
"""

import json
from enum import StrEnum
from pathlib import Path
from typing import Any, get_args

import yaml
from pydantic import BaseModel, ConfigDict, Field, create_model
from pydantic.fields import FieldInfo

from flows.config import NAME, ConfigError, RunConfig, load_config, parse_config
from flows.form_order import in_order
from harness.sandbox import SANDBOXES
from harness.scaffolds.base import SCAFFOLDS
from tasks.rollout_ledger import Mode
from trainer.algorithms.registry import ADVANTAGE_ESTIMATORS, POLICY_LOSSES, load_builtin

RUN_CONFIGS = Path(__file__).parent.parent.parent / "deployments" / "runs"
QUICKSTART = "quickstart"
_FORM = ConfigDict(extra="forbid", json_schema_extra=in_order)

ON_TOP = {
    "policy": "model.path",
    "train_index": "data.train",
    "heldout_index": "data.heldout",
    "difficulty": "data.difficulty",
    "mode": "mode",
    "total_steps": "schedule.total_steps",
    "tasks_per_step": "rollout.tasks_per_step",
    "attempts_per_task": "rollout.attempts_per_task",
    "learning_rate": "learner.lr",
    "estimator": "algorithm.adv_estimator",
    "policy_loss": "algorithm.policy_loss",
    "agent": "scaffold.name",
    "sandbox": "sandbox.backend",
    "checkpoint_every": "schedule.save_freq",
    "evaluate_every": "schedule.test_freq",
}
"""Fields of the form, and the settings that they are."""

load_builtin()
Estimator = StrEnum("Estimator", sorted(ADVANTAGE_ESTIMATORS))  # type: ignore[misc]
PolicyLoss = StrEnum("PolicyLoss", sorted(POLICY_LOSSES))  # type: ignore[misc]
Agent = StrEnum("Agent", sorted(SCAFFOLDS))  # type: ignore[misc]
Backend = StrEnum("Backend", sorted(SANDBOXES))  # type: ignore[misc]

_quickstart = parse_config(yaml.safe_load((RUN_CONFIGS / f"{QUICKSTART}.yaml").read_text()), QUICKSTART)


def _setting(key: str) -> tuple[Any, FieldInfo]:
    """The quickstart's value of a setting, and its field."""
    section, _, name = key.partition(".")
    own = getattr(_quickstart, section)
    return getattr(own, name), type(own).model_fields[name]


def _field(name: str, title: str) -> Any:
    """A field on top, which begins with the quickstart's value and has the setting's own help and bounds."""
    value, info = _setting(ON_TOP[name])
    return Field(value, title=title, description=info.description, **_bounds(info))


def _bounds(info: FieldInfo) -> dict[str, Any]:
    names = ("ge", "gt", "le", "lt")
    return {name: getattr(bound, name) for bound in info.metadata for name in names if hasattr(bound, name)}


def _section(name: str) -> Any:
    """A section of the run config without what is on top, None for one that would be empty."""
    model: Any = RunConfig.model_fields[name].annotation
    model = next((kind for kind in get_args(model) if hasattr(kind, "model_fields")), model)
    if not (isinstance(model, type) and issubclass(model, BaseModel)):
        return None
    fields: dict[str, Any] = {
        field: (info.annotation, info)
        for field, info in model.model_fields.items()
        if f"{name}.{field}" not in ON_TOP.values()
    }
    return create_model(
        f"{model.__name__}Form", __config__=_FORM, __doc__=model.__doc__, **fields
    ) if fields else None  # fmt: skip


def _advanced() -> type[BaseModel]:
    sections: dict[str, Any] = {}
    for name, info in RunConfig.model_fields.items():
        if (section := _section(name)) is not None:
            text = f"{info.description}; as in the config file where unset"
            sections[name] = (section | None, Field(None, title=name.capitalize(), description=text))
    config_file: Any = Field(
        QUICKSTART,
        title="Config file",
        description="Where settings come from that are not given here: a run config on the worker's machine, or the "
        "name of one in deployments/runs",
    )
    settings: Any = Field(
        [], title="Settings", description="More settings as section.key=value, which win over everything on this form"
    )
    restarts: Any = Field(
        2, ge=0, le=100, title="Restarts", description="How often a run whose process died starts again by itself"
    )
    return create_model(
        "Advanced",
        __config__=_FORM,
        __doc__="All that is not changed often.",
        config_file=(str, config_file),
        settings=(list[str], settings),
        restarts=(int, restarts),
        **sections,
    )


Advanced = _advanced()


class TrainForm(BaseModel):
    """A training run."""

    model_config = _FORM

    experiment: str = Field(
        title="Experiment", pattern=NAME, description=RunConfig.model_fields["experiment"].description
    )
    project: str = Field(
        _quickstart.project, title="Project", pattern=NAME, description=RunConfig.model_fields["project"].description
    )
    policy: str = _field("policy", "Policy")
    train_index: str = _field("train_index", "Tasks to train on")
    heldout_index: str = _field("heldout_index", "Tasks to score on")
    difficulty: list[str] = _field("difficulty", "Difficulty")
    mode: Mode = Field(_quickstart.mode, title="Mode", description=RunConfig.model_fields["mode"].description)
    total_steps: int = _field("total_steps", "Steps")
    tasks_per_step: int = _field("tasks_per_step", "Tasks a step")
    attempts_per_task: int = _field("attempts_per_task", "Attempts at each task")
    learning_rate: float = _field("learning_rate", "Learning rate")
    estimator: Estimator = Field(
        Estimator(_quickstart.algorithm.adv_estimator), title="Advantages", description="How attempts are compared"
    )
    policy_loss: PolicyLoss = Field(
        PolicyLoss(_quickstart.algorithm.policy_loss), title="Policy loss", description="How that becomes a gradient"
    )
    agent: Agent = Field(
        Agent(_quickstart.scaffold.name), title="Agent", description="The program that works on the tasks (scaffold)"
    )
    sandbox: Backend = Field(
        Backend(_quickstart.sandbox.backend), title="Sandbox", description="What the agent is confined with"
    )
    checkpoint_every: int = _field("checkpoint_every", "Steps between checkpoints")
    evaluate_every: int = _field("evaluate_every", "Steps between evaluations")
    advanced: Advanced = Field(  # type: ignore[valid-type]
        default_factory=Advanced, title="Advanced", description="All other settings, section by section"
    )

    def to_config(self) -> RunConfig:
        """The run that the form describes, with site file and environment as the command line has them.

        Raises:
            ConfigError: it cannot run; the message names field, value and mend.
        """
        advanced: Any = self.advanced
        words = {"project": self.project, "experiment": self.experiment}
        for name in advanced.model_fields_set & RunConfig.model_fields.keys():
            section = getattr(advanced, name)
            words |= _flat(name, section.model_dump(mode="json", exclude_unset=True)) if section is not None else {}
        filled = self.model_dump(mode="json", exclude_unset=True)
        words |= {key: filled[name] for name, key in ON_TOP.items() if name in filled}
        return load_config(
            _find(advanced.config_file),
            [f"{key}={json.dumps(value)}" for key, value in words.items()] + advanced.settings,
        )


def _flat(prefix: str, values: dict[str, Any]) -> dict[str, Any]:
    """One level: what lies deeper is a section of its own, given key by key."""
    flat: dict[str, Any] = {}
    for name, value in values.items():
        model: Any = RunConfig
        for part in [*prefix.split("."), name]:
            annotation = model.model_fields[part].annotation
            model = next((kind for kind in get_args(annotation) if hasattr(kind, "model_fields")), annotation)
        is_section = isinstance(value, dict) and hasattr(model, "model_fields")
        flat |= _flat(f"{prefix}.{name}", value) if is_section else {f"{prefix}.{name}": value}
    return flat


def _find(name: str) -> Path:
    path = RUN_CONFIGS / f"{name}.yaml" if "/" not in name and not Path(name).suffix else Path(name).expanduser()
    if not path.is_file():
        known = ", ".join(sorted(file.stem for file in RUN_CONFIGS.glob("*.yaml")))
        raise ConfigError(f"advanced.config_file: no file {name!r} on this machine; give its path, or one of {known}")
    return path
