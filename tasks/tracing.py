"""MLflow Tracing: a trace for each trial of a sample, a span for each answer and tool call, the reward as feedback.

Traces are made from the journal once a step is over. All ids follow from the run and the session, so that a trace that
is written again is the same trace.
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from tasks.draw import GREEDY
from tasks.run import RunRef
from tasks.trace_spans import digest, trial_spans
from tasks.tracking import Tracker
from tasks.trial_files import StoredTrial, load_trial
from trainer.rollout import Outcome

TAG = "testgrad"
_PREVIEW_CHARS = 200
_STAGES = {"eval": "evaluation", "collect": "collection"}
"""What a round is for, by how its label begins; training if by none of these."""


class TracingConfig(BaseModel):
    """Which trials can be looked at as traces in MLflow; all of them are in the journal."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    max_per_step: int = Field(8, ge=0, description="Trials of a step that are traced at most; 0 for none")
    fraction: float = Field(1.0, ge=0, le=1, description="Share of a step's groups whose trials may be traced")
    max_chars: int = Field(4000, ge=100, description="Characters of one message that a span keeps")


def trace_trials(run: RunRef, label: str, step: int, config: TracingConfig, tracker: Tracker | None = None) -> int:
    """Trace a sample of a step's trials, those left out that are traced already. Returns how many were written.

    They are searched for by tag: `testgrad.task`, `.step`, `.outcome`, `.reward`, `.verdict`, `.stage` and others.

    Args:
        tracker: The MLflow run that they are entered in, that of the training run if not given.
    """
    if not config.max_per_step or not config.fraction:
        return 0
    chosen = choose([load_trial(folder) for folder in run.journal.trials(label)], config)
    if not chosen:
        return 0
    tracker = tracker or Tracker.open(run)
    key = f"{run.name}-{run.nonce}"
    known = tracker.find_traces({f"{TAG}.run": key, f"{TAG}.step": str(step)})
    experiment_id = tracker.experiment_id
    missing = [trial for trial in chosen if _trace_id(key, trial) not in known]
    for trial in missing:
        tags = {"run": key, "step": str(step), "session": trial.session_id, "group": trial.group_id}
        tags |= {"task": str(trial.record["task_id"]), "outcome": str(trial.outcome)}
        tags |= {"stage": _STAGES.get(label.partition("_")[0], "training")}
        if trial.verdict is not None:
            tags |= {"reward": f"{trial.verdict.reward:g}", "verdict": str(trial.verdict.status)}
        tags = {f"{TAG}.{name}": value for name, value in tags.items()}
        _write(tracker, experiment_id, trial, _trace_id(key, trial), tags, config)
    return len(missing)


def choose(trials: Sequence[StoredTrial], config: TracingConfig) -> list[StoredTrial]:
    """The trials to be traced: whole groups, so that attempts at a task are side by side, in an order by hash.

    Of the first group only as many as may be traced; a group that does not fit any more is left out.
    """
    groups: dict[str, list[StoredTrial]] = {}
    for trial in sorted(trials, key=lambda trial: trial.session_id):
        groups.setdefault(trial.group_id.removesuffix(GREEDY), []).append(trial)
    chosen: list[StoredTrial] = []
    for group_id in sorted(groups, key=_share):
        if _share(group_id) >= config.fraction:
            break
        group = groups[group_id]
        if not chosen:
            chosen = group[: config.max_per_step]
        elif len(chosen) + len(group) <= config.max_per_step:
            chosen += group
    return chosen


def _share(group_id: str) -> float:
    """A number in [0, 1) that is the same wherever it is computed."""
    return int(hashlib.sha256(group_id.encode()).hexdigest()[:13], 16) / 16**13


def _trace_id(run_key: str, trial: StoredTrial) -> str:
    return f"tr-{digest(f'{run_key}/{trial.session_id}', 32)}"


def _write(
    tracker: Tracker,
    experiment_id: str,
    trial: StoredTrial,
    trace_id: str,
    tags: Mapping[str, str],
    config: TracingConfig,
) -> None:
    from mlflow.entities import AssessmentSource, Feedback, Span, TraceInfo, TraceLocation, TraceState

    spans = trial_spans(trace_id, trial.trajectory(), _result(trial), config.max_chars)
    root, milliseconds = spans[0], 10**6
    started, ended = root["start_time_unix_nano"] // milliseconds, root["end_time_unix_nano"] // milliseconds
    assessments = []
    if trial.verdict is not None:
        feedback = Feedback(
            name="reward",
            value=trial.verdict.reward,
            rationale=_storable(trial.verdict.reason)[: config.max_chars],
            source=AssessmentSource("CODE", "verifier"),
            metadata={"status": str(trial.verdict.status)},
            create_time_ms=ended,
            last_update_time_ms=ended,
        )
        feedback.assessment_id = f"a-{digest(f'{trace_id}/reward', 32)}"
        assessments.append(feedback)
    info = TraceInfo(
        trace_id=trace_id,
        trace_location=TraceLocation.from_experiment_id(experiment_id),
        request_time=started,
        execution_duration=ended - started,
        state=TraceState.ERROR if trial.outcome is Outcome.INFRA_ERROR else TraceState.OK,
        request_preview=str(trial.record["task_id"]),
        response_preview=json.dumps(_result(trial))[:_PREVIEW_CHARS],
        client_request_id=trial.session_id,
        trace_metadata={"mlflow.sourceRun": tracker.run_id},
        tags={"mlflow.traceName": str(trial.record["task_id"]), **tags},
        assessments=assessments,
    )
    tracker.log_trace(info, [Span.from_dict(span) for span in spans])


def _storable(text: str) -> str:
    """Text that every database takes: tests may have printed half characters, and zero bytes."""
    return text.encode("utf-8", "replace").decode().replace("\0", "?")


def _result(trial: StoredTrial) -> dict[str, Any]:
    result: dict[str, Any] = {"outcome": str(trial.outcome)}
    if trial.record["error"]:
        result["error"] = trial.record["error"]
    if trial.verdict is not None:
        result |= {"reward": trial.verdict.reward, "verdict": str(trial.verdict.status)}
    return result
