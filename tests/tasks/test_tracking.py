"""One MLflow run for a training run, found again, each step in it once."""

import math

import pytest
from support.journals import make_run

from tasks.journal import write_json
from tasks.tracking import Tracker, flat


def test_flat():
    config = {"a": 1, "b": {"c": [1, 2], "d": {"e": None}}, "f": {}}
    assert flat(config) == {"a": 1, "b.c": [1, 2], "b.d.e": None}


@pytest.fixture
def tracker(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    run = make_run(tmp_path / "root")
    run.root.mkdir()
    write_json(run.journal.root / "config.json", {"config": {}})
    return Tracker.open(run), run


def test_a_run_in_mlflow(tracker, tmp_path):
    """One test, since making MLflow's database takes seconds."""
    first, run = tracker
    client = first._client
    first.start({"learner.lr": 1e-6, "long": "x" * 9000}, run.journal.root / "config.json")

    # found again by name and nonce; another nonce is another run
    again = Tracker.open(run)
    assert again.run_id == first.run_id
    assert Tracker.open(make_run(run.root, nonce="ffff0000")).run_id != first.run_id
    again.start({"learner.lr": 2.0}, run.journal.root / "config.json")
    stored = client.get_run(first.run_id)
    assert stored.data.params["learner.lr"] == "1e-06"
    assert stored.info.status == "RUNNING"
    assert [file.path for file in client.list_artifacts(first.run_id)] == ["config.json"]

    # a step that is recorded again is not doubled, and what is no number is left out
    for value in (0.5, 0.75):
        again.log_step(1, {"critic/score/mean": value, "training/rollout_actor_probs_pearson_corr": math.nan})
    again.log_step(2, {"critic/score/mean": 1.0})
    history = client.get_metric_history(first.run_id, "critic/score/mean")
    assert [(point.step, point.value) for point in history] == [(1, 0.5), (2, 1.0)]
    assert "training/rollout_actor_probs_pearson_corr" not in client.get_run(first.run_id).data.metrics

    # a checkpoint is entered by reference, in the run's experiment, and nothing lands in the working directory
    first.log_checkpoint(run.journal.checkpoints / "global_step_2", 2)
    (entry,) = client.search_logged_models([stored.info.experiment_id])
    assert entry.source_run_id == first.run_id
    assert entry.params["step"] == "2"
    assert not (tmp_path / "mlruns").exists()

    again.end("FINISHED")
    assert client.get_run(first.run_id).info.status == "FINISHED"
