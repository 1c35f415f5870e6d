"""`testgrad status`: the state of a run from its files and this machine's processes."""

import asyncio
import dataclasses
import json
import os
import signal
import subprocess
import time
from datetime import UTC, datetime

import pytest
import typer
from prefect.exceptions import TerminationSignal
from rich.console import Console
from support.diagnosed import NAME, facts_of, write_evaluation, write_groups, write_run, write_trials
from support.reported import put
from typer.testing import CliRunner

from flows.commands import status as command
from flows.config import ConfigError
from flows.diagnosis.facts import RunFacts, known_runs
from flows.diagnosis.process import read_end, read_process, recorded_end
from flows.diagnosis.state import State, cpu_seconds, state_of
from harness.sandbox.owner import this_host
from tasks.journal import ASKED, Journal, step_label
from tasks.lease import Holder, lease
from trainer.learner.checkpoint import MARKER


def state(root, name=NAME):
    return state_of(facts_of(root, name))


def held_by(journal, pid, host=None):
    """A lease of another process."""
    since = datetime.now(UTC).isoformat(timespec="seconds")
    put(journal.root / "lease.json", dataclasses.asdict(Holder(host or this_host(), pid, "boot.1", "train", since)))


def dead_pid():
    process = subprocess.Popen(["true"])
    process.wait()
    return process.pid


def finish(journal, step):
    put(journal.checkpoints / f"global_step_{step}" / MARKER, {})


def test_a_run_at_work(tmp_path):
    journal = write_run(tmp_path, steps=0)
    past(journal)
    with lease(journal.root, "train"):
        found = state(tmp_path)
        assert (found.state, found.pids) == (State.WAITING, [os.getpid()])
        assert "no stage has begun yet" in found.why
        write_groups(journal, step_label(1))
        found = state(tmp_path)
        assert (found.state, found.pids) == (State.RUNNING, [os.getpid()])
        assert f"process {os.getpid()} works on it (train)" in found.why
    assert state(tmp_path).state is State.STOPPED


def past(journal, seconds=1000):
    then = time.time() - seconds
    for path in (journal.root, *journal.root.rglob("*")):
        os.utime(path, (then, then))


def test_a_resumed_run_waits_until_it_writes_again(tmp_path):
    journal = write_run(tmp_path, steps=2)
    write_groups(journal, step_label(3))
    past(journal)
    with lease(journal.root, "train"):
        assert state(tmp_path).state is State.WAITING
        write_trials(journal, step_label(3), [{}])
        assert state(tmp_path).state is State.RUNNING


def test_a_run_whose_process_was_killed_is_dead(tmp_path):
    journal = write_run(tmp_path, steps=2)
    pid = dead_pid()
    held_by(journal, pid)
    found = state(tmp_path)
    assert found.state is State.DEAD and f"process {pid} still holds the lease and is gone" in found.why
    assert found.since == pytest.approx(facts_of(tmp_path).changed_at) and found.pids == []


def test_a_process_of_another_host_is_believed_by_its_heartbeat(tmp_path):
    journal = write_run(tmp_path, steps=2)
    held_by(journal, 4711, host="elsewhere.1")
    found = state(tmp_path)
    assert found.state is State.RUNNING or found.state is State.WAITING
    assert "process 4711 of elsewhere.1, which cannot be asked from here" in found.why and found.pids == []
    then = time.time() - 1000
    os.utime(journal.root / "lease.json", (then, then))
    assert state(tmp_path).state is State.DEAD


@pytest.mark.parametrize(
    ("error", "expected", "words"),
    [
        (ValueError("the pool is empty"), State.FAILED, "ValueError: the pool is empty"),
        (KeyboardInterrupt(), State.STOPPED, "was stopped"),
        (asyncio.CancelledError(), State.STOPPED, "was stopped"),
        (TerminationSignal(signal.SIGTERM), State.STOPPED, "was stopped"),
    ],
)
def test_how_a_run_ended(tmp_path, error, expected, words):
    journal = write_run(tmp_path, steps=2)
    with pytest.raises(type(error)), lease(journal.root, "train"), recorded_end(journal.root):
        raise error
    found = state(tmp_path)
    assert found.state is expected and words in found.why
    held_by(journal, dead_pid())
    assert state(tmp_path).state is State.DEAD, "a later process was killed"


def test_a_message_is_kept_without_secrets_and_a_refused_configuration_is_no_end(tmp_path, monkeypatch):
    monkeypatch.setenv("HUB_TOKEN", "hush-hush")
    with pytest.raises(RuntimeError), recorded_end(tmp_path):
        raise RuntimeError("hush-hush was refused")
    assert read_end(tmp_path).message == "RuntimeError: *** was refused"
    (tmp_path / "end.json").unlink()
    with pytest.raises(ConfigError), recorded_end(tmp_path):
        raise ConfigError("exists with other settings")
    assert read_end(tmp_path) is None and read_process(tmp_path) is None


def test_a_finished_run_and_one_whose_schedule_was_raised(tmp_path):
    journal = write_run(tmp_path, steps=20)
    assert state(tmp_path).state is State.STOPPED, "its last checkpoint is missing"
    assert state(tmp_path).stage.name == "checkpoint"
    finish(journal, 20)
    with recorded_end(journal.root):
        pass
    found = state(tmp_path)
    assert (found.state, found.stage, found.eta_seconds) == (State.FINISHED, None, None)
    write_run(tmp_path, steps=20, config={"schedule": {"total_steps": 20, "eval_after": True}})
    assert state(tmp_path).state is State.STOPPED, "it is not scored yet"
    write_evaluation(journal, 20)
    assert state(tmp_path).state is State.FINISHED
    write_run(tmp_path, steps=20, config={"schedule": {"total_steps": 30}})
    found = state(tmp_path)
    assert found.state is State.STOPPED and "its schedule was raised since" in found.why


def test_nothing_is_known_of_an_empty_folder(tmp_path):
    (tmp_path / NAME / "steps").mkdir(parents=True)
    put(tmp_path / "project" / "new" / "config.json", {"identity": "0", "config": {"schedule": {"total_steps": 5}}})
    assert state(tmp_path).state is State.UNKNOWN
    assert state(tmp_path, "project/new").state is State.NEW


@pytest.mark.parametrize(
    ("files", "text"),
    [
        ([], "step 3, not begun"),
        (["groups"], "step 3, trials: 2 of 16 trials ended, 1 graded"),
        (["groups", "batch.parquet"], "step 3, scores and advantages"),
        (["groups", "batch.parquet", "advantages.json"], "step 3, update"),
        (["groups", "batch.parquet", "advantages.json", "update.json"], "step 3, sync"),
        (["groups", "batch.parquet", "advantages.json", "update.json", "sync.json"], "step 3, record"),
    ],
)
def test_the_stage_is_the_first_that_left_nothing(tmp_path, files, text):
    journal = write_run(tmp_path, steps=2)
    write_trials(journal, step_label(3), [{}, {"status": None}])
    for name in files:
        if name == "groups":
            write_groups(journal, step_label(3))
        else:
            put(journal.stage_dir(step_label(3)) / name, {})
    assert state(tmp_path).stage.text == text


def test_an_evaluation_is_a_stage_of_its_own(tmp_path):
    journal = write_run(tmp_path, steps=2)
    write_groups(journal, "eval_step_000002", attempts=1)
    assert state(tmp_path).stage.text == "evaluation after step 2, trials: 0 of 4 trials ended, 0 graded"
    write_evaluation(journal, 2)
    assert state(tmp_path).stage.text == "step 3, not begun"


def test_what_is_left_is_told_from_the_times_of_steps(tmp_path):
    journal = write_run(tmp_path, steps=12, changes={"timing_s/step": 100.0})
    with lease(journal.root, "train"):
        assert state(tmp_path).eta_seconds == 800.0
        write_groups(journal, step_label(13))
        os.utime(journal.stage_dir(step_label(13)) / "groups.parquet", (time.time(), time.time() - 40))
        assert 700 < state(tmp_path).eta_seconds < 761
        os.utime(journal.stage_dir(step_label(13)) / "groups.parquet", (time.time(), time.time() - 4000))
        assert state(tmp_path).eta_seconds == 700.0
        assert "median of 10 steps, 100 s each" in state(tmp_path).eta_from
    assert state(tmp_path).eta_seconds is None


def test_only_the_ends_of_a_long_run_are_read(tmp_path):
    write_run(tmp_path, steps=60, changes=lambda step: {"critic/score/mean": step / 100})
    facts = facts_of(tmp_path)
    assert list(facts.metrics) == [*range(1, 11), *range(31, 61)] and facts.newest == 60
    assert facts.last("critic/score/mean") == 0.6 and facts.last("nothing") is None
    assert facts.series("critic/score/mean", 2) == [(59, 0.59), (60, 0.6)]


def test_processor_time_of_a_process_and_of_none():
    before = cpu_seconds([os.getpid()])
    sum(i * i for i in range(2_000_000))
    assert cpu_seconds([os.getpid()]) > before > 0
    assert cpu_seconds([]) is None and cpu_seconds([dead_pid()]) is None


@pytest.fixture
def run(tmp_path, monkeypatch):
    monkeypatch.delenv("TESTGRAD_DEBUG", raising=False)
    monkeypatch.setattr(command, "console", Console(width=250))
    app = typer.Typer(pretty_exceptions_enable=False)
    app.command()(command.status)
    return lambda *words: CliRunner().invoke(app, [*map(str, words), "--root", str(tmp_path)])


def listing(root):
    return sorted((str(path), path.lstat().st_mtime_ns) for path in root.rglob("*"))


def test_one_run(run, tmp_path):
    journal = write_run(tmp_path, steps=12)
    write_evaluation(journal, 10)
    put(journal.stage_dir(step_label(1)) / "first_step.json",
        {"verdict": "WARN", "findings": [{"level": "WARN", "check": "reward", "field": "signal", "value": "1",
                                          "why": "of 8 groups"}, {"level": "OK"}]})  # fmt: skip
    before = listing(tmp_path)
    result = run(NAME)
    assert result.exit_code == 0, result.output
    for words in ("project/experiment, journal in", "stopped since", "12 of 20 recorded", "score 0.285",
                  "gradient norm 0.285", "after step 10: 0.300, 64 of 64 trials scored", "first step: WARN, 2 checks",
                  "reward: signal is 1: of 8 groups", "no signature of a run that is ill was found"):  # fmt: skip
        assert words in result.output, words
    assert listing(tmp_path) == before, "nothing is written"


def test_an_ill_run_has_exit_status_1(run, tmp_path):
    write_run(tmp_path, changes=lambda step: {"critic/score/mean": 0.0})
    result = run(NAME)
    assert result.exit_code == 1
    assert "✗ FATAL flat-zero  no reward in any of 192 rollouts of 12 steps" in result.output
    assert "critic/score/mean: 0 (7), 0 (8), 0 (9), 0 (10), 0 (11), 0 (12)" in result.output
    assert "likely 1: not known" in result.output


def test_a_dead_run_and_a_failed_one_have_exit_status_1(run, tmp_path):
    journal = write_run(tmp_path, steps=2)
    held_by(journal, dead_pid())
    assert run(NAME).exit_code == 1 and "✗ FATAL dead  gone at step 3, not begun" in run(NAME).output
    (journal.root / "lease.json").unlink()
    with pytest.raises(ValueError, match="empty"), recorded_end(journal.root):
        raise ValueError("the pool is empty")
    result = run(NAME)
    assert result.exit_code == 1 and "likely 1: as its error says (ValueError: the pool is empty)" in result.output


def test_warnings_are_no_illness(run, tmp_path):
    write_run(tmp_path, changes=lambda step: {"response_length/clip_ratio": 0.5})
    assert run(NAME).exit_code == 0 and "! WARN  truncation" in run(NAME).output


def test_json(run, tmp_path):
    with lease(tmp_path / NAME, "train"):  # the run moves if it was written since
        write_run(tmp_path, changes=lambda step: {"critic/score/mean": 0.0})
        answer = json.loads(run(NAME, "--json").output)
    assert (answer["run"], answer["state"], answer["work"], answer["pids"]) == (NAME, "running", "train", [os.getpid()])
    assert (answer["step"], answer["total_steps"], answer["ill"]) == (12, 20, True)
    assert answer["stage"]["label"] == "step_000013" and answer["last"]["pearson"] == 0.999
    (sign,) = answer["signatures"]
    assert sign["name"] == "flat-zero" and sign["evidence"]["critic/score/mean"][-1] == [12, 0.0]
    assert sign["causes"][0]["mend"]


@pytest.mark.parametrize("name", ["project/other", "../etc", "project", "/etc/passwd", ""])
def test_a_run_that_is_not_there(run, tmp_path, name):
    write_run(tmp_path)
    result = run(name)
    assert result.exit_code == 2 and "Traceback" not in result.output
    assert f"there are {NAME}" in result.output


def test_all_runs(run, tmp_path):
    write_run(tmp_path)
    finish(write_run(tmp_path, steps=20, name="project/done"), 20)
    held_by(write_run(tmp_path, name="project/killed"), dead_pid())
    put(tmp_path / "models" / "tiny" / "config.json", {"hidden_size": 1})
    result = run()
    assert result.exit_code == 0
    rows = {line.split()[0]: line for line in result.output.splitlines() if line.strip()}
    assert "finished" in rows["project/done"] and "20/20" in rows["project/done"]
    assert "dead" in rows["project/killed"] and "FATAL" not in rows["project/killed"]
    assert "stopped" in rows[NAME] and "12/20" in rows[NAME] and "0.285" in rows[NAME]
    assert "models/tiny" not in rows and "prefect:" in rows and "mlflow:" in rows
    answer = json.loads(run("--json").output)
    assert {entry["run"] for entry in answer["runs"]} == {NAME, "project/done", "project/killed"}
    assert {"prefect", "mlflow"} <= {server["name"] for server in answer["servers"]}


def test_no_run_yet(run, tmp_path):
    result = run()
    assert result.exit_code == 0 and "no run in" in result.output


DAMAGED = {
    "config.json": "config.json cannot be read",
    "lease.json": "lease.json cannot be read",
    "end.json": "end.json cannot be read",
    "steps/step_000012/record.json": "steps/step_000012/record.json cannot be read",
    "steps/step_000013/groups.parquet": "step_000013: its groups cannot be read",
    "steps/step_000001/first_step.json": "steps/step_000001/first_step.json cannot be read",
    "evals/step_000012/record.json": "evals/step_000012/record.json cannot be read",
}


@pytest.mark.parametrize("file", list(DAMAGED))
@pytest.mark.parametrize("content", ["{", "[1]", "\x00\xff"])
def test_a_damaged_file_is_told_and_the_rest_shown(run, tmp_path, file, content):
    journal = write_run(tmp_path)
    path = journal.root / file
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content.encode("latin-1"))
    result = run(NAME)
    assert result.exit_code == 0, result.output
    assert f"note: {DAMAGED[file]}" in result.output
    assert "score 0." in result.output


def test_links_and_pipes_are_not_followed(run, tmp_path):
    journal = write_run(tmp_path)
    (tmp_path / "secret.json").write_text('{"step": 12, "metrics": {"critic/score/mean": 0.77}}')
    record = journal.stage_dir(step_label(12)) / "record.json"
    record.unlink()
    record.symlink_to(tmp_path / "secret.json")
    os.mkfifo(journal.root / "end.json")
    result = run(NAME)
    assert result.exit_code == 0 and "0.77" not in result.output
    assert "end.json cannot be read" in result.output


def test_a_run_that_is_removed_meanwhile(tmp_path, monkeypatch):
    write_run(tmp_path)
    names = known_runs(tmp_path)
    assert names == [NAME]
    gone = RunFacts.read(tmp_path, "project/gone")
    assert state_of(gone).state is State.UNKNOWN
    assert Journal(tmp_path / "project/gone").finished_steps() == []


def test_work_that_has_no_schedule(run, tmp_path):
    """Collecting, or an evaluation by itself: its lease and its end say what there is to say."""
    folder = tmp_path / "project" / "collected"
    put(folder / "config.json", {"identity": "0", "config": {"schedule": {"total_steps": 18}}})
    put(folder / ASKED, {"policy": "m"})  # the settings are those of a run, whose steps it does not make
    with lease(folder, "collect"), recorded_end(folder):
        past(Journal(folder), 100_000)
        found = state(tmp_path, "project/collected")
        assert (found.state, found.stage) == (State.RUNNING, None) and "works on it (collect)" in found.why
        assert run("project/collected").exit_code == 0, "silence says nothing of it"
    assert state(tmp_path, "project/collected").state is State.FINISHED
