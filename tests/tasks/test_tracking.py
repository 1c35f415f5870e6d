"""One MLflow run for a training run, found again, each step in it once."""

import math

import pytest
from support.evaluations import RIGHT, WRONG, write_evaluation
from support.journals import make_run

from harness.verifier.verdict import Status
from tasks.journal import eval_label, read_json, write_json
from tasks.tracing import TracingConfig
from tasks.track_evaluation import track_evaluation, training_run_of
from tasks.tracking import Tracker, flat

LABEL = eval_label(2)


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

    # a checkpoint is entered by reference, once, in the run's experiment, and nothing lands in the working directory
    path = run.journal.checkpoints / "global_step_2"
    model = first.log_checkpoint(path, 2)
    assert again.log_checkpoint(path, 2) == model == first.find_checkpoint(2) and first.find_checkpoint(1) is None
    (entry,) = client.search_logged_models([stored.info.experiment_id])
    assert entry.source_run_id == first.run_id and entry.params == {"path": str(path.resolve()), "step": "2"}
    assert [(made.model_id, made.step) for made in client.get_run(first.run_id).outputs.model_outputs] == [(model, 2)]
    first.mark_removed([path])
    assert "testgrad.removed" not in client.get_logged_model(model).tags
    first.mark_removed([])
    assert client.get_logged_model(model).tags["testgrad.removed"] == "yes"
    assert not (tmp_path / "mlruns").exists()

    check_evaluation(run, client, first, model)
    again.end("FINISHED")
    assert client.get_run(first.run_id).info.status == "FINISHED"


def check_evaluation(run, client, training, model):
    """An evaluation of the checkpoint: a run below the training run, with the checkpoint as its input."""
    evaluated = write_evaluation(run.root, {"a": [(RIGHT, Status.PASSED)] * 2, "b": [(WRONG, Status.FAILED)] * 2}, 2,
                                 experiment="scored")  # fmt: skip
    summary = read_json(evaluated.journal.stage_dir(LABEL) / "record.json")
    tracing = TracingConfig(max_per_step=8)
    found = track_evaluation(evaluated, LABEL, 2, summary, tracing, run)
    assert track_evaluation(evaluated, LABEL, 2, summary, tracing, run) == found, "again is the same run"

    child = client.get_run(found)
    assert child.data.tags["mlflow.parentRunId"] == training.run_id and child.info.status == "FINISHED"
    assert child.data.tags["testgrad.step"] == "2" and child.data.params["scaffold.name"] == "edit"
    assert child.data.metrics["pass_at_1"] == 0.5 and child.data.metrics["coverage"] == 1.0
    assert 0 <= child.data.metrics["pass_at_1/low"] < 0.5 < child.data.metrics["pass_at_1/high"]
    assert len(client.get_metric_history(found, "pass_at_1")) == 1
    assert [given.model_id for given in child.inputs.model_inputs] == [model]
    assert {m.key: m.value for m in client.get_logged_model(model).metrics}["pass_at_1"] == 0.5
    assert [file.path for file in client.list_artifacts(found)] == ["record.json"]
    curve = client.get_metric_history(training.run_id, "val-core/scored/pass_at_1")
    assert [(point.step, point.value) for point in curve] == [(2, 0.5)]

    # its trials can be found by what they are about, and belong to it
    def traces(wanted):
        return client.search_traces(locations=[training.experiment_id], filter_string=wanted)

    solved = traces("tag.`testgrad.reward` = '1' AND tag.`testgrad.step` = '2' AND tag.`testgrad.stage` = 'evaluation'")
    assert {trace.info.tags["testgrad.verdict"] for trace in solved} == {"passed"} and len(solved) == 2
    assert {trace.info.trace_metadata["mlflow.sourceRun"] for trace in solved} == {found}
    assert len(traces("tag.`testgrad.outcome` = 'completed'")) == 4

    # weights of unknown origin: a run of its own
    stranger = evaluated.model_copy(update={"nonce": "ffff0000"})
    alone = client.get_run(track_evaluation(stranger, LABEL, 0, summary, TracingConfig(max_per_step=0), None))
    assert "mlflow.parentRunId" not in alone.data.tags
    # a tracking server that is away costs no evaluation
    away = evaluated.model_copy(update={"tracking_uri": "nonsense://x"})
    assert track_evaluation(away, LABEL, 2, summary, tracing, None) is None


def test_a_checkpoint_tells_its_run(tmp_path):
    run = make_run(tmp_path)
    write_json(run.journal.root / "config.json", {"nonce": run.nonce})
    path = run.journal.checkpoints / "global_step_12"
    path.mkdir(parents=True)
    assert training_run_of(path, run.tracking_uri) == (run, 12)
    assert training_run_of(run.journal.root / "exports" / "global_step_3", run.tracking_uri) == (run, 3)
    assert training_run_of(tmp_path, run.tracking_uri) is None
    exported = tmp_path / "checkpoints" / "global_step_3"
    assert training_run_of(exported, run.tracking_uri) is None, "no journal"
