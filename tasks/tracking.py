"""MLflow: one run for each training run, found again by name; its evaluations are runs of their own below it."""

import math
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tasks.run import RunRef

EXPERIMENT_TAG = "testgrad.run"
EVALUATION_TAG = "testgrad.evaluation"
CHECKPOINT_TAG = "testgrad.checkpoint"
STEP_TAG = "testgrad.step"
KIND_TAG = "testgrad.kind"
_MAX_PARAM = 6000


class Tracker:
    """The MLflow run of one training run, or of one evaluation."""

    def __init__(self, client: Any, run_id: str, artifacts: Path) -> None:
        self._client, self.run_id, self._artifacts = client, run_id, artifacts

    @property
    def url(self) -> str | None:
        """The run's page, None where MLflow is a file and no server."""
        base = str(self._client.tracking_uri).rstrip("/")
        page = f"{base}/#/experiments/{self.experiment_id}/runs/{self.run_id}"
        return page if base.startswith("http") else None

    @classmethod
    def open(cls, run: RunRef) -> "Tracker":
        """Find the run by its name and nonce, or create it."""
        from mlflow.tracking import MlflowClient

        client, artifacts = MlflowClient(tracking_uri=run.tracking_uri), run.root / "mlartifacts"
        tags = {EXPERIMENT_TAG: f"{run.name}-{run.nonce}"}
        return cls(client, _find_or_create(client, run, run.experiment, tags), artifacts)

    @classmethod
    def find(cls, run: RunRef) -> "Tracker | None":
        """The run as it is there, None if it was never entered."""
        from mlflow.tracking import MlflowClient

        client = MlflowClient(tracking_uri=run.tracking_uri)
        experiment = client.get_experiment_by_name(run.project)
        if experiment is None:
            return None
        key = f"tags.`{EXPERIMENT_TAG}` = '{run.name}-{run.nonce}'"
        found = client.search_runs([experiment.experiment_id], key, max_results=1)
        return cls(client, str(found[0].info.run_id), run.root / "mlartifacts") if found else None

    @classmethod
    def open_evaluation(cls, run: RunRef, label: str, step: int, trained: RunRef | None) -> "Tracker":
        """Find the run of an evaluation, or create it.

        Args:
            run: The run whose journal holds the evaluation.
            trained: The training run that the policy comes from: the evaluation is entered below it. None for none.
        """
        from mlflow.tracking import MlflowClient

        client, artifacts = MlflowClient(tracking_uri=run.tracking_uri), run.root / "mlartifacts"
        tags = {
            EVALUATION_TAG: f"{run.name}-{run.nonce}/{label}",
            STEP_TAG: str(step),
            KIND_TAG: "evaluation",
        }
        if trained is not None:
            tags["mlflow.parentRunId"] = cls.open(trained).run_id
        name = f"evaluation after step {step}" if trained is not None else f"evaluation of {run.experiment}"
        return cls(client, _find_or_create(client, trained or run, name, tags), artifacts)

    def start(self, params: Mapping[str, Any], config_file: Path) -> None:
        """Mark the run as running; log parameters and the config the first time."""
        self._client.update_run(self.run_id, status="RUNNING")
        if self._client.get_run(self.run_id).data.params:
            return
        for name, value in params.items():
            self._client.log_param(self.run_id, name, str(value)[:_MAX_PARAM])
        self._client.log_artifact(self.run_id, str(config_file))

    def log_step(self, step: int, metrics: Mapping[str, float], model_id: str | None = None) -> None:
        """Log metrics of a step in one batch, unless they are there already: MLflow would keep both.

        With `model_id` they are that logged model's as well.
        """
        from mlflow.entities import Metric

        if any(
            point.step == step
            for name in _first_finite(metrics)
            for point in self._client.get_metric_history(self.run_id, name)
        ):
            return
        now = int(time.time() * 1000)
        points = [Metric(name, value, now, step, model_id) for name, value in metrics.items() if math.isfinite(value)]
        self._client.log_batch(self.run_id, metrics=points)

    @property
    def experiment_id(self) -> str:
        return str(self._client.get_run(self.run_id).info.experiment_id)

    def find_traces(self, tags: Mapping[str, str]) -> set[str]:
        """Ids of the traces that are complete and have all these tags."""
        wanted = " AND ".join(f"tag.`{name}` = '{value}'" for name, value in tags.items())
        found: set[str] = set()
        token = None
        while True:
            page = self._client.search_traces(
                locations=[self.experiment_id], filter_string=wanted, page_token=token, include_spans=False
            )
            found |= {trace.info.trace_id for trace in page}
            token = page.token
            if not token:
                return found

    def log_trace(self, info: Any, spans: Sequence[Any]) -> None:
        """Write a finished trace; one of the same id is written over.

        The tags come last: a trace that `find_traces` finds has all its spans.
        """
        from mlflow.tracing.client import TracingClient

        client = TracingClient(self._client.tracking_uri)
        client.log_spans(info.experiment_id, list(spans))
        client.start_trace(info)

    def log_checkpoint(self, path: Path, step: int) -> str:
        """Enter a checkpoint by reference, once: the shards stay where they are. Returns the logged model's id.

        The run has it as its output at `step`, and it has the run as its source.
        """
        from mlflow.entities import LoggedModelOutput, LoggedModelStatus

        known = self.find_checkpoint(step)
        if known is not None:
            return known
        model = self._client.create_logged_model(
            self.experiment_id,
            name=path.name,
            source_run_id=self.run_id,
            model_type="rl-policy",
            params={"path": str(path.resolve()), "step": str(step)},
            tags={CHECKPOINT_TAG: self._checkpoint_key(step), STEP_TAG: str(step)},
        )
        self._client.log_outputs(self.run_id, [LoggedModelOutput(model.model_id, step)])
        # last: one that is not ready is entered again
        self._client.finalize_logged_model(model.model_id, LoggedModelStatus.READY)
        return str(model.model_id)

    def find_checkpoint(self, step: int) -> str | None:
        """Id of the logged model of this run's checkpoint after `step`, None if there is none."""
        wanted = f"tags.`{CHECKPOINT_TAG}` = '{self._checkpoint_key(step)}'"
        found = self._client.search_logged_models([self.experiment_id], filter_string=wanted)
        return next((str(model.model_id) for model in found if str(model.status) == "READY"), None)

    def mark_removed(self, kept: Sequence[Path]) -> None:
        """Say of this run's checkpoints which ones are no longer on disk."""
        names = {str(path.resolve()) for path in kept}
        mine = f"source_run_id = '{self.run_id}'"
        for model in self._client.search_logged_models([self.experiment_id], filter_string=mine):
            if model.params["path"] not in names and "testgrad.removed" not in model.tags:
                self._client.set_logged_model_tags(model.model_id, {"testgrad.removed": "yes"})

    def _checkpoint_key(self, step: int) -> str:
        return f"{self.run_id}/{step}"

    def log_evaluation(
        self, step: int, params: Mapping[str, Any], metrics: Mapping[str, float], record: Path, model_id: str | None
    ) -> None:
        """Fill this run, of an evaluation, and end it. What is there already is not written again."""
        from mlflow.entities import LoggedModelInput, Param

        stored = self._client.get_run(self.run_id)
        if not stored.data.params:
            given = [Param(name, str(value)[:_MAX_PARAM]) for name, value in params.items()]
            self._client.log_batch(self.run_id, params=given)
        if model_id is not None and not stored.inputs.model_inputs:
            self._client.log_inputs(self.run_id, models=[LoggedModelInput(model_id)])
        self.log_step(step, metrics, model_id)
        self._client.log_artifact(self.run_id, str(record))
        self.end("FINISHED")

    def log_artifact(self, path: Path) -> None:
        """Upload a file of results, such as a plot."""
        self._client.log_artifact(self.run_id, str(path))

    def end(self, status: str) -> None:
        """Mark the run as `FINISHED`, `FAILED` or `KILLED`."""
        self._client.set_terminated(self.run_id, status=status)


def _find_or_create(client: Any, run: RunRef, name: str, tags: Mapping[str, str]) -> str:
    """The MLflow run that bears the first of `tags`, in the experiment of the run's project."""
    artifacts = run.root / "mlartifacts"
    experiment = client.get_experiment_by_name(run.project)
    experiment_id = (
        experiment.experiment_id
        if experiment is not None
        else client.create_experiment(run.project, artifact_location=artifacts.resolve().as_uri())
    )
    tag, key = next(iter(tags.items()))
    found = client.search_runs([experiment_id], f"tags.`{tag}` = '{key}'", max_results=1)
    return str((found[0] if found else client.create_run(experiment_id, run_name=name, tags=dict(tags))).info.run_id)


def flat(config: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested mappings with dotted keys, as MLflow's parameters want them."""
    result: dict[str, Any] = {}
    for key, value in config.items():
        if isinstance(value, Mapping):
            result |= flat(value, f"{prefix}{key}.")
        else:
            result[f"{prefix}{key}"] = value
    return result


def _first_finite(metrics: Mapping[str, float]) -> list[str]:
    """The name of a metric that is certain to have been logged: values that are not finite never are."""
    return [name for name, value in metrics.items() if math.isfinite(value)][:1]
