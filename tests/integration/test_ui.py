"""`testgrad up`, and a real browser on what it starts: pages of Prefect and MLflow, and a custom run from one of them.

One boot for all. With TESTGRAD_SCREENSHOTS=1 the pictures in docs/ are made anew, with TESTGRAD_TEST_POSTGRESQL=1
Prefect keeps its records in a private PostgreSQL.
"""

import json
import os
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import psutil
import pytest
from support.chrome import Page, chrome
from support.evaluations import RIGHT, WRONG, write_evaluation
from support.integration import testgrad
from support.retried import steps_of_a_retried_run
from support.served import ENDED, ask, deployment_id, get, picture, prefect_database, runs_of, submit, until

from deployments.deploy import RESTARTER, WATCHER, deploy
from deployments.server_kinds import DATABASE_VARIABLE
from deployments.services import Services, down, read_services, status, up
from harness.verifier.verdict import Status
from tasks.journal import eval_label, read_json
from tasks.tracing import TracingConfig
from tasks.track_evaluation import track_evaluation
from tasks.tracking import Tracker

RUN = "project/experiment"
STEP = 4


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("served")


@pytest.fixture(scope="module")
def services(root: Path) -> Iterator[Services]:
    """All of `testgrad up`; at the end nothing of it may be left."""
    members: list[psutil.Process] = []
    with prefect_database():
        try:
            found = up(root)
            deploy(root, found)
            yield found
            leaders = [entry.pid for entry in status(root) if entry.pid is not None]
            members = [process for leader in leaders for process in psutil.Process(leader).children(recursive=True)]
        finally:
            down(root)
    assert read_services(root) is None
    assert not [process for process in members if process.is_running() and process.status() != psutil.STATUS_ZOMBIE]
    assert not [leader for leader in leaders if psutil.pid_exists(leader)]
    for url in (found.prefect_ui_url, found.mlflow_url):
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", int(urlsplit(url).port or 0)), timeout=5).close()


@pytest.fixture(scope="module")
def mlflow_run(root: Path, services: Services) -> Tracker:
    """A finished run of four steps with a checkpoint, its evaluation and traces, entered as a run's flow does."""
    run = write_evaluation(root, {"a": [(RIGHT, Status.PASSED)] * 2, "b": [(WRONG, Status.FAILED)] * 2}, STEP)
    run = run.model_copy(update={"tracking_uri": services.mlflow_url})
    tracker = Tracker.open(run)
    tracker.start({"learner.lr": 4e-5, "rollout.tasks_per_step": 8}, run.journal.root / "config.json")
    for step in range(1, STEP + 1):
        tracker.log_step(step, {"critic/score/mean": step / 8, "actor/entropy": 1 / step, "timing_s/step": 40.0 + step})
    tracker.log_checkpoint(run.journal.checkpoints / f"global_step_{STEP}", STEP)
    label = eval_label(STEP)
    record = read_json(run.journal.stage_dir(label) / "record.json")
    assert track_evaluation(run, label, STEP, record, TracingConfig(), run) is not None
    report = run.journal.root / "report.html"
    report.write_text("<h1>a report</h1>")
    tracker.log_artifact(report)
    tracker.end("FINISHED")
    return tracker


@pytest.fixture
def page(tmp_path: Path) -> Iterator[Page]:
    with chrome(tmp_path / "profile") as page:
        yield page


def test_up_serves_and_is_up_once(root: Path, services: Services, capsys: pytest.CaptureFixture[str]) -> None:
    assert get(f"{services.prefect_api_url}/health") == b"true"
    page = json.loads(get(f"{services.prefect_ui_url}/ui-settings"))
    assert page["api_url"] == services.prefect_api_url, "Prefect's page must call the server that serves it"
    assert get(f"{services.mlflow_url}/health") == b"OK"
    assert b"mlflow" in get(services.mlflow_url).lower()
    assert (root / "mlflow.db").is_file()
    assert (root / "services" / "prefect" / "prefect.db").is_file() == (DATABASE_VARIABLE not in os.environ)

    leaders = [entry.pid for entry in status(root)]
    while [entry.state for entry in status(root)] != ["up", "up", "up"]:  # one may be late to answer
        time.sleep(0.1)
    assert up(root) == services == read_services(root)
    assert [entry.pid for entry in status(root)] == leaders
    shown = capsys.readouterr().out
    assert services.prefect_ui_url in shown and services.mlflow_url in shown
    assert deploy(root, services) is False, "what is deployed already is not deployed again"


def test_everything_is_deployed(services: Services) -> None:
    found = {entry["name"]: entry for entry in ask(services, "deployments/filter")}
    assert set(found) == {"train", "restart", "evaluate", "collect", "build-pool", "warm-start", "export", "clean"}
    assert {entry["work_pool_name"] for entry in found.values()} == {"testgrad"}
    assert found["train"]["concurrency_limit"] == 1 or found["train"]["global_concurrency_limit"]["limit"] == 1
    assert [schedule["schedule"]["cron"] for schedule in found["evaluate"]["schedules"]] == ["23 * * * *"]
    until(
        "the clock's first run",
        lambda: [run for run in runs_of(services, "evaluate-checkpoint") if run["auto_scheduled"]],
    )
    automations = {entry["name"]: entry for entry in ask(services, "automations/filter")}
    assert set(automations) == {WATCHER, RESTARTER}
    assert automations[RESTARTER]["actions"][0]["deployment_id"] == found["restart"]["id"]


def test_the_train_form_is_a_control_panel(page: Page, services: Services) -> None:
    page.open(f"{services.prefect_ui_url}/deployments/deployment/{deployment_id(services, 'train')}/run")
    page.wait_for_text("Experiment", "Names this run", "Steps", "Learning rate", "Policy loss", "Advanced")
    picture(page, "ui-prefect-form.png")
    assert page.errors == []


def _has_ended(run: dict[str, Any]) -> bool:
    return not run["auto_scheduled"] and run["state_type"] in ENDED


def test_a_custom_run_from_the_page(page: Page, services: Services, root: Path) -> None:
    """One field changed in the form of `clean`: the worker runs it, and the page of the run says so."""
    page.open(f"{services.prefect_ui_url}/deployments/deployment/{deployment_id(services, 'clean')}/run")
    page.wait_for_text("Remove what is found")
    page.settle(2.0)  # until it is filled in, the form takes back what is changed
    page.wait(
        "(() => { const on = document.querySelector('[role=switch]'); "
        "if (on.ariaChecked === 'true') on.click(); return on.ariaChecked === 'false' })()",
        "the switch to be off",
    )
    submit(page, services, "clean")
    run = until("the run to end", lambda: next((run for run in runs_of(services, "clean") if _has_ended(run)), None))
    assert run["state_type"] == "COMPLETED", run["state"]
    assert run["parameters"]["what"]["apply"] is False
    page.open(f"{services.prefect_ui_url}/runs/flow-run/{run['id']}")
    page.wait_for_text("clean", "Completed")
    picture(page, "ui-prefect.png")
    assert page.errors == []


def test_a_retry_takes_no_step_for_another(services: Services) -> None:
    entered, made = steps_of_a_retried_run(services)
    assert (entered, made) == ([1, 2, 2, 3], [2, 3])


def test_mlflow_shows_the_run(page: Page, services: Services, mlflow_run: Tracker) -> None:
    page.open(str(mlflow_run.url))
    page.wait_for_text("Finished", "critic/score/mean", "learner.lr", "global_step_4", "evaluation after step 4")
    picture(page, "ui-mlflow.png")
    # MLflow's page asks whether there are users, and is told that there are none
    assert [error for error in page.errors if not error.endswith("/mlflow/users/current")] == []


def test_the_command_tells_the_pages(root: Path, services: Services, mlflow_run: Tracker) -> None:
    plain = testgrad("ui", "--no-browser", root=root)
    assert services.prefect_ui_url in plain.stdout and services.mlflow_url in plain.stdout
    named = testgrad("ui", RUN, "--no-browser", root=root)
    assert str(mlflow_run.url) in named.stdout and "report.html" in named.stdout
    unknown = testgrad("ui", "no/run", "--no-browser", root=root)
    assert unknown.returncode == 2 and "there is no run no/run" in unknown.stderr
