"""Operation from Prefect's page and by the clock: its server and worker, a browser, engines and sandboxes, all real.

A tiny random model trains. It takes minutes: `TESTGRAD_ALL_OPERATION=1` runs it; `TESTGRAD_TEST_POSTGRESQL=1` and
`TESTGRAD_SCREENSHOTS=1` mean what they mean in test_ui.py.
"""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest.mock import patch

import psutil
import pytest
from support.chrome import Page, chrome
from support.integration import leftover_files, leftover_processes, testgrad
from support.served import (
    ask,
    deployment_id,
    flow_run,
    picture,
    prefect_database,
    runs_of,
    start,
    submit,
    until,
    until_ended,
)
from support.tasks import write_task

from deployments.server_kinds import WORKER
from deployments.server_record import read_servers
from deployments.services import Services, read_services
from flows.configuration.words import variable_of
from flows.diagnosis.process import read_end
from harness.pool.index import TaskPointer, write_index
from tasks.journal import Journal, read_json, step_label

pytestmark = [
    pytest.mark.skipif("TESTGRAD_ALL_OPERATION" not in os.environ, reason="TESTGRAD_ALL_OPERATION=1 runs it"),
    pytest.mark.timeout(2400),
]

MACHINE = {
    "plugins": '["support.plugin"]',
    "reward.function": "support.plugin:lots",  # a random model repairs nothing
    # so that a step takes long enough to be cancelled from a page
    "rollout.concurrency": "2",
    "rollout.max_tokens_per_turn": "300",
    "serving.dtype": "float32",
    "learner.dtype": "float32",
    "evaluation.max_tasks": "2",
    "evaluation.attempts_per_task": "1",
}
"""Settings of the worker's machine, by which what its runs do is small."""
TRIALS = 64
"""Of a step, as the form has it."""


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("operated")


@pytest.fixture(scope="module")
def services(root: Path) -> Iterator[Services]:
    """`testgrad up`, with a worker that knows the tests' plugin; at the end nothing is left of it or of its runs."""
    settings = {variable_of(key): value for key, value in MACHINE.items()}
    with prefect_database(), patch.dict(os.environ, settings):
        try:
            begun = testgrad("up", root=root)
            assert begun.returncode == 0, begun.stdout + begun.stderr
            found = read_services(root)
            assert found is not None
            yield found
        finally:
            ended = testgrad("down", root=root)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert not leftover_processes() and not _files()


@pytest.fixture
def page(tmp_path: Path) -> Iterator[Page]:
    with chrome(tmp_path / "profile") as page:
        yield page


class Watched:
    """A training run: its flow run at the server, its journal, and what its process has started."""

    def __init__(self, services: Services, root: Path, experiment: str) -> None:
        def look() -> dict[str, Any] | None:
            asked = ((run, run["parameters"].get("run", {})) for run in runs_of(services, "train"))
            return next((run for run, form in asked if form.get("experiment") == experiment), None)

        self.services = services
        self.id = str(until("the flow run", look)["id"])
        self.journal = Journal(root / "testgrad" / experiment)

    @property
    def url(self) -> str:
        return f"{self.services.prefect_ui_url}/runs/flow-run/{self.id}"

    def has_trials(self, step: int, count: int) -> bool:
        """Whether so many trials of a step have ended. That its flow run has not ended is required."""
        state = flow_run(self.services, self.id)
        assert state["state_type"] not in ("FAILED", "CRASHED"), state["state"]
        return len(self.journal.trials(step_label(step))) >= count

    def processes(self) -> list[psutil.Process]:
        """The flow's process and all that it has started, sandboxes too."""
        leaders = [process for process in psutil.process_iter() if self._is_flow(process)]
        assert leaders, "the flow runs in no process"
        return [*leaders, *(child for leader in leaders for child in leader.children(recursive=True))]

    def _is_flow(self, process: psutil.Process) -> bool:
        try:
            return process.environ().get("PREFECT__FLOW_RUN_ID") == self.id
        except (psutil.NoSuchProcess, psutil.AccessDenied):
            return False

    def trials(self) -> dict[str, int]:
        """Trials that have ended, and when."""
        folder = self.journal.root / "trials"
        return {str(path.relative_to(folder)): path.stat().st_mtime_ns for path in folder.rglob("trial.json")}

    def subflows(self) -> list[tuple[str, str]]:
        """Name and state of the flow runs below it, in the order in which they began."""
        below = {"flow_runs": {"parent_flow_run_id": {"any_": [self.id]}}, "sort": "START_TIME_ASC"}
        return [(run["name"], run["state_type"]) for run in ask(self.services, "flow_runs/filter", **below)]


def _files() -> set[str]:
    """What is left in the temporary folder, but for the worker's own, which is empty, and Prefect's of a killed one."""
    return {name for name in leftover_files() if name != "runner_storage" and not name.endswith("prefect")}


def _lives(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def _start_from_the_page(page: Page, services: Services, policy: Path) -> None:
    """The form of `train`, with a name, and two fields changed."""
    page.open(f"{services.prefect_ui_url}/deployments/deployment/{deployment_id(services, 'train')}/run")
    page.wait_for_text("Experiment", "Learning rate", "Advanced")
    page.settle(2.0)  # until it is filled in, the form takes back what is changed
    page.fill("Experiment", "page")
    page.fill("Policy (Optional)", str(policy))
    page.fill("Steps (Optional)", "2")
    submit(page, services, "train")


def test_a_run_is_started_cancelled_and_retried_from_the_page(
    page: Page, services: Services, root: Path, models: dict[str, Path]
) -> None:
    files = _files()
    _start_from_the_page(page, services, models["tied"])
    run = Watched(services, root, "page")
    changed = flow_run(services, run.id)["parameters"]["run"]
    assert (changed["total_steps"], changed["policy"], changed["tasks_per_step"]) == (2, str(models["tied"]), 8)

    page.open(run.url)
    page.click("Subflow Runs")
    until("trials of the second step", lambda: run.has_trials(2, 6))
    page.wait_for_text("Running", "step-1", "step-2")
    picture(page, "ui-prefect-steps.png")
    processes = run.processes()
    page.click("Cancel")
    page.click("Confirm", ".p-modal button")
    assert until_ended(services, run.id)["state_type"] == "CANCELLED"
    kept, subflows = run.trials(), run.subflows()
    assert len(run.journal.trials(step_label(1))) == TRIALS and 6 <= len(run.journal.trials(step_label(2))) < TRIALS
    until("the end of all its processes", lambda: not any(map(_lives, processes)), 60)
    assert _files() == files, "sandboxes and the cluster's folder are removed"
    end = read_end(run.journal.root)
    assert end is not None and end.how == "stopped", "it has tidied up itself"
    assert subflows[:-1] == [("evaluate-0", "COMPLETED"), ("step-1", "COMPLETED")]
    # a signal that hits one of its trials looks to Prefect like a crash of the step
    assert subflows[-1] in [("step-2", "CANCELLED"), ("step-2", "CRASHED")]

    page.open(run.url)
    page.wait_for_text("Cancelled")
    page.click("Retry")
    page.click("Retry", ".p-modal button")
    until("the retry", lambda: flow_run(services, run.id)["run_count"] == 2)
    assert until_ended(services, run.id)["state_type"] == "COMPLETED"
    assert run.journal.finished_steps() == [1, 2]
    trials = run.trials()
    assert kept.items() <= trials.items(), "no trial that had ended was made again"
    assert [len(run.journal.trials(step_label(step))) for step in (1, 2)] == [TRIALS, TRIALS]
    assert run.subflows() == [*subflows, ("step-2", "COMPLETED"), ("evaluate-2", "COMPLETED")]
    page.open(run.url)
    page.click("Subflow Runs")
    page.wait_for_text("Completed", "step-2", "evaluate-2")


def test_a_run_that_dies_with_its_worker_goes_on_by_itself_once_there_is_another(
    services: Services, root: Path, models: dict[str, Path]
) -> None:
    asked = {"policy": str(models["tied"]), "total_steps": 1, "tasks_per_step": 4, "attempts_per_task": 4}
    advanced = {"settings": ["schedule.eval_before=false", "schedule.eval_after=false"], "restarts": 1}
    start(services, "train", run={"experiment": "bereft", **asked, "advanced": advanced})
    run = Watched(services, root, "bereft")
    until("trials", lambda: run.has_trials(1, 3))
    processes = run.processes()
    for process in (psutil.Process(read_servers(root)[WORKER].pid), processes[0]):
        process.kill()
    until("the end of all that it had started", lambda: not any(map(_lives, processes)))
    kept = run.trials()
    again = testgrad("up", root=root)
    assert again.returncode == 0, again.stdout + again.stderr

    until("the next start", lambda: flow_run(services, run.id)["run_count"] == 2)
    assert until_ended(services, run.id)["state_type"] == "COMPLETED"
    assert kept.items() <= run.trials().items() and len(run.trials()) == 16, "no trial that had ended was made again"
    assert run.subflows()[-1] == ("step-1", "COMPLETED")


@pytest.fixture(scope="module")
def checkpoint(services: Services, root: Path, models: dict[str, Path]) -> Path:
    """The newest checkpoint, of a run that the API was asked for."""
    asked = {"policy": str(models["tied"]), "total_steps": 1, "tasks_per_step": 2, "attempts_per_task": 2}
    advanced = {"settings": ["schedule.eval_before=false", "schedule.eval_after=false"]}
    run = start(services, "train", run={"experiment": "clocked", **asked, "advanced": advanced})
    assert until_ended(services, run)["state_type"] == "COMPLETED"
    return root / "testgrad" / "clocked" / "checkpoints" / "global_step_1"


def test_the_newest_checkpoint_is_scored_once(services: Services, root: Path, checkpoint: Path, tmp_path: Path) -> None:
    """What the clock asks for every hour; but the model is random, so that it would not pass the probe."""
    index = tmp_path / "pool" / "index.parquet"
    write_index([TaskPointer(name, write_task(index.parent / name)) for name in ("one", "two")], index)
    asked: dict[str, Any] = {"index": str(index), "attempts": 2, "advanced": {"probe": False}}

    first = until_ended(services, start(services, "evaluate", evaluation=asked))
    assert first["state_type"] == "COMPLETED", first["state"]
    (record_path,) = root.glob("scores/*/evals/*/record.json")
    record, score = read_json(record_path), record_path.parent.parent.parent
    assert (record["tasks"], record["scored"]) == (2, 4)
    assert (read_json(score / "asked.json") or {})["config"]["experiment"].startswith("global-step-1-")
    assert str(checkpoint.name) == "global_step_1"
    artifacts = ask(services, "artifacts/filter", artifacts={"flow_run_id": {"any_": [first["id"]]}})
    assert "evaluate-evaluation-0" in {artifact["key"] for artifact in artifacts}

    before = {path: path.stat().st_mtime_ns for path in score.rglob("*.json")}
    second = until_ended(services, start(services, "evaluate", evaluation=asked))
    assert (second["state_type"], second["state_name"]) == ("COMPLETED", "AlreadyScored"), second["state"]
    assert {path: path.stat().st_mtime_ns for path in score.rglob("*.json")} == before
