"""The forms of the Prefect UI: they say what they mean, and make the run that they show."""

import ast
import os
from pathlib import Path

import pytest
import yaml
from prefect.utilities.callables import parameter_schema

from flows.config import ConfigError, RunConfig, load_config
from flows.deployed.build_pool import BuildForm, build_pool, plan
from flows.deployed.clean import clean
from flows.deployed.collect import collect
from flows.deployed.evaluate import EvaluateForm, choose, evaluate_checkpoint, who_trains
from flows.deployed.export import export
from flows.deployed.train import train
from flows.deployed.train_form import ON_TOP, QUICKSTART, RUN_CONFIGS, Advanced, TrainForm
from flows.deployed.warm_start import warm_start
from tasks.journal import write_json
from tasks.lease import lease

PROJECT = Path(__file__).parent.parent.parent
QUICK = RUN_CONFIGS / f"{QUICKSTART}.yaml"


def test_a_form_that_is_left_as_it_is_makes_the_quickstart():
    config = TrainForm(experiment="mine").to_config()
    assert config == load_config(QUICK, ["experiment=mine"])
    shown = TrainForm(experiment="mine").model_dump()
    sent = TrainForm.model_validate({k: v for k, v in shown.items() if k != "advanced"})
    assert sent.to_config() == config, "what the page shows and what holds are the same"


def test_two_fields_changed_are_two_settings_changed():
    config = TrainForm.model_validate({"experiment": "mine", "total_steps": 3, "estimator": "rloo"}).to_config()
    plain = load_config(QUICK, ["experiment=mine"])
    assert (config.schedule.total_steps, config.algorithm.adv_estimator) == (3, "rloo")
    assert config.rollout == plain.rollout and config.learner == plain.learner


def test_what_lies_under_advanced_counts():
    form = {"experiment": "mine", "learning_rate": 1e-5}
    form["advanced"] = {
        "learner": {"ppo_epochs": 2},
        "algorithm": {"kl": {"place": "loss", "coef": 0.01}},
        "settings": ["learner.lr=2e-5"],
    }
    config = TrainForm.model_validate(form).to_config()
    assert config.learner.ppo_epochs == 2 and config.algorithm.kl.coef == 0.01
    assert config.learner.lr == 2e-5, "written out, a setting wins over the field"


def test_the_config_file_gives_what_the_form_does_not(tmp_path):
    file = tmp_path / "run.yaml"
    file.write_text(yaml.safe_dump({"experiment": "x", "rollout": {"max_tokens_per_turn": 33}}))
    form = TrainForm.model_validate({"experiment": "mine", "advanced": {"config_file": str(file)}})
    config = form.to_config()
    assert (config.experiment, config.rollout.max_tokens_per_turn) == ("mine", 33)
    with pytest.raises(ConfigError, match=r"no file 'nowhere'.*quickstart"):
        TrainForm.model_validate({"experiment": "m", "advanced": {"config_file": "nowhere"}}).to_config()


def test_every_setting_is_in_one_place_of_the_form():
    on_top = set(ON_TOP.values()) | {"project", "experiment", "plugins"}
    below = {
        f"{name}.{field}"
        for name, info in Advanced.model_fields.items()
        if name in RunConfig.model_fields
        for field in info.annotation.__args__[0].model_fields
    }
    settings = set()
    for name, info in RunConfig.model_fields.items():
        fields = getattr(info.annotation, "model_fields", None)
        settings |= {f"{name}.{field}" for field in fields} if fields else {name}
    assert on_top | below == settings and not on_top & below


def test_the_page_gets_drop_downs_and_help():
    schema = parameter_schema(train.fn).model_dump()["definitions"]
    fields = schema["TrainForm"]["properties"]
    assert list(fields)[:4] == ["experiment", "project", "policy", "train_index"] and list(fields)[-1] == "advanced"
    assert all(field["description"] and (field.get("title") or "$ref" in field) for field in fields.values())
    for name, kind, some in (("estimator", "Estimator", "grpo"), ("policy_loss", "PolicyLoss", "gspo"),
                             ("agent", "Agent", "edit"), ("sandbox", "Backend", "bubblewrap")):  # fmt: skip
        assert some in schema[kind]["enum"] and fields[name]["$ref"].endswith(kind)
    assert fields["total_steps"]["minimum"] == 1 and fields["learning_rate"]["exclusiveMinimum"] == 0
    assert schema["TrainForm"]["required"] == ["experiment"]
    assert parameter_schema(evaluate_checkpoint.fn).model_dump()["definitions"]["EvaluateForm"]["properties"]["what"][
        "enum"
    ]


@pytest.mark.parametrize("deployed", [train, evaluate_checkpoint, collect, warm_start, build_pool, export, clean])
def test_the_page_keeps_the_order_of_the_fields(deployed):
    """Whatever the database makes of it: PostgreSQL sorts the keys of an object by their length, then by name."""
    schema = parameter_schema(deployed.fn).model_dump()
    (form,) = schema["properties"].values()
    name = (form.get("$ref") or form["allOf"][0]["$ref"]).rpartition("/")[2]
    declared = list(schema["definitions"][name]["properties"].items())
    stored = sorted(declared, key=lambda field: (len(field[0]), field[0]))
    assert sorted(stored, key=lambda field: field[1]["position"]) == declared


def test_wrong_words_are_refused_with_the_mend():
    form = {"experiment": "mine", "advanced": {"settings": ["learner.rate=1"]}}
    with pytest.raises(ConfigError, match="learner"):
        TrainForm.model_validate(form).to_config()
    for wrong in ({"experiment": "../x"}, {"experiment": "m", "steps": 3}, {"experiment": "m", "total_steps": 0}):
        with pytest.raises(ValueError):
            TrainForm.model_validate(wrong)


def checkpoint(root, run, step, written):
    folder = root / run / "checkpoints" / f"global_step_{step}"
    folder.mkdir(parents=True)
    write_json(root / run / "config.json", {"nonce": "1"})
    write_json(folder / "complete.json", {"step": step})
    os.utime(folder, (written, written))
    return folder


def test_the_newest_checkpoint_is_chosen(tmp_path):
    assert choose(EvaluateForm(), tmp_path) is None
    old = checkpoint(tmp_path, "p/a", 9, 1000)
    new = checkpoint(tmp_path, "p/b", 2, 2000)
    (tmp_path / "p" / "b" / "checkpoints" / "global_step_3").mkdir()
    assert choose(EvaluateForm(), tmp_path) == new, "an unfinished one is none"
    assert choose(EvaluateForm(what="run", name="p/a"), tmp_path) == old
    assert choose(EvaluateForm(what="run", name="p/a@9"), tmp_path) == old
    assert choose(EvaluateForm(what="path", name=str(old)), tmp_path) == old
    refused = {
        "no run": {"what": "run", "name": "p/c"},
        "name is empty": {"what": "run"},
        "set `what`": {"name": "p/a"},
        "no folder": {"what": "path", "name": "/nowhere"},
    }
    for told, form in refused.items():
        with pytest.raises(ConfigError, match=told):
            choose(EvaluateForm(**form), tmp_path)


def test_training_is_not_disturbed(tmp_path):
    assert who_trains(tmp_path) is None
    with lease(tmp_path / "p" / "a", "evaluate"):
        assert who_trains(tmp_path) is None
    with lease(tmp_path / "p" / "a", "train"):
        assert "p/a is held by process" in who_trains(tmp_path)


def test_a_build_form():
    sources, config = plan(BuildForm(names=["six==1.16.0"], advanced={"suite_runs": 4}))
    assert [source.spec for source in sources] == ["six==1.16.0"] and config.suite_runs == 4
    with pytest.raises(ConfigError, match="seed"):
        plan(BuildForm(names=["six==1.16.0"], advanced={"seed": 4}))


def test_all_deployments_lead_to_flows():
    deployments = {
        entry["name"]: entry for entry in yaml.safe_load((PROJECT / "prefect.yaml").read_text())["deployments"]
    }
    training = {"train", "restart", "warm-start", "export"}
    assert set(deployments) == training | {"evaluate", "collect", "build-pool", "clean"}
    for entry in deployments.values():
        file, _, name = entry["entrypoint"].partition(":")
        functions = [n for n in ast.parse((PROJECT / file).read_text()).body if isinstance(n, ast.AsyncFunctionDef)]
        (found,) = [function for function in functions if function.name == name]
        prepares = [n for n in ast.walk(found) if isinstance(n, ast.Name) and n.id == "on_worker"]
        assert prepares, f"{entry['name']}: what it leaves running when it is killed would stay"
        assert any(getattr(getattr(d, "func", d), "id", "") == "flow" for d in found.decorator_list), entry["name"]
        assert ast.get_docstring(found) and entry["tags"] and entry["work_pool"] == {"name": "testgrad"}
    assert {name for name, entry in deployments.items() if entry.get("schedules")} == {"evaluate", "clean"}
    assert deployments["train"]["concurrency_limit"]["limit"] == 1
