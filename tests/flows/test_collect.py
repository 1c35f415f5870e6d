"""`collect`: which policy is meant, with whose settings, and which collection goes on."""

import json
from pathlib import Path

import pytest
from support.journals import make_result, write_trial
from typer.testing import CliRunner

from flows.cli import app
from flows.collect import (
    CollectConfig,
    FoundPolicy,
    _open,
    _run,
    _track,
    find_policy,
    run_settings,
    trial_settings,
    what_is_asked,
)
from flows.collect_report import write_collection_report
from flows.config import ConfigError, RunConfig
from harness.pool.index import TaskPointer
from harness.verifier.verdict import Status
from tasks.collection import LABEL
from tasks.journal import write_json
from tasks.progress import watching
from tasks.tracking import Tracker
from trainer.learner.checkpoint import MARKER
from trainer.model import ModelError


@pytest.fixture
def model(tmp_path):
    """What counts as a model's folder."""
    folder = tmp_path / "model"
    folder.mkdir()
    for name in ("config.json", "model.safetensors", "tokenizer.json", "chat_template.jinja"):
        (folder / name).write_text("{}")
    return folder


@pytest.fixture
def trained(tmp_path):
    """A run with checkpoints after steps 2 and 10, at a temperature of its own."""
    config = RunConfig(project="p", experiment="e", rollout={"temperature": 0.6, "max_tokens_per_turn": 99})
    folder = tmp_path / "p" / "e"
    write_json(folder / "config.json", {"nonce": "n", "identity": "i", "config": config.model_dump(mode="json")})
    for step in (2, 10):
        (folder / f"checkpoints/global_step_{step}").mkdir(parents=True)
        (folder / f"checkpoints/global_step_{step}" / MARKER).write_text("{}")
    (folder / "checkpoints/global_step_12").mkdir()
    return folder


def found(policy, root, **config):
    return find_policy(CollectConfig(policy=str(policy), **config), root)


def test_a_policy_is_a_folder_a_run_or_an_endpoint(model, trained, tmp_path):
    assert found(model, tmp_path) == FoundPolicy("model", model)
    newest = found("p/e", tmp_path)
    assert newest.folder == trained / "checkpoints/global_step_10" and newest.name == "p/e@10"
    assert found("p/e@2", tmp_path).folder == trained / "checkpoints/global_step_2"
    checkpoint = trained / "checkpoints/global_step_2"
    assert found(checkpoint, tmp_path) == FoundPolicy("global_step_2", checkpoint, trained / "config.json")
    exported = trained / "exports/global_step_12"
    exported.mkdir(parents=True)
    (exported / "config.json").write_text("{}")
    assert found("p/e", tmp_path).folder == exported
    endpoint = {"url": "http://localhost:1/v1", "model": "m"}
    served = found("unused", tmp_path, endpoint=endpoint)
    assert served.folder is None and served.name == "m at http://localhost:1/v1"
    with pytest.raises(ConfigError, match="p/e has no weights after step 3; there are some after 2, 10"):
        found("p/e@3", tmp_path)
    with pytest.raises(ConfigError, match="there is no run p/other in"):
        found("p/other@3", tmp_path)
    with pytest.raises(ModelError, match=r"no folder './none'"):
        found("./none", tmp_path)


def test_a_run_measures_its_own_checkpoints_as_it_trains(trained, tmp_path):
    settings = run_settings(CollectConfig(policy="p/e"), found("p/e", tmp_path))
    assert (settings.project, settings.rollout.temperature) == ("collections", 0.6)
    elsewhere = run_settings(CollectConfig(policy="p/e", index="pool/x.parquet"), found("p/e", tmp_path))
    assert elsewhere.data.train == elsewhere.data.heldout == str(Path("pool/x.parquet").resolve())
    trial = trial_settings(settings)
    assert (trial.sampling.temperature, trial.sampling.max_tokens) == (0.6, 99)
    other = CollectConfig(policy="p/e", temperature=0.9, overrides=["rollout.concurrency=3", "scaffold.max_turns=2"])
    trial = trial_settings(run_settings(other, found("p/e", tmp_path)))
    assert (trial.sampling.temperature, trial.concurrency, trial.scaffold.max_turns) == (0.9, 3, 2)
    with pytest.raises(ConfigError, match=r"rollout\.speed: unknown key"):
        run_settings(CollectConfig(policy="p/e", overrides=["rollout.speed=3"]), found("p/e", tmp_path))


def asked(model, **config):
    config = CollectConfig(policy=str(model), **config)
    policy = find_policy(config, model.parent)
    settings = run_settings(config, policy)
    return config, policy, settings, json.loads(json.dumps(what_is_asked(config, policy, settings)))


def test_the_same_question_is_the_same_collection_however_much_of_it(model, tmp_path):
    def name(**config):
        config, policy, _, question = asked(model, **config)
        return _run(config, policy, tmp_path, question).experiment

    assert name().startswith("model-")
    assert name() == name(attempts=9, max_tasks=3, overrides=["rollout.concurrency=1", "serving.threads=1"])
    others = [name(temperature=0.5), name(index="x.parquet"), name(overrides=["scaffold.max_turns=2"])]
    assert len({name(), *others}) == 4
    before = name()
    (model / "config.json").write_text((model / "config.json").read_text() + "\n")
    assert name() != before, "the weights are others"
    assert name(name="mine") == "mine"


def test_a_name_is_kept_for_one_question(model, tmp_path):
    config, policy, settings, question = asked(model, name="mine")
    run = _run(config, policy, tmp_path, question)
    _open(run, settings, question)
    assert _run(config, policy, tmp_path, question).nonce == run.nonce, "it goes on"
    _open(run, settings, question)
    _, _, settings, other = asked(model, name="mine", temperature=0.3)
    with pytest.raises(ConfigError, match=r"collection mine is of something else \(sampling differ\); choose another"):
        _open(run, settings, other)


def test_the_report_tells_the_policy_and_the_tasks(model, tmp_path):
    config, policy, settings, question = asked(model, name="mine")
    run = _run(config, policy, tmp_path, question)
    _open(run, settings, question)
    for number, status in enumerate([Status.PASSED, Status.FAILED, Status.FAILED]):
        write_trial(run, LABEL, make_result(f"s{number}", f"{LABEL}/fix-add"), status)
    tasks = [TaskPointer("fix-add", tmp_path / "fix-add"), TaskPointer("other", tmp_path / "other")]
    report = write_collection_report(run.journal.root, tasks, {"counted": 3, "wanted": 6})
    text = report.read_text()
    assert "* policy: model" in text and "3 of the 6 trials" in text
    assert "| fix-add | 1 of 3 | 0.33 |" in text and "| unmeasured | 1 | 0 |" in text
    assert report.with_suffix(".png").is_file()


def test_a_collection_is_not_lost_with_a_server_that_takes_nothing(model, tmp_path, monkeypatch):
    config, policy, settings, question = asked(model, name="mine")
    monkeypatch.setattr(Tracker, "open", _refuse)
    notes = []
    with watching(lambda event: notes.append(event.text)):
        _track(_run(config, policy, tmp_path, question), settings, {}, tmp_path / "report.md")
    assert notes == ["the collection is not in MLflow as a whole (OSError: away)"]


def _refuse(run):
    raise OSError("away")


@pytest.fixture
def invoke(tmp_path, monkeypatch):
    monkeypatch.delenv("TESTGRAD_DEBUG", raising=False)
    monkeypatch.setattr("flows.commands.collect.prepare", lambda root: None)

    def run(*arguments):
        words = ["collect", *map(str, arguments), "--root", str(tmp_path)]
        return CliRunner().invoke(app, words, env={"COLUMNS": "300", "TERM": "dumb"})

    return run


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--endpoint", "http://localhost:1/v1"], "--endpoint and --model belong together"),
        (["--endpoint", "nowhere", "--model", "m"], "endpoint.url: 'nowhere' is no address"),
        (["x", "--endpoint", "http://localhost:1/v1", "--model", "m"], "name one policy"),
        (["--temperature", "0"], "temperature: Input should be greater than 0 (got 0.0)"),
        (["--name", "a b"], "name: String should match pattern"),
    ],
)
def test_what_cannot_be_asked_is_refused_in_a_line(invoke, words, told):
    result = invoke(*words)
    assert result.exit_code == 2, result.output
    assert told in result.output and len(result.output.strip().splitlines()) == 1


def test_a_password_in_an_address_is_refused_and_not_told(invoke):
    result = invoke("--endpoint", "http://me:hunter22@localhost:1/v1", "--model", "m")
    assert result.exit_code == 2 and "the address holds a password" in result.output
    assert "hunter22" not in result.output
