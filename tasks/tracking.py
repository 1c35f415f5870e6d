"""MLflow: one run for each training run, found again by name."""

import math
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tasks.run import RunRef

EXPERIMENT_TAG = "testgrad.run"
_MAX_PARAM = 6000


class Tracker:
    """The MLflow run of one training run."""

    def __init__(self, client: Any, run_id: str, artifacts: Path) -> None:
        self._client, self.run_id, self._artifacts = client, run_id, artifacts

    @classmethod
    def open(cls, run: RunRef) -> "Tracker":
        """Find the run by its name and nonce, or create it."""
        from mlflow.tracking import MlflowClient

        client = MlflowClient(tracking_uri=run.tracking_uri)
        artifacts = run.root / "mlartifacts"
        experiment = client.get_experiment_by_name(run.project)
        experiment_id = (
            experiment.experiment_id
            if experiment is not None
            else client.create_experiment(run.project, artifact_location=artifacts.resolve().as_uri())
        )
        key = f"{run.name}-{run.nonce}"
        found = client.search_runs([experiment_id], f"tags.`{EXPERIMENT_TAG}` = '{key}'", max_results=1)
        if found:
            return cls(client, found[0].info.run_id, artifacts)
        created = client.create_run(experiment_id, run_name=run.experiment, tags={EXPERIMENT_TAG: key})
        return cls(client, created.info.run_id, artifacts)

    def start(self, params: Mapping[str, Any], config_file: Path) -> None:
        """Mark the run as running; log parameters and the config the first time."""
        self._client.update_run(self.run_id, status="RUNNING")
        if self._client.get_run(self.run_id).data.params:
            return
        for name, value in params.items():
            self._client.log_param(self.run_id, name, str(value)[:_MAX_PARAM])
        self._client.log_artifact(self.run_id, str(config_file))

    def log_step(self, step: int, metrics: Mapping[str, float]) -> None:
        """Log metrics of a step in one batch, unless they are there already: MLflow would keep both."""
        from mlflow.entities import Metric

        if any(
            point.step == step
            for name in _first_finite(metrics)
            for point in self._client.get_metric_history(self.run_id, name)
        ):
            return
        now = int(time.time() * 1000)
        points = [Metric(name, value, now, step) for name, value in metrics.items() if math.isfinite(value)]
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

    def log_checkpoint(self, path: Path, step: int) -> None:
        """Enter a checkpoint by reference: the shards stay where they are."""
        from mlflow.entities import LoggedModelStatus

        model = self._client.create_logged_model(
            self._client.get_run(self.run_id).info.experiment_id,
            name=path.name,
            source_run_id=self.run_id,
            model_type="rl-policy",
            params={"path": str(path.resolve()), "step": str(step)},
        )
        self._client.finalize_logged_model(model.model_id, LoggedModelStatus.READY)

    def log_artifact(self, path: Path) -> None:
        """Upload a file of results, such as a plot."""
        self._client.log_artifact(self.run_id, str(path))

    def end(self, status: str) -> None:
        """Mark the run as `FINISHED`, `FAILED` or `KILLED`."""
        self._client.set_terminated(self.run_id, status=status)


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
