"""The command `warm-start`: what is refused before anything is made, and what a person sees."""

import io
from pathlib import Path

import pytest
from rich.console import Console
from typer.testing import CliRunner

from flows.cli import app
from flows.config import ConfigError
from flows.warm_start_config import WarmStartConfig, warm_start_config
from flows.warm_start_view import print_warm_start, warm_start_bars
from tasks.progress import Event, emit

LEARNS = {"experiment": "x", "sources": ["/trials"]}


@pytest.mark.parametrize(
    ("values", "words", "message"),
    [
        ({"experiment": "x"}, [], "nothing to learn from"),
        (LEARNS, ["rollout.temperature=2"], "--set rollout.temperature: a warm start has no such setting"),
        (LEARNS, ["learner.mini_batch_size=4"], "set batch_size and epochs"),
        (LEARNS, ["scaffold.env={MY_API_KEY: x}"], "scaffold.env.MY_API_KEY: secrets are not configured"),
        (LEARNS, ["learner.critic={}"], "learner.critic: nothing is foretold"),
        (LEARNS | {"validation_share": 1.0}, [], "validation_share: Input should be less than 1 .got 1.0"),
        (LEARNS | {"experiment": "a/b"}, [], "experiment: String should match"),
    ],
)
def test_settings_that_cannot_run_are_refused_by_name(values, words, message):
    with pytest.raises(ConfigError, match=message):
        warm_start_config(values, words)


def test_words_go_before_options_and_leave_the_others():
    config = warm_start_config(LEARNS | {"learner": {"lr": 1e-4, "lr_schedule": "cosine"}}, ["learner.lr=0.01"])
    assert (config.learner.lr, config.learner.lr_schedule) == (0.01, "cosine")


def test_the_kata_pool_holds_its_own_tasks_out(tmp_path):
    config = WarmStartConfig(experiment="x", demonstrations={"index": "builtin:kata"}, heldout=["/other.parquet"])
    assert config.needs_kata
    assert config.heldout_indexes(tmp_path) == [
        Path("/other.parquet"), tmp_path / "pools" / "kata" / "heldout.parquet"
    ]  # fmt: skip
    assert not WarmStartConfig(**LEARNS).needs_kata


def test_weights_depend_on_the_order_and_not_on_when_they_are_saved():
    known = WarmStartConfig(**LEARNS).identity()
    assert WarmStartConfig(**LEARNS, save_every=3, keep_checkpoints=1, validate_every=2).identity() == known
    assert WarmStartConfig(**LEARNS, seed=1).identity() != known != WarmStartConfig(**LEARNS, epochs=3).identity()


def test_bad_input_ends_in_one_line_and_leaves_no_run_behind(tmp_path):
    for words, message in (
        ([], "nothing to learn from"),
        (["--from", str(tmp_path / "absent")], "no such collection, run or folder"),
        (["--demonstrations", str(tmp_path / "absent.parquet")], "no such index"),
        (["--demonstrations", "builtin:kata", "--set", "scaffold.name=terminus"], "has no demonstrations"),
    ):
        said = CliRunner().invoke(app, ["warm-start", "--name", "x", "--root", str(tmp_path / "root"), *words])
        assert said.exit_code == 2 and message in said.stderr and "Traceback" not in said.output, said.output
    assert not (tmp_path / "root" / "warm-starts").exists()


def test_a_log_has_a_line_for_each_measure_and_the_end_says_where_the_model_is():
    console = Console(file=io.StringIO(), width=200)
    with warm_start_bars(console):
        emit(Event("supervised_run", "", total=200))
        emit(Event("supervised_step", "step_000000", done=0, data={"val/loss": 2.0}))
        for step in range(1, 12):
            emit(Event("supervised_step", f"step_{step:06}", done=step, data={"train/loss": 1.0}))
        emit(Event("supervised_step", "step_000013", done=13, data={"train/loss": 1.0, "val/loss": 1.5}))
    lines = console.file.getvalue().splitlines()
    assert lines == [
        "step 0: validation loss 2.0000", "step 10: loss 1.0000", "step 13: loss 1.0000, validation loss 1.5000"
    ]  # fmt: skip
    summary = {
        "steps": 13,
        "model": "warm-starts/n/model",
        "train_loss": {"13": 1.0},
        "val_loss": {"0": 2.0, "13": 1.5},
    }
    print_warm_start(console, summary)
    told = console.file.getvalue()
    assert "13      1.0000           1.5000" in told and "--set model.path=warm-starts/n/model" in told
