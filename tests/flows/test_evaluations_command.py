"""`testgrad eval-compare` and `testgrad regrade`."""

import json
import os

import pytest
import typer
from support.evaluations import RIGHT, WRONG, write_evaluation
from support.journals import make_verdict
from typer.testing import CliRunner

from flows.commands.evaluations import eval_compare, regrade
from harness.verifier.verdict import Status

app = typer.Typer()
app.command("eval-compare")(eval_compare)
app.command("regrade")(regrade)

SOLVED, FAILED, LOST = (RIGHT, Status.PASSED), (WRONG, Status.FAILED), (None, None)


@pytest.fixture
def invoke(tmp_path, monkeypatch):
    """Runs a command under a root of its own; what it sets in the environment is undone."""
    saved = dict(os.environ)
    monkeypatch.delenv("TESTGRAD_DEBUG", raising=False)
    monkeypatch.setattr("flows.commands.evaluations.prepare", lambda root: None)  # it starts a process

    def run(*arguments):
        return CliRunner().invoke(app, [*arguments, "--root", str(tmp_path)], env={"COLUMNS": "200"})

    yield run
    os.environ.clear()
    os.environ.update(saved)


def evaluate(tmp_path, experiment, solved, of=8, step=4, lost=0, **config):
    made = {f"t{i}": [SOLVED if i < solved else FAILED] for i in range(of)} | {f"x{i}": [LOST] for i in range(lost)}
    return write_evaluation(tmp_path, made, step, experiment, **config)


def test_a_difference_that_the_trials_support(invoke, tmp_path):
    evaluate(tmp_path, "before", 0)
    evaluate(tmp_path, "after", 8)
    result = invoke("eval-compare", "project/before", "project/after@4")
    assert result.exit_code == 0, result.output
    lines = [" ".join(line.split()) for line in result.output.splitlines()]
    assert "project/before@4 0.000 0.000 to 0.324 8 of 8 8 of 8" in lines
    assert "project/after@4 is better" in lines
    told = next(line for line in lines if "less" in line)
    assert told.startswith("project/after@4 less project/before@4: +1.000") and "McNemar, exact: p = 0.0078" in told
    assert "better on 8, worse on 0" in told and "not the weights alone" not in result.output


def test_a_difference_that_they_do_not_support(invoke, tmp_path):
    evaluate(tmp_path, "before", 3)
    evaluate(tmp_path, "after", 5)
    result = invoke("eval-compare", "project/before", "project/after")
    assert result.exit_code == 0, result.output
    assert "no difference is supported: they differ on 2 independent tasks only" in result.output
    assert "is better" not in result.output


def test_two_steps_of_one_run_as_json(invoke, tmp_path):
    evaluate(tmp_path, "run", 0, step=0)
    evaluate(tmp_path, "run", 7, step=10)
    result = invoke("eval-compare", "project/run@0", "project/run", "--json")
    found = json.loads(result.output)
    assert (found["first"], found["second"]) == ("project/run@0", "project/run@10")
    assert (found["comparison"]["better"], found["comparison"]["won"]) == ("second", 7)
    assert found["differences"] == []


def test_what_else_differs_is_told(invoke, tmp_path):
    evaluate(tmp_path, "before", 0, evaluation={"temperature": 0.0, "max_tasks": 8}, rollout={"concurrency": 7})
    evaluate(tmp_path, "after", 8)
    output = invoke("eval-compare", "project/before", "project/after").output
    assert "not the weights alone: evaluation.temperature 0.0 -> 0.7" in output
    assert "max_tasks" not in output and "concurrency" not in output


def test_tasks_that_only_share_a_name_are_not_compared(invoke, tmp_path):
    evaluate(tmp_path, "before", 0)
    (tmp_path / "pool" / "t3" / "environment" / "repo" / "more.py").write_text("x = 1\n")
    evaluate(tmp_path, "after", 8)
    result = invoke("eval-compare", "project/before", "project/after")
    assert (
        result.exit_code == 2 and "1 of 8 tasks have the same name but another snapshot, the first t3" in result.output
    )


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("project", "'project' names no evaluation; write project/experiment"),
        ("project/none", "project/none has no finished evaluation in"),
        ("project/run@7", "no finished evaluation after step 7; there are some after 0, 4"),
    ],
)
def test_an_evaluation_that_is_not_there(invoke, tmp_path, name, message):
    evaluate(tmp_path, "run", 0, step=0)
    evaluate(tmp_path, "run", 0)
    result = invoke("eval-compare", name, "project/run")
    assert result.exit_code == 2 and message in result.output and "Traceback" not in result.output


def test_nothing_scored_in_both(invoke, tmp_path):
    evaluate(tmp_path, "before", 0, of=0, lost=3)
    evaluate(tmp_path, "after", 3, of=3)
    result = invoke("eval-compare", "project/before", "project/after")
    assert result.exit_code == 2 and "no task is scored in both evaluations" in result.output


def test_patches_are_graded_again_in_real_sandboxes(invoke, tmp_path):
    """A right patch that was taken for wrong, and a wrong one that was taken for right."""
    run = write_evaluation(tmp_path, {"t": [(RIGHT, Status.FAILED), (WRONG, Status.PASSED)]})
    result = invoke("regrade", "project/experiment", "--step", "4", "--concurrency", "2")
    assert result.exit_code == 0, result.output
    lines = [" ".join(line.split()) for line in result.output.splitlines()]
    assert "1 failed -> passed" in lines and "1 passed -> failed" in lines
    record = json.loads((run.journal.stage_dir("eval_step_000004") / "record.json").read_text())
    assert record["pass_at_1"] == 1.0 and record["outcomes"]["policy"] == {"failed": {"completed": 1}}


def test_all_evaluations_are_graded_again_if_no_step_is_given(invoke, tmp_path, monkeypatch):
    async def grade(*_, **__):
        return make_verdict(Status.PASSED)

    monkeypatch.setattr("tasks.regrade.grade_with_retries", grade)
    evaluate(tmp_path, "run", 0, step=0, of=2)
    evaluate(tmp_path, "run", 1, of=2)
    result = invoke("regrade", "project/run")
    assert result.exit_code == 0, result.output
    assert "evaluation after step 0" in result.output and "evaluation after step 4" in result.output


def test_patches_that_cannot_be_graded_leave_the_old_verdicts(invoke, tmp_path, monkeypatch):
    async def grade(*_, **__):
        return make_verdict(Status.INFRA_ERROR)

    monkeypatch.setattr("tasks.regrade.grade_with_retries", grade)
    evaluate(tmp_path, "run", 1, of=2)
    result = invoke("regrade", "project/run")
    assert result.exit_code == 1 and "2 of 2 patches could not be graded" in result.output


def test_a_run_that_is_not_there(invoke, tmp_path):
    for name in ("project/none", "none"):
        result = invoke("regrade", name)
        assert result.exit_code == 2 and f"there is no run {name}" in result.output
    run = evaluate(tmp_path, "run", 1, of=1)
    (run.journal.stage_dir("eval_step_000004") / "record.json").unlink()
    result = invoke("regrade", "project/run")
    assert result.exit_code == 2 and "has no finished evaluation" in result.output
