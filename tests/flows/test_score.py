"""The config of an evaluation that is asked for by itself."""

from pathlib import Path

import pytest

from flows.config import ConfigError
from flows.score import _config


def make(model="my-model", index="builtin:kata", overrides=(), **evaluation):
    return _config(Path("/models") / model, index, {"attempts_per_task": 4} | evaluation, overrides)


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
    with pytest.raises(ConfigError, match=r"eval: serving\.size: unknown key"):
        make(overrides=["serving.size=1"])
