"""An evaluation in MLflow: a run below its training run, its checkpoint as the input, some of its trials as traces."""

import logging
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tasks.journal import Journal, read_json
from tasks.progress import Event, emit
from tasks.run import RunRef
from tasks.tracing import TracingConfig, trace_trials
from tasks.tracking import Tracker

_log = logging.getLogger(__name__)

_SETTINGS = (
    "evaluation",
    "data.heldout",
    "scaffold.name",
    "sandbox.backend",
    "serving.window",
    "rollout.max_tokens_per_turn",
)


def track_evaluation(
    run: RunRef, label: str, step: int, summary: Mapping[str, Any], tracing: TracingConfig, trained: RunRef | None
) -> str | None:
    """Enter a finished evaluation. Returns the id of its MLflow run; None if the tracking server does not take it.

    Evaluations are kept by the journal; MLflow is for looking at, and one that is away costs none.

    Args:
        step: The step of the training run after which the weights were saved.
        trained: The training run; None for weights of unknown origin.
    """
    try:
        return _track(run, label, step, summary, tracing, trained)
    except Exception as error:
        _log.warning("evaluation after step %d: not in MLflow: %s", step, error, exc_info=error)
        emit(Event("note", label, f"the evaluation was not entered in MLflow ({type(error).__name__}: {error})"))
        return None


def training_run_of(weights: Path, tracking_uri: str) -> tuple[RunRef, int] | None:
    """The run in whose journal a checkpoint, or the export of one, lies, and its step. None for other weights."""
    folder = weights.resolve()
    name, journal = folder.name, Journal(folder.parent.parent)
    stored = read_json(journal.root / "config.json")
    if folder.parent.name not in ("checkpoints", "exports") or not name.startswith("global_step_") or stored is None:
        return None
    run = RunRef(
        project=journal.root.parent.name,
        experiment=journal.root.name,
        root=journal.root.parent.parent,
        nonce=stored["nonce"],
        tracking_uri=tracking_uri,
    )
    return run, int(name.removeprefix("global_step_"))


def evaluation_metrics(summary: Mapping[str, Any]) -> dict[str, float]:
    """What MLflow draws of an evaluation: scores with their intervals, coverage beside them, how trials ended."""
    metrics = {
        "mean_reward": summary["mean_reward"],
        "coverage": summary["coverage"],
        "scored": summary["scored"],
        "launched": summary["launched"],
        "tasks": summary["tasks"],
        "mean_response_length": summary["mean_response_length"],
    }
    for k, rate in summary["pass_at"].items():
        metrics |= {f"pass_at_{k}": rate["value"], f"pass_at_{k}/low": rate["low"], f"pass_at_{k}/high": rate["high"]}
        metrics[f"pass_at_{k}/coverage"] = rate["coverage"]
    outcomes = summary["outcomes"]
    metrics["outcomes/solved"] = sum(outcomes["solved"].values())
    metrics |= {f"outcomes/{name}": sum(counts.values()) for name, counts in outcomes["policy"].items()}
    metrics |= {f"infrastructure/{name}": count for name, count in outcomes["infrastructure"].items()}
    return {name: float(value) for name, value in metrics.items() if math.isfinite(value)}


def _track(
    run: RunRef, label: str, step: int, summary: Mapping[str, Any], tracing: TracingConfig, trained: RunRef | None
) -> str:
    tracker = Tracker.open_evaluation(run, label, step, trained)
    metrics = evaluation_metrics(summary)
    checkpoint = Tracker.open(trained).find_checkpoint(step) if trained is not None else None
    folder = run.journal.stage_dir(label)
    tracker.log_evaluation(step, _params(run), metrics, folder / "record.json", checkpoint)
    if trained is not None:
        shown = {name: metrics[name] for name in ("mean_reward", "pass_at_1", "coverage") if name in metrics}
        Tracker.open(trained).log_step(step, {f"{_curve(run, trained)}/{name}": value for name, value in shown.items()})
    trace_trials(run, label, step, tracing, tracker)
    return tracker.run_id


def _curve(run: RunRef, trained: RunRef) -> str:
    """Under which name a training run's page draws the scores: its own validation is apart from evaluations to come."""
    return "val-core" if run == trained else f"val-core/{run.experiment}"


def _params(run: RunRef) -> dict[str, Any]:
    config = (read_json(run.journal.root / "config.json") or {}).get("config", {})
    params: dict[str, Any] = {"journal": str(run.journal.root)}
    for name in _SETTINGS:
        section, _, key = name.partition(".")
        value = config.get(section, {})
        params |= {name: value.get(key)} if key else {f"{section}.{each}": given for each, given in value.items()}
    return params
