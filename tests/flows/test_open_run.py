"""The same name is the same run, or it is refused."""

import pytest

from flows.config import ConfigError, RunConfig
from flows.open_run import open_run, read_run_config
from tasks.journal import read_json, write_json


def config_with(**values):
    return RunConfig.model_validate({"experiment": "e"} | values)


def test_a_new_run_writes_its_config(tmp_path):
    config = config_with(learner={"lr": 2e-5})
    run = open_run(config, tmp_path, "sqlite:///x.db")
    assert run.journal.root == tmp_path / "testgrad" / "e"
    stored = read_json(run.journal.root / "config.json")
    assert stored["nonce"] == run.nonce
    assert stored["versions"]["python"] and stored["versions"]["torch"]
    assert read_run_config(run) == config


def test_the_same_config_opens_the_same_run(tmp_path):
    assert open_run(config_with(), tmp_path, "uri") == open_run(config_with(), tmp_path, "uri")


def test_a_longer_schedule_is_the_same_run_and_is_kept(tmp_path):
    first = open_run(config_with(), tmp_path, "uri")
    longer = config_with(schedule={"total_steps": 500}, evaluation={"max_tasks": 3})
    assert open_run(longer, tmp_path, "uri").nonce == first.nonce
    assert read_run_config(first).schedule.total_steps == 500


def test_other_settings_under_the_same_name_are_refused(tmp_path):
    run = open_run(config_with(), tmp_path, "uri")
    before = (run.journal.root / "config.json").read_bytes()
    with pytest.raises(ConfigError) as error:
        open_run(config_with(learner={"lr": 1e-3}), tmp_path, "uri")
    message = str(error.value)
    assert "testgrad/e exists with other settings: learner.lr 1e-06 -> 0.001" in message
    assert "choose another experiment name, or remove" in message
    assert (run.journal.root / "config.json").read_bytes() == before


def test_a_run_made_anew_has_another_nonce(tmp_path):
    """Results that Prefect has cached for the old journal do not match."""
    first = open_run(config_with(), tmp_path, "uri")
    (first.journal.root / "config.json").unlink()
    assert open_run(config_with(), tmp_path, "uri").nonce != first.nonce


def test_a_folder_that_is_no_run(tmp_path):
    run = open_run(config_with(), tmp_path, "uri")
    (run.journal.root / "config.json").unlink()
    with pytest.raises(ConfigError, match=r"no config\.json; it is not a run"):
        read_run_config(run)


def test_a_stored_config_is_checked(tmp_path):
    run = open_run(config_with(), tmp_path, "uri")
    stored = read_json(run.journal.root / "config.json")
    stored["config"]["rollout"]["tasks_per_step"] = 0
    write_json(run.journal.root / "config.json", stored)
    with pytest.raises(ConfigError, match=r"config\.json: rollout\.tasks_per_step"):
        read_run_config(run)
