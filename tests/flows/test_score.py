"""The config of an evaluation that is asked for by itself."""

import json
from pathlib import Path

import pytest

from flows.config import ConfigError
from flows.score import ASKED, _empty, _goes_on, evaluation_config, is_scored, weights_state
from tasks.journal import Journal, write_json
from tasks.lease import lease, living_holder


def make(model="my-model", index="builtin:kata", overrides=(), **evaluation):
    return evaluation_config(model, f"/models/{model}", index, {"attempts_per_task": 4} | evaluation, overrides)


def test_model_and_index_name_the_evaluation():
    names = {make().experiment, make(model="other").experiment, make(index="/pool/x.parquet").experiment}
    assert len(names) == 3
    assert make().experiment == make(attempts_per_task=8).experiment
    assert make().project == "scores"


def test_what_was_asked_for_is_what_is_scored():
    config = make(index="/pool/x.parquet", attempts_per_task=8, temperature=0.0, max_tasks=3)
    assert config.data.heldout_index(Path("/data")) == Path("/pool/x.parquet")
    assert (config.evaluation.attempts_per_task, config.evaluation.temperature, config.evaluation.max_tasks) == (
        8,
        0,
        3,
    )


def test_the_kata_pool_is_the_default():
    assert make().data.heldout_index(Path("/data")) == Path("/data/pools/kata/heldout.parquet")


def test_overrides_apply():
    assert make(overrides=["serving.window=4096"]).serving.window == 4096
    with pytest.raises(ConfigError, match=r"serving\.size: unknown key"):
        make(overrides=["serving.size=1"])
    with pytest.raises(ConfigError, match=r"scaffold\.env\.MY_API_KEY: secrets are not configured") as refused:
        make(overrides=["scaffold.env={MY_API_KEY: hunter22}"])
    assert "hunter22" not in str(refused.value)


def test_only_the_same_question_of_the_same_weights_goes_on(tmp_path):
    model = tmp_path / "model"
    model.mkdir()
    (model / "model.safetensors").write_bytes(b"1234")
    journal = Journal(tmp_path / "scores" / "model")

    def asked(**evaluation):
        config = make(attempts_per_task=2, **evaluation).model_dump(mode="json")
        return json.loads(json.dumps({"config": config, "weights": weights_state(model)}))

    assert not _goes_on(journal, asked()), "nothing is there"
    write_json(journal.root / ASKED, asked())
    assert _goes_on(journal, asked())
    assert not _goes_on(journal, asked(temperature=0.1))
    (model / "model.safetensors").write_bytes(b"12345")
    assert not _goes_on(journal, asked()), "the weights are others"
    write_json(journal.root / ASKED, asked())
    write_json(journal.root / "evals" / "step_000000" / "record.json", {})
    assert not _goes_on(journal, asked()), "it is finished, and made again"


def test_what_is_scored_is_known(tmp_path):
    model = tmp_path / "model"
    model.mkdir()
    (model / "model.safetensors").write_bytes(b"1234")
    options = {"attempts_per_task": 2}
    asked = (tmp_path, model, "builtin:kata", options, ())
    assert not is_scored(*asked)
    config = evaluation_config(model.name, str(model), "builtin:kata", options, ())
    journal = Journal(tmp_path / "scores" / config.experiment)
    write_json(journal.root / ASKED, {"config": config.model_dump(mode="json"), "weights": weights_state(model)})
    assert not is_scored(*asked), "it was begun, and is not finished"
    write_json(journal.root / "evals" / "step_000000" / "record.json", {})
    assert is_scored(*asked)
    assert not is_scored(tmp_path, model, "builtin:kata", {"attempts_per_task": 3}, ())
    (model / "model.safetensors").write_bytes(b"12345")
    assert not is_scored(*asked), "the weights are others"


def test_an_earlier_evaluation_is_cleared_away_but_not_its_lease(tmp_path):
    folder = tmp_path / "run"
    write_json(folder / "evals" / "record.json", {})
    write_json(folder / "config.json", {})
    with lease(folder, "evaluate") as me:
        _empty(folder)
        assert living_holder(folder) == me
        assert not (folder / "evals").exists() and not (folder / "config.json").exists()
