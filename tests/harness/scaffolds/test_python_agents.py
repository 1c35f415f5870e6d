"""How the agents in Python are launched; that they work is for the integration tests to show."""

import json

import pytest
from support.tasks import INSTRUCTION, write_task

from harness.pool.task import Task
from harness.scaffolds.base import ScaffoldConfig, ScaffoldError, create_scaffold
from harness.scaffolds.runtimes import MOUNT, find_runtime

URL = "http://127.0.0.1:8377/s/the-secret/v1"


class Session:
    base_url = URL


def launch(tmp_path, name, **config):
    task = Task.load(write_task(tmp_path / "t"))
    return create_scaffold(ScaffoldConfig(name=name, **config)).launch(task, None, Session())


@pytest.mark.parametrize("name", ["mini", "mini_text", "ohsdk"])
def test_the_session_and_the_task_are_given_as_input_only(tmp_path, name):
    launched = launch(tmp_path, name)
    assert launched.argv[0] == f"{MOUNT}/bin/python3"
    assert "the-secret" not in " ".join([*launched.argv, *launched.env.values()])
    assert URL in launched.stdin and INSTRUCTION in launched.stdin
    # not PYTHONPATH: programs that the agent starts would inherit it
    assert "PYTHONPATH" not in launched.env and launched.env["LD_LIBRARY_PATH"] == f"{MOUNT}/native"


@pytest.mark.parametrize(
    ("name", "base", "model"),
    [("mini", "mini.yaml", "litellm"), ("mini_text", "mini_textbased.yaml", "litellm_textbased")],
)
def test_mini_has_its_own_prompts_and_no_limits_of_its_own(tmp_path, name, base, model):
    given_base, config, *arguments = json.loads(launch(tmp_path, name, args=("-c", "agent.step_limit=3")).stdin)
    assert (given_base, arguments) == (base, ["-c", "agent.step_limit=3"])
    assert config["model"]["model_class"] == model and config["agent"]["mode"] == "yolo"
    assert config["agent"]["cost_limit"] == 0 == config["agent"]["step_limit"]
    assert "system_template" not in config["agent"] and "max_tokens" not in config["model"]["model_kwargs"]


def test_the_limit_of_a_turn_is_passed_on(tmp_path):
    mini = json.loads(launch(tmp_path / "a", "mini", max_tokens_per_turn=77).stdin)[1]
    assert mini["model"]["model_kwargs"]["max_tokens"] == 77
    assert json.loads(launch(tmp_path / "b", "ohsdk", max_tokens_per_turn=77).stdin)["llm"]["max_output_tokens"] == 77


def test_words_for_a_command_line_that_is_not_there_are_refused():
    with pytest.raises(ScaffoldError, match=r"--verbose.*leave scaffold\.args out"):
        create_scaffold(ScaffoldConfig(name="ohsdk", args=("--verbose",)))


def test_both_ways_of_mini_share_a_runtime():
    assert create_scaffold(ScaffoldConfig(name="mini_text")).runtime == "mini" == find_runtime("mini").name


def test_how_openhands_ended_is_read_off_its_last_line(tmp_path):
    scaffold = create_scaffold(ScaffoldConfig(name="ohsdk"))
    told = 'noise\n{"type": "result", "status": "stuck", "error": null, "more": 1}\n'
    assert scaffold.read_end(told) == {"status": "stuck", "error": None}
    assert scaffold.read_end("it said nothing") == {}
