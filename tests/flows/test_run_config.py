"""Bad configuration ends in a message that names the field, the value and what is allowed."""

from pathlib import Path

import pytest
import yaml

import deployments
from flows.config import ConfigError, RunConfig, load_config, parse_config

QUICKSTART = Path(deployments.__file__).parent / "runs" / "quickstart.yaml"


def write(tmp_path, text):
    path = tmp_path / "run.yaml"
    path.write_text(text)
    return path


def problem(values):
    with pytest.raises(ConfigError) as error:
        parse_config({"experiment": "e"} | values, "run.yaml")
    return str(error.value)


def test_shipped_configs_load():
    for path in QUICKSTART.parent.glob("*.yaml"):
        assert load_config(path).experiment == path.stem


def test_defaults_need_only_a_name():
    assert parse_config({"experiment": "e"}, "x").project == "testgrad"


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"rolout": {}}, ["rolout: unknown key", "rollout", "serving"]),
        ({"rollout": {"tasks": 4}}, ["rollout.tasks: unknown key", "tasks_per_step", "attempts_per_task"]),
        ({"sandbox": {"limits": {"bogus": 1}}}, ["sandbox.limits.bogus"]),
        ({"rollout": {"tasks_per_step": "many"}}, ["rollout.tasks_per_step", "integer", "'many'"]),
        ({"rollout": {"tasks_per_step": 0}}, ["rollout.tasks_per_step", "greater than or equal to 1", "0"]),
        ({"rollout": {"attempts_per_task": 1}}, ["rollout.attempts_per_task", "greater than or equal to 2", "1"]),
        ({"rollout": None}, ["rollout", "None"]),
        ({"mode": "offline"}, ["mode", "'sync', 'one_step_off' or 'async'", "'offline'"]),
        (
            {"mode": "async", "serving": {"colocated": True}, "learner": {"gpus_per_rank": 1}},
            ["mode is async", "serving.colocated: false"],
        ),
        (
            {"mode": "async", "filter": {"refill_rounds": 1, "drop_uniform_groups": True}},
            ["filter.refill_rounds is 1", "set it to 0"],
        ),
        (
            {"mode": "one_step_off", "algorithm": {"rollout_correction": {"mode": "off"}}},
            ["nothing corrects for them", "mode: off", "set mode: decoupled"],
        ),
        (
            {"mode": "async", "algorithm": {"rollout_correction": {"weights": "none"}}},
            ["nothing corrects for them", "weights: none", "or mode: bypass"],
        ),
        (
            {"mode": "async", "staleness": {"too_old": "down_weight"}},
            ["policy_loss gspo takes the mean of a rollout's advantages", "set policy_loss: gspo_token"],
        ),
        ({"mode": "one_step_off", "staleness": {"max_staleness": 0}}, ["max_staleness is 0", "set it to 1"]),
        ({"staleness": {"too_old_weight": 0.5}}, ["too_old_weight is 0.5", "set too_old: down_weight"]),
        ({"experiment": "../escape"}, ["experiment", "../escape"]),
        ({"experiment": None}, ["experiment", "None"]),
        ({"learner": {"dtype": "float16"}}, ["learner.dtype", "'bfloat16' or 'float32'", "'float16'"]),
        ({"rollout": {"top_p": 0.9}}, ["rollout: top_p is 0.9", "set top_p: 1.0"]),
        ({"algorithm": {"policy_loss": "dpo"}}, ["algorithm: policy_loss is 'dpo'", "gspo, ", "ppo, "]),
        ({"algorithm": {"loss_agg": "token-mean"}}, ["loss_agg is 'token-mean'", "policy_loss: ppo"]),
        ({"scaffold": {"name": "claude"}}, ["scaffold.name is 'claude'", "edit"]),
        ({"scaffold": {"name": "cc"}}, ["scaffold.name is 'cc'", "serving.tool_call_parser is unset", "hermes"]),
        ({"scaffold": {"name": "mixed"}}, ["scaffold.mixed.weights is empty"]),
        (
            {"scaffold": {"name": "mixed", "mixed": {"weights": {"edit": 1, "qwen": 1}}}},
            ["scaffold.name is 'mixed'", "serving.tool_call_parser is unset"],
        ),
        ({"scaffold": {"name": "command"}}, ["scaffold.command is empty"]),
        ({"scaffold": {"run_visible_tests": True}}, ["scaffold: run_visible_tests is on", "max_turns to 2"]),
        ({"sandbox": {"backend": "chroot"}}, ["sandbox.backend is 'chroot'", "bubblewrap"]),
        (
            {"serving": {"window": 512}, "rollout": {"max_tokens_per_turn": 512}},
            ["rollout.max_tokens_per_turn is 512", "serving.window of 512", "raise the window"],
        ),
        (
            {"rollout": {"tasks_per_step": 2, "attempts_per_task": 4}, "learner": {"mini_batch_size": 9}},
            ["learner.mini_batch_size is 9", "8 trials", "leave it unset"],
        ),
        (
            {"serving": {"tensor_parallel": 4}, "learner": {"ranks": 2, "gpus_per_rank": 1}},
            ["serving.tensor_parallel is 4", "2 devices"],
        ),
        (
            {"learner": {"moe": {"replay": True}}},
            ["learner.moe.replay is on, but serving.capture_routing is off", "set serving.capture_routing: true"],
        ),
        (
            {"learner": {"lora": {"rank": 32, "sync": "adapters"}}, "serving": {"lora_rank": 16}},
            ["of rank 32, but serving.lora_rank is 16", "set serving.lora_rank: 32"],
        ),
        ({"serving": {"lora_rank": 16}}, ["synced with whole weights", "set learner.lora.sync: adapters"]),
        ({"filter": {"drop_outcomes": ["infra_error"]}}, ["filter: drop_outcomes names infra_error", "take it off"]),
        ({"filter": {"drop_outcomes": ["late"]}}, ["filter.drop_outcomes.0", "'completed'", "'late'"]),
        ({"filter": {"refill_rounds": 2}}, ["filter: refill_rounds is 2", "set drop_uniform_groups: true"]),
        ({"reward": {"function": "no_such_module:f"}}, ["reward: function is 'no_such_module:f'", "PYTHONPATH"]),
        ({"reward": {"function": "json"}}, ["reward: function is 'json'", "write it as my_module:my_function"]),
        ({"reward": {"overlong_buffer": 64}}, ["reward: overlong_buffer is 64", "overlong_length is unset"]),
        (
            {"reward": {"overlong_buffer": 64, "overlong_length": 4096}, "serving": {"window": 2048}},
            ["reward.overlong_length is 4096", "serving.window of 2048", "lower it"],
        ),
        ({"plugins": ["no_such_module"]}, ["plugins", "'no_such_module'", "install it, or correct the name"]),
        ({"plugins": "no_such_module"}, ["plugins", "list", "'no_such_module'"]),
        ({"plugins": None}, ["plugins", "list", "None"]),
        ({"plugins": [3]}, ["plugins.0", "string", "3"]),
        ({"plugins": [".relative"]}, ["plugins.0", "'.relative'"]),
    ],
)
def test_refused(values, words):
    message = problem(values)
    assert message.startswith("run.yaml: ")
    for word in words:
        assert word in message
    assert "\n" not in message and "pydantic" not in message


def test_every_mistake_gets_its_line():
    lines = problem({"rolout": {}, "learner": {"lr": -1}}).splitlines()
    assert len(lines) == 2
    assert any("learner.lr" in line for line in lines) and any("rolout" in line for line in lines)


def test_a_missing_name():
    with pytest.raises(ConfigError, match=r"run\.yaml: experiment: required, and missing"):
        parse_config({}, "run.yaml")


def test_files_that_are_no_config(tmp_path):
    with pytest.raises(ConfigError, match=r"none\.yaml: no such file"):
        load_config(tmp_path / "none.yaml")
    with pytest.raises(ConfigError, match="not YAML"):
        load_config(write(tmp_path, "a: [1"))
    with pytest.raises(ConfigError, match="expected `key: value` lines, found str"):
        load_config(write(tmp_path, "just text"))
    with pytest.raises(ConfigError, match="found NoneType"):
        load_config(write(tmp_path, ""))
    with pytest.raises(ConfigError, match="cannot be read: Is a directory"):
        load_config(tmp_path)
    (tmp_path / "bytes.yaml").write_bytes(b"experiment: \xff")
    with pytest.raises(ConfigError, match=r"bytes\.yaml: not YAML"):
        load_config(tmp_path / "bytes.yaml")


def test_overrides(tmp_path):
    path = write(tmp_path, "experiment: e\nrollout:\n  tasks_per_step: 4\n")
    config = load_config(
        path,
        [
            "rollout.tasks_per_step=2", "learner.lr=2.5e-5", "serving.threads=null", "scaffold.name=edit",
            "learner.betas=[0.8, 0.9]", "model.path=./a=b", "experiment=f",
        ],
    )  # fmt: skip
    assert config.rollout.tasks_per_step == 2
    assert config.learner.lr == 2.5e-5
    assert config.learner.betas == (0.8, 0.9)
    assert config.serving.threads is None
    assert config.model.path == "./a=b"
    assert config.experiment == "f"


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("rollout.tasks_per_step", "override 'rollout.tasks_per_step': expected section.key=value"),
        ("experiment.name=x", "experiment is a value, not a section"),
        ("learner.betas=[0.9", r"override 'learner.betas=\[0.9': the value is not YAML"),
        ("rollout.tasks=3", r"rollout\.tasks: unknown key"),
        ("rollout.tasks_per_step=many", r"rollout\.tasks_per_step.*'many'"),
    ],
)
def test_overrides_that_are_refused(tmp_path, override, message):
    with pytest.raises(ConfigError, match=message):
        load_config(write(tmp_path, "experiment: e\n"), [override])


def test_an_override_fills_an_empty_section(tmp_path):
    assert load_config(write(tmp_path, "experiment: e\nlearner:\n"), ["learner.ranks=2"]).learner.ranks == 2


def test_a_plugin_adds_a_scaffold(tmp_path, monkeypatch):
    from harness.scaffolds.base import SCAFFOLDS

    (tmp_path / "my_scaffold_plugin.py").write_text(
        "from harness.scaffolds.base import SCAFFOLDS, Scaffold\nSCAFFOLDS['mine'] = Scaffold\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    try:
        config = parse_config(
            {"experiment": "e", "plugins": ["my_scaffold_plugin"], "scaffold": {"name": "mine"}}, "run.yaml"
        )
    finally:
        SCAFFOLDS.pop("mine", None)
    assert config.scaffold.name == "mine"


def config_with(**values):
    return RunConfig.model_validate({"experiment": "e"} | values)


def test_identity_is_what_results_depend_on():
    base = config_with().identity()
    assert config_with(schedule={"total_steps": 7, "save_freq": 1}).identity() == base
    assert config_with(evaluation={"attempts_per_task": 9}).identity() == base
    assert config_with(fidelity={"threshold": 0.999}).identity() == base
    assert config_with(learner={"ranks": 2}).identity() == base
    assert config_with(learner={"lr": 1e-3}).identity() != base
    assert config_with(rollout={"temperature": 0.5}).identity() != base
    assert config_with(data={"seed": 1}).identity() != base
    assert config_with(filter={"drop_uniform_groups": True}).identity() != base
    assert config_with(reward={"overlong_length": 64}).identity() != base


def test_a_config_survives_its_own_json():
    config = load_config(QUICKSTART)
    assert parse_config(config.model_dump(mode="json"), "x") == config


def test_every_setting_says_what_it_is():
    def undescribed(model, prefix):
        for name, field in model.model_fields.items():
            yield from [] if field.description else [f"{prefix}{name}"]
            if isinstance(field.annotation, type) and hasattr(field.annotation, "model_fields"):
                yield from undescribed(field.annotation, f"{prefix}{name}.")

    assert list(undescribed(RunConfig, "")) == []


def test_quickstart_yaml_names_only_known_keys():
    assert set(yaml.safe_load(QUICKSTART.read_text())) <= set(RunConfig.model_fields)


def test_a_parser_that_does_not_exist_is_refused_before_anything_starts():
    with pytest.raises(ValueError, match=r"serving\.tool_call_parser.*there is no tool parser 'hermse'"):
        config_with(serving={"tool_call_parser": "hermse"})
    assert config_with(serving={"tool_call_parser": "hermes"}).serving.tool_call_parser == "hermes"
