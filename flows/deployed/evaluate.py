"""The deployment `evaluate`: by the clock, the newest checkpoint that was not scored yet; or what one asks for."""

from pathlib import Path
from typing import Any, Literal

from prefect import flow
from prefect.states import Completed
from pydantic import BaseModel, ConfigDict, Field

from flows.config import ConfigError
from flows.deployed.worker import on_worker
from flows.form_order import in_order
from flows.score import is_scored, score_endpoint, score_model
from harness.endpoint import EndpointConfig
from tasks.config import BUILTIN_KATA, EvaluationConfig
from tasks.lease import living_holder
from trainer.learner.checkpoint import MARKER

_DEFAULT = EvaluationConfig()
_HELP = {name: info.description for name, info in EvaluationConfig.model_fields.items()}


class EvaluateAdvanced(BaseModel):
    """What is not changed often."""

    model_config = ConfigDict(extra="forbid", json_schema_extra=in_order)

    top_p: float = Field(_DEFAULT.top_p, gt=0, le=1, title="Nucleus", description=_HELP["top_p"])
    probe: bool = Field(
        True, title="Probe", description="Ask the model one plain question before trials are spent on it"
    )
    again: bool = Field(False, title="Again", description="Score also what was scored already")
    beside_training: bool = Field(
        False, title="Beside training", description="Also while a run trains on this machine, and needs its processors"
    )
    endpoint: EndpointConfig | None = Field(
        None, title="Endpoint", description="Score what this API serves, instead of a checkpoint"
    )
    settings: list[str] = Field([], title="Settings", description="Other settings, as section.key=value")


class EvaluateForm(BaseModel):
    """An evaluation."""

    model_config = ConfigDict(extra="forbid", json_schema_extra=in_order)

    what: Literal["newest", "run", "path"] = Field(
        "newest", title="What", description="The newest checkpoint of all runs, the newest of one run, or a folder"
    )
    name: str = Field(
        "",
        title="Name",
        description="For a run: project/experiment, or project/experiment@STEP; for a path: the folder",
    )
    index: str = Field(BUILTIN_KATA, title="Tasks", description="Index of the tasks to score on")
    attempts: int = Field(_DEFAULT.attempts_per_task, ge=1, title="Attempts", description=_HELP["attempts_per_task"])
    temperature: float = Field(_DEFAULT.temperature, ge=0, le=10, title="Temperature", description=_HELP["temperature"])
    max_tasks: int | None = Field(None, ge=1, title="Tasks at most", description=_HELP["max_tasks"])
    advanced: EvaluateAdvanced = Field(EvaluateAdvanced(), title="Advanced", description="What is not changed often")


@flow(name="evaluate-checkpoint", flow_run_name="evaluate-{evaluation.what}", validate_parameters=True)
async def evaluate_checkpoint(evaluation: EvaluateForm = EvaluateForm()) -> Any:  # noqa: B008  (never changed)
    """Score a checkpoint on held-out tasks. Unless told otherwise one that is scored already is passed over.

    Args:
        evaluation: What is scored, and how.
    """
    more = evaluation.advanced
    options = {
        "attempts_per_task": evaluation.attempts,
        "temperature": evaluation.temperature,
        "top_p": more.top_p,
        "max_tasks": evaluation.max_tasks,
    }
    async with on_worker("evaluate") as root:
        if more.endpoint is not None:
            return await score_endpoint(more.endpoint, root, evaluation.index, options, more.settings, more.probe)
        model = choose(evaluation, root)
        if model is None:
            return Completed(message=f"there is no checkpoint under {root} yet", name="NothingToScore")
        if not more.again and is_scored(root, model, evaluation.index, options, more.settings):
            return Completed(message=f"{model} is scored already", name="AlreadyScored")
        busy = None if more.beside_training else who_trains(root)
        if busy is not None:
            return Completed(message=f"{busy}; switch on advanced.beside_training to score meanwhile", name="Busy")
        return await score_model(model, root, evaluation.index, options, more.settings, more.probe)


def choose(evaluation: EvaluateForm, root: Path) -> Path | None:
    """What is to be scored, None if there is no checkpoint yet.

    Raises:
        ConfigError: what is named is not there.
    """
    if evaluation.what == "newest":
        if evaluation.name:
            raise ConfigError(f"name is {evaluation.name!r}, but `what` is newest; set `what` to run or path")
        return newest_checkpoint(root, "*/*")
    if not evaluation.name:
        raise ConfigError(f"name is empty; with `what` {evaluation.what} it says which")
    if evaluation.what == "path":
        folder = Path(evaluation.name).expanduser()
        if not folder.is_dir():
            raise ConfigError(f"name: no folder {evaluation.name!r} on the worker's machine")
        return folder
    run, _, step = evaluation.name.partition("@")
    if not (root / run / "config.json").is_file():
        raise ConfigError(f"name: there is no run {run!r} under {root}; write project/experiment")
    if not step:
        return newest_checkpoint(root, run)
    path = root / run / "checkpoints" / f"global_step_{step}"
    if not path.is_dir():
        raise ConfigError(f"name: {run} has no checkpoint after step {step}")
    return path


def newest_checkpoint(root: Path, run: str) -> Path | None:
    """The complete checkpoint written last, of the runs that match the pattern `run` under `root`."""
    found = [
        marker.parent
        for marker in root.glob(f"{run}/checkpoints/global_step_*/{MARKER}")
        if (marker.parent.parent.parent / "config.json").is_file()
    ]
    return max(found, key=lambda folder: (folder.stat().st_mtime_ns, folder.name), default=None)


def who_trains(root: Path) -> str | None:
    """A run under `root` that trains now, and by which process."""
    for file in sorted(root.glob("*/*/lease.json")):
        holder = living_holder(file.parent)
        if holder is not None and holder.work in ("train", "warm-start"):
            name = f"{file.parent.parent.name}/{file.parent.name}"
            return f"{name} is held by {holder}"
    return None
