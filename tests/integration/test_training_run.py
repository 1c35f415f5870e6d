"""Whole runs by the command line: two steps end to end, resumed, interrupted, and nothing left behind."""

import json
import os
import shutil
import signal
import subprocess
from collections import Counter
from pathlib import Path

import httpx
import pytest
from support.integration import (
    TEMPORARY,
    command,
    environment,
    leftover_files,
    leftover_processes,
    shared_memory,
    testgrad,
    wait_for,
)

from tasks.journal import Journal

# two runs with engines, beside other tests on two cores
pytestmark = pytest.mark.timeout(1500)


def metrics_of(journal: Journal, step: int) -> dict[str, float]:
    return json.loads((journal.root / "steps" / f"step_{step:06d}" / "record.json").read_text())["metrics"]


def test_two_steps_against_servers_then_a_third_without_repeating_any(run_config: Path, root: Path) -> None:
    before = shared_memory()
    assert testgrad("up", "--servers-only", root=root).returncode == 0
    try:
        first = testgrad("train", run_config, root=root)
        assert first.returncode == 0, first.stdout + first.stderr
        services = json.loads((root / "services" / "services.json").read_text())
        _assert_prefect_shows_the_run(services)
        _assert_the_first_step_was_judged(services, first.stdout, Journal(root / "test" / "run"))
        _assert_mlflow_shows_the_run(root)
    finally:
        assert testgrad("down", root=root).returncode == 0
    journal = Journal(root / "test" / "run")
    assert journal.finished_steps() == [1, 2]
    for step in (1, 2):
        metrics = metrics_of(journal, step)
        assert metrics["training/rollout_actor_probs_pearson_corr"] > 0.999
        assert metrics["batch/rollouts"] == 4 and metrics["actor/grad_norm"] > 0
        assert journal.stage(f"step_{step:06d}", "sync.json")["version"] == step
    fingerprints = [journal.stage(f"step_{s:06d}", "update.json")["fingerprint"] for s in (1, 2)]
    assert fingerprints == [journal.stage(f"step_{s:06d}", "sync.json")["fingerprint"] for s in (1, 2)]
    trials = _trials(journal)

    # the checkpoint is lost: the journaled batches give the same weights again, and no trial runs twice
    (journal.root / "checkpoints" / "global_step_2" / "complete.json").unlink()
    second = testgrad("train", run_config, "--set", "schedule.total_steps=3", root=root)
    assert second.returncode == 0, second.stdout + second.stderr
    assert "replaying update 2 of 2" in second.stdout
    assert journal.finished_steps() == [1, 2, 3]
    assert sorted(path.name for path in journal.checkpoints.iterdir()) == ["global_step_2", "global_step_3"]
    assert trials.items() <= _trials(journal).items()
    assert _state(root, "test/run") == "finished"
    lines = (journal.root / "logs" / "run.log").read_text().splitlines()
    assert [line.split(" ")[0] for line in lines] == ["step:1", "step:2", "step:3"]
    _assert_traces(root, {"1": 4, "2": 4, "3": 4})
    wait_for(lambda: not leftover_processes() and not leftover_files(), 60)
    wait_for(lambda: shared_memory() <= before, 30)  # the guardian looks once the command has ended


def _assert_prefect_shows_the_run(services: dict) -> None:
    port = services["servers"]["prefect"]["port"]
    api = f"http://127.0.0.1:{port}/api"
    names = {run["name"] for run in httpx.post(f"{api}/flow_runs/filter", json={}).json()}
    assert {"train-test-run", "step-1", "step-2", "evaluate-0", "evaluate-2"} <= names
    tasks = {run["name"] for run in httpx.post(f"{api}/task_runs/filter", json={}).json()}
    assert {"run_trials step_000001", "verify_trials step_000001", "update_policy step_000002"} <= tasks


def _assert_the_first_step_was_judged(services: dict, said: str, journal: Journal) -> None:
    """Told, kept and entered in Prefect; engine and trainer agree, whatever a random model earns."""
    verdict = journal.stage("step_000001", "first_step.json")
    levels = {entry["field"]: entry["level"] for entry in verdict["findings"]}
    assert levels["training/rollout_actor_probs_pearson_corr"] == levels["actor/lr"] == levels["trials"] == "OK"
    assert f"first step: {verdict['verdict']}" in said and "✓ OK    rate" in said
    api = f"http://127.0.0.1:{services['servers']['prefect']['port']}/api"
    (artifact,) = httpx.post(f"{api}/artifacts/filter", json={"artifacts": {"key": {"any_": ["first-step"]}}}).json()
    assert len(json.loads(artifact["data"])) == len(verdict["findings"])


def _state(root: Path, run: str) -> str:
    return json.loads(testgrad("status", run, "--json", root=root).stdout)["state"]


def _assert_mlflow_shows_the_run(root: Path) -> None:
    from mlflow.tracking import MlflowClient

    client = MlflowClient(tracking_uri=f"sqlite:///{root}/mlflow.db")
    experiment = client.get_experiment_by_name("test")
    assert experiment is not None
    runs = client.search_runs([experiment.experiment_id])
    (run,) = (run for run in runs if "mlflow.parentRunId" not in run.data.tags)
    assert all(nested.data.tags.get("mlflow.parentRunId", run.info.run_id) == run.info.run_id for nested in runs)
    assert run.info.status == "FINISHED"
    assert run.data.params["learner.lr"] == "0.001"
    history = client.get_metric_history(run.info.run_id, "critic/score/mean")
    assert [point.step for point in history] == [1, 2]
    _assert_traces(root, {"1": 4, "2": 4})


def _assert_traces(root: Path, wanted: dict[str, int]) -> None:
    """So many trials of each step can be looked at, each with its answers and its reward."""
    from mlflow.tracking import MlflowClient

    client = MlflowClient(tracking_uri=f"sqlite:///{root}/mlflow.db")
    experiment = client.get_experiment_by_name("test")
    traces = client.search_traces(
        locations=[experiment.experiment_id], filter_string="tag.`testgrad.stage` = 'training'"
    )
    assert Counter(trace.info.tags["testgrad.step"] for trace in traces) == wanted
    for trace in traces:
        assert [feedback.name for feedback in trace.info.assessments] == ["reward"]
        assert {span.span_type for span in trace.data.spans} == {"AGENT", "CHAT_MODEL"}


def test_an_interrupted_run_leaves_nothing_behind_and_keeps_its_trials(run_config: Path, root: Path) -> None:
    """Killed, then stopped by Ctrl-C, then left alone: each trial that had ended is there at the end."""
    before = shared_memory()
    settings = ["experiment=interrupted", "schedule.total_steps=1", "rollout.concurrency=1"]
    # enough trials that some are left when the second signal comes, however late the first one was
    settings += ["schedule.eval_before=false", "schedule.eval_after=false", "rollout.attempts_per_task=5"]
    options = [word for setting in settings for word in ("--set", setting)]
    journal = Journal(root / "test" / "interrupted")

    assert _interrupt(run_config, root, options, journal, signal.SIGKILL, trials=1) == -signal.SIGKILL
    # the run itself can tidy up nothing here, but no process may survive
    wait_for(lambda: not leftover_processes())
    for path in TEMPORARY.iterdir():
        shutil.rmtree(path, ignore_errors=True)  # its guardian may be at the same
    kept = _trials(journal)
    assert _state(root, "test/interrupted") == "dead"

    assert _interrupt(run_config, root, options, journal, signal.SIGINT, trials=len(kept) + 1) == 130
    wait_for(lambda: not leftover_processes() and not leftover_files(), 60)
    wait_for(lambda: shared_memory() <= before, 30)  # the guardian looks once the command has ended
    assert kept.items() <= _trials(journal).items()
    assert _state(root, "test/interrupted") == "stopped"
    kept = _trials(journal)

    again = testgrad("train", run_config, *options, root=root)
    assert again.returncode == 0, again.stdout + again.stderr
    assert journal.finished_steps() == [1] and metrics_of(journal, 1)["batch/rollouts"] == 10
    assert kept.items() <= _trials(journal).items() and len(_trials(journal)) == 10


def _interrupt(
    run_config: Path, root: Path, options: list[str], journal: Journal, ending: signal.Signals, trials: int
) -> int:
    """Start a run, send it a signal once so many trials have ended. Returns its exit code."""
    process = subprocess.Popen(
        command("train", run_config, *options, root=root),
        env=environment(),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.STDOUT,
        # a shell that runs the tests in its background has them ignore Ctrl-C, and so would what they start
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    try:
        wait_for(lambda: len(journal.trials("step_000001")) >= trials or process.poll() is not None)
        assert process.poll() is None, "the run ended before it could be interrupted"
        os.kill(process.pid, ending)
        return process.wait(timeout=60)
    finally:
        process.kill()


def _trials(journal: Journal) -> dict[Path, int]:
    """Trials that have ended, and when."""
    return {path: path.stat().st_mtime_ns for path in (journal.root / "trials").rglob("trial.json")}


def _assert_every_stage_ran(journal: Journal) -> None:
    folder, metrics = journal.stage_dir("step_000001"), metrics_of(journal, 1)
    assert (folder / "scores.parquet").is_file() and (folder / "rewards.json").is_file()
    assert {"actor/kl_loss", "actor/entropy_loss", "timing_s/score"} <= metrics.keys()
    assert metrics["actor/reward_kl_penalty"] == 0.0, "the policy begins at the reference"
    assert 0 <= metrics["critic/greedy_baseline/mean"] <= 1
    accepted, drawn = (metrics[f"training/filter_groups/{name}_groups"] for name in ("accepted", "drawn"))
    assert (folder / "groups_refill_1.parquet").is_file()
    assert drawn > accepted >= 2, "a group without a signal was to be dropped, and another drawn for it"


OTHER_ALGORITHM = [
    "algorithm={adv_estimator: remax, policy_loss: ppo, clip_ratio_low: 0.2, clip_ratio_high: 0.2, "
    "loss_agg: token-mean, entropy_coeff: 0.001, kl: {place: both, coef: 0.01, controller: adaptive}}",
    "reward.function=support.plugin:lots",
    "filter={drop_uniform_groups: true, refill_rounds: 1}",
    "learner.ppo_epochs=2",
]
"""A run that goes through every stage that the default does not need."""


def test_another_algorithm_then_export_and_eval_of_its_checkpoint(run_config: Path, root: Path, tmp_path: Path) -> None:
    options = ["experiment=exported", "schedule.total_steps=1", "schedule.eval_before=false", *OTHER_ALGORITHM]
    sets = [word for option in [*options, "schedule.eval_after=false"] for word in ("--set", option)]
    trained = testgrad("train", run_config, *sets, root=root)
    assert trained.returncode == 0, trained.stdout + trained.stderr
    assert "warning: kl.place is 'both'" in trained.stdout
    _assert_every_stage_ran(Journal(root / "test" / "exported"))
    checkpoint = root / "test" / "exported" / "checkpoints" / "global_step_1"
    exported = subprocess.run(
        command("export", checkpoint, "-o", tmp_path / "model", root=root),
        env=environment(),
        capture_output=True,
        text=True,
        check=False,
    )
    assert exported.returncode == 0, exported.stdout + exported.stderr
    shown = testgrad("trials", "test/exported", root=root)
    assert "completed" in shown.stdout or "max_turns" in shown.stdout or "overlong" in shown.stdout
    if "TESTGRAD_ALL_EVALUATION" not in os.environ:
        return  # engines are booted once more for what follows
    scored = testgrad("eval", tmp_path / "model", "--max-tasks", "2", "--attempts", "2", "--no-probe", root=root)
    assert scored.returncode == 0, scored.stdout + scored.stderr
    assert "pass@1" in scored.stdout and "pass@2" in scored.stdout and "4 of 4 trials scored" in scored.stdout
