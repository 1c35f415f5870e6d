"""`testgrad config`: templates to begin with, what holds and who said so, and what differs."""

import json

import pytest
import typer
import yaml
from rich.console import Console
from typer.testing import CliRunner

from flows.commands import config as command
from flows.config import ConfigError
from flows.configuration import load_run
from flows.configuration.files import read_file
from flows.configuration.redaction import Redactor
from flows.configuration.schema import settings
from flows.configuration.templates import run_template, site_template

AXES = {"backend": "docker", "scaffold": "cc", "mode": "sync", "engine": "gpu"}


@pytest.fixture
def run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("XDG_CONFIG_HOME", raising=False)
    monkeypatch.setattr(command, "console", Console(width=250))
    app = typer.Typer(pretty_exceptions_enable=False)
    app.add_typer(command.config_app, name="config")
    return lambda *words: CliRunner().invoke(app, ["config", *map(str, words)])


def test_a_template_is_refused_until_it_is_changed(run, tmp_path):
    for name in ("run.yaml", "run.toml", "run.env"):
        assert run("init", name, "--scaffold", "cc", "--engine", "gpu", "--backend", "docker").exit_code == 0
        with pytest.raises(ConfigError, match="is still 'CHANGEME'") as error:
            load_run(tmp_path / name, environment={})
        assert len(str(error.value).splitlines()) >= 4
        result = run("show", name)
        assert result.exit_code == 2 and "is still 'CHANGEME'" in result.output


def test_a_template_that_is_filled_in_runs(tmp_path):
    text = (
        run_template("yaml", AXES).replace("CHANGEME", "mine")
        + "\nserving:\n  tool_call_parser: hermes\n  window: 16384\n"
    )
    (tmp_path / "run.yaml").write_text(text)
    config = load_run(tmp_path / "run.yaml", environment={}).config
    assert (config.experiment, config.scaffold.name, config.learner.gpus_per_rank) == ("mine", "cc", 1)
    env = run_template("env", AXES)
    for name, value in {
        "TOTAL_STEPS": 10,
        "N_NODES_TRAIN": 1,
        "N_NODES_ROLLOUT": 1,
        "NNODES": 2,
        "TOOL_CALL_PARSER": "hermes",
    }.items():
        env = env.replace(f"{name}=CHANGEME", f"{name}={value}")
    (tmp_path / "run.env").write_text(env.replace("CHANGEME", "mine"))
    assert load_run(tmp_path / "run.env", environment={}).config.schedule.total_steps == 10


def test_a_template_says_of_each_setting_what_the_code_says():
    text = run_template("yaml", AXES, everything=True)
    for key, setting in settings().items():
        assert key.rpartition(".")[2] + ":" in text
        assert setting.description in text


def test_a_template_uncommented_is_the_defaults(tmp_path):
    """Its comments are settings, and take effect when the sign before them is removed."""
    lines = run_template("yaml", AXES).replace("CHANGEME", "mine").splitlines()
    live = [line[2:] if line.startswith("# ") and ":" in line.partition("  #")[0] else line for line in lines]
    (tmp_path / "run.yaml").write_text("\n".join(live[2:]))
    values = read_file(tmp_path / "run.yaml", "run").values
    assert values["rollout.attempts_per_task"] == settings()["rollout.attempts_per_task"].default
    assert values["algorithm.kl.place"] == "none"


def test_a_site_template_changes_nothing(run, tmp_path):
    assert run("init", "site.yaml", "--site").exit_code == 0
    (tmp_path / "run.yaml").write_text("experiment: e\n")
    assert load_run(tmp_path / "run.yaml", site=tmp_path / "site.yaml", environment={}).config.model_fields_set == {
        "experiment"
    }
    assert yaml.safe_load(site_template("toml")) is None


def test_init_leaves_what_exists(run, tmp_path):
    (tmp_path / "run.yaml").write_text("mine")
    result = run("init", "run.yaml")
    assert result.exit_code == 2 and "exists, and is left as it is" in result.output
    assert (tmp_path / "run.yaml").read_text() == "mine"
    assert "there is no such profile" in run("init", "--engine", "tpu").output


def test_show_says_who_set_what(run, tmp_path, monkeypatch):
    monkeypatch.setenv("TESTGRAD_LEARNER__RANKS", "2")
    (tmp_path / "run.yaml").write_text("experiment: e\nprofiles: {mode: smoke}\nlearner: {lr: 1.0e-5}\n")
    shown = json.loads(run("show", "run.yaml", "--set", "project=p", "--json").output)["settings"]
    by_key = {row["key"]: row for row in shown}
    assert by_key["learner.lr"] == {"key": "learner.lr", "value": 1e-5, "layer": "run", "set_by": "run (run.yaml:3)"}
    assert by_key["learner.ranks"]["set_by"] == "environment (TESTGRAD_LEARNER__RANKS)"
    assert by_key["project"]["set_by"] == "command line (--set project)"
    assert by_key["rollout.tasks_per_step"]["set_by"] == "profile mode/smoke:3"
    assert by_key["learner.timeout"]["layer"] == "default"
    unset = ("learner.critic.", "learner.lora.", "serving.admission.")  # sections that are null by default
    assert set(by_key) >= {key for key in settings() if not key.startswith(unset)}
    output = run("show", "run.yaml", "--changed").output
    assert "learner.lr" in output and "learner.timeout" not in output


def test_explain_tells_all_of_a_setting(run, tmp_path):
    (tmp_path / "run.yaml").write_text("experiment: e\nlearner: {lr: 1.0e-5}\n")
    output = run("explain", "learner.lr", "--config", "run.yaml", "--set", "learner.lr=2e-5").output
    for words in (
        "2.0e-05",
        "--set learner.lr",
        "1.0e-05 from run (run.yaml:2)",
        "Learning rate",
        "TESTGRAD_LEARNER__LR",
        "ACTOR_LR",
    ):
        assert words in output, output
    assert "Learning rate of AdamW" in run("explain", "learner").output
    assert "gpu" in run("explain", "profiles.engine").output
    result = run("explain", "learner.lrate")
    assert result.exit_code == 2 and "learner.lr" in result.output


def test_diff_compares_what_holds(run, tmp_path):
    (tmp_path / "a.yaml").write_text("experiment: e\nlearner: {lr: 1.0e-5}\n")
    (tmp_path / "b.toml").write_text('experiment = "e"\n[learner]\nlr = 1e-5\nranks = 2\n')
    same = run("diff", "a.yaml", "a.yaml")
    assert same.exit_code == 0 and "nothing differs" in same.output
    result = run("diff", "a.yaml", "b.toml", "--json")
    assert result.exit_code == 1
    (row,) = json.loads(result.output)
    assert row["key"] == "learner.ranks" and (row["first"]["value"], row["second"]["value"]) == (1, 2)
    assert row["second"]["set_by"] == "run (b.toml)"


def test_nothing_that_is_shown_has_a_secret(run, tmp_path, monkeypatch):
    monkeypatch.setenv("HUB_TOKEN", "topsecret-123")
    (tmp_path / "run.yaml").write_text("experiment: e\nmodel: {path: https://me:pw12345@host/topsecret-123}\n")
    for words in (
        ("show", "run.yaml"),
        ("show", "run.yaml", "--json"),
        ("explain", "model.path", "--config", "run.yaml"),
    ):
        output = run(*words).output
        assert "topsecret-123" not in output and "pw12345" not in output and "https://me:***@host/***" in output
    assert Redactor({}).value({"a": 1}) == {"a": 1}
