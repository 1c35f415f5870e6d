"""Bad input ends with one message and exit status 2, never with a traceback."""

import os

import pytest
from support.journals import make_result, make_run, write_trial
from typer.testing import CliRunner

from flows.cli import app
from tasks.journal import JournalError


@pytest.fixture
def invoke(tmp_path, monkeypatch):
    """Runs the command line under a root of its own; what it sets in the environment is undone."""
    saved = dict(os.environ)
    monkeypatch.delenv("TESTGRAD_DEBUG", raising=False)
    monkeypatch.chdir(tmp_path)

    def run(*arguments, root=True):
        place = ["--root", str(tmp_path / "root")] if root else []
        return CliRunner().invoke(app, [*map(str, arguments), *place], env={"COLUMNS": "200"})

    yield run
    os.environ.clear()
    os.environ.update(saved)


def assert_refused(result, *words):
    assert result.exit_code == 2, result.output
    assert "Traceback" not in result.output
    assert result.output.count("error") >= 1
    for word in words:
        assert word in result.output


def write_config(tmp_path, text):
    (tmp_path / "run.yaml").write_text(text)
    return tmp_path / "run.yaml"


def test_help_lists_the_commands(invoke):
    output = invoke("--help", root=False).output
    for command in ("quickstart", "train", "eval", "export", "trials", "pool", "up", "down", "status"):
        assert command in output


def test_a_missing_config(invoke, tmp_path):
    assert_refused(invoke("train", tmp_path / "none.yaml"), "none.yaml: no such file")


def test_an_unknown_key(invoke, tmp_path):
    path = write_config(tmp_path, "experiment: e\nrolout:\n  tasks_per_step: 4\n")
    assert_refused(invoke("train", path), "rolout: unknown key", "rollout")


def test_each_mistake_is_told(invoke, tmp_path):
    path = write_config(tmp_path, "experiment: e\nlearner:\n  lr: fast\nrollout:\n  top_p: 0.5\n")
    assert_refused(invoke("train", path), "learner.lr", "'fast'", "set top_p: 1.0")


def test_a_bad_override(invoke, tmp_path):
    path = write_config(tmp_path, "experiment: e\n")
    assert_refused(invoke("train", path, "--set", "learner.lr"), "expected section.key=value")
    assert_refused(invoke("quickstart", "--set", "learner.speed=2"), "learner.speed: unknown key")


def test_a_run_without_trials(invoke):
    assert_refused(invoke("trials", "testgrad/none"), "has no trials; name a run as project/experiment")


def test_trials_of_a_run(invoke, tmp_path):
    write_trial(make_run(tmp_path / "root"), "step_000001", make_result("add-aa"))
    result = invoke("trials", "project/experiment")
    assert result.exit_code == 0 and "add-aa" in result.output
    shown = invoke("trials", "project/experiment", "add")
    assert shown.exit_code == 0 and "verdict passed" in shown.output
    assert_refused(invoke("trials", "project/experiment", "sub"), "begins with 'sub'")


def test_faults_of_the_code_keep_their_traceback(invoke, monkeypatch):
    monkeypatch.setattr("flows.trial_view.list_trials", lambda *_: 1 / 0)
    assert isinstance(invoke("trials", "a/b").exception, ZeroDivisionError)


def test_an_error_commands_no_terminal(invoke, monkeypatch):
    def fail(*_):
        raise JournalError("gone \x1b[2J\nat once")

    monkeypatch.setattr("flows.trial_view.list_trials", fail)
    result = invoke("trials", "a/b")
    assert result.exit_code == 2 and "at once" in result.output and "\x1b" not in result.output


def test_debugging_shows_where_a_message_comes_from(invoke, monkeypatch):
    monkeypatch.setenv("TESTGRAD_DEBUG", "1")
    result = invoke("trials", "testgrad/none")
    assert type(result.exception).__name__ == "JournalError"


@pytest.mark.parametrize("option", ["--attempts=0", "--temperature=-1", "--max-tasks=0"])
def test_options_out_of_range(invoke, tmp_path, option):
    result = invoke("eval", tmp_path, option)
    assert result.exit_code == 2 and option.split("=")[0] in result.output


def test_algorithms_are_listed_with_formula_settings_and_source(invoke):
    result = invoke("algorithms", "--plugin", "support.plugin", root=False)
    assert result.exit_code == 0, result.output
    assert "grpo (default)  A = (r - mean of the group)" in result.output
    assert "settings norm_adv_by_std · arXiv:2402.03300" in result.output
    for name in ("gspo (default)", "seq-mean-token-mean (default)", "k3 (default)", "alternate"):
        assert name in result.output


def test_algorithms_of_a_plugin_that_is_not_there(invoke):
    assert_refused(invoke("algorithms", "--plugin", "no_such_module", root=False), "cannot import 'no_such_module'")


def test_a_config_that_would_train_something_else_than_it_says(invoke, tmp_path):
    config = write_config(tmp_path, "experiment: x\nalgorithm: {policy_loss: gspo, clip_ratio_high: 0.28}\n")
    assert_refused(invoke("train", config), "clip_ratio_high is 0.28, made for token ratios")


def test_trials_are_exported(invoke, tmp_path):
    run = make_run(tmp_path / "root")
    for session in ("add-1", "add-2"):
        write_trial(run, "step_000001", make_result(session))
    result = invoke("trials", "project/experiment", "add-2", "--atif", tmp_path / "out")
    assert result.exit_code == 0 and "wrote 1 of 1 trials to" in result.output
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["add-2"]
    assert_refused(invoke("trials", "project/experiment", "mul", "--atif", tmp_path / "out"), "begins with 'mul'")
