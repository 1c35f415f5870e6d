"""Which checkpoint a command means, which runs may be pruned, and what is kept by which settings."""

import json
import os

import pytest
from support.checkpoints import write_checkpoint
from support.journals import make_run
from typer.testing import CliRunner

from flows.checkpoints import find_checkpoint, prune_run
from flows.cli import app
from flows.config import ConfigError, ScheduleConfig, parse_config
from tasks.journal import step_label, write_json
from tasks.lease import lease
from trainer.learner.checkpoint import CheckpointError, list_checkpoints
from trainer.learner.export import REPORT
from trainer.learner.retention import Retention

RUN = "project/experiment"


@pytest.fixture
def invoke(monkeypatch):
    saved = dict(os.environ)
    monkeypatch.delenv("TESTGRAD_DEBUG", raising=False)

    def run(root, *arguments):
        return CliRunner().invoke(app, [*map(str, arguments), "--root", str(root)], env={"COLUMNS": "300"})

    yield run
    os.environ.clear()
    os.environ.update(saved)


def a_run(root, total=2, done=2, saved=(1, 2)):
    """A journal with these steps and checkpoints."""
    journal = make_run(root).journal
    write_json(journal.root / "config.json", {"config": {"schedule": {"total_steps": total}}})
    for step in range(1, done + 1):
        write_json(journal.stage_dir(step_label(step)) / "record.json", {"step": step, "metrics": {}})
    base = root / "models" / "tiny"
    base.mkdir(parents=True, exist_ok=True)
    (base / "model.safetensors").write_bytes(b"0" * 1000)
    for step in saved:
        write_checkpoint(journal.checkpoints, step, model_path=str(base))
    return journal


def test_a_checkpoint_by_run_step_or_path(tmp_path):
    journal = a_run(tmp_path)
    newest, first = journal.checkpoints / "global_step_2", journal.checkpoints / "global_step_1"
    assert find_checkpoint(tmp_path, RUN, None) == newest
    assert find_checkpoint(tmp_path, RUN, 1) == first == find_checkpoint(tmp_path, str(first), None)
    with pytest.raises(CheckpointError, match="no checkpoint after step 3; it has those after 1, 2"):
        find_checkpoint(tmp_path, RUN, 3)


def test_no_such_run(tmp_path, invoke):
    a_run(tmp_path)
    result = invoke(tmp_path, "export", "project/other", "-o", tmp_path / "out")
    assert result.exit_code == 2 and "'project/other' is no run" in result.output and RUN in result.output


def test_a_pruned_run_says_where_its_weights_are(tmp_path):
    journal = a_run(tmp_path, saved=())
    folder = journal.root / "exports" / "global_step_2"
    folder.mkdir(parents=True)
    (folder / REPORT).write_text("{}")
    with pytest.raises(CheckpointError, match=f"exported already: {folder}"):
        find_checkpoint(tmp_path, RUN, None)


def test_an_export_over_something_is_refused(tmp_path, invoke):
    journal = a_run(tmp_path)
    (tmp_path / "models" / "tiny" / "config.json").write_text("{}")
    result = invoke(tmp_path, "export", RUN, "-o", journal.root)
    assert result.exit_code == 2 and "exists; choose another folder" in result.output
    assert "Traceback" not in result.output


def test_a_dry_run_says_what_would_be_freed_and_touches_nothing(tmp_path, invoke):
    journal = a_run(tmp_path)
    before = sorted(path for path in journal.root.rglob("*"))
    result = invoke(tmp_path, "prune", RUN, "--dry-run", "--json")
    assert result.exit_code == 0, result.output
    (plan,) = json.loads(result.output)
    freed = sum(checkpoint.bytes for checkpoint in list_checkpoints(journal.checkpoints))
    assert plan == {"run": RUN, "steps": [1, 2], "freed_bytes": freed, "exported_bytes": 2000, "refused": None}
    assert sorted(path for path in journal.root.rglob("*")) == before


@pytest.mark.parametrize(
    ("run", "words"),
    [
        ({"done": 1, "saved": (1,)}, "1 of 2 steps are done"),
        ({"saved": (1,)}, "its last step 2 has no checkpoint, only step 1 has"),
    ],
)
def test_what_a_run_still_needs_is_not_pruned(tmp_path, invoke, run, words):
    journal = a_run(tmp_path, **run)
    result = invoke(tmp_path, "prune", RUN, "project/none")
    assert result.exit_code == 1 and words in result.output and "'project/none' is no run" in result.output
    assert [checkpoint.step for checkpoint in list_checkpoints(journal.checkpoints)] == [1]


def test_a_run_in_use_is_not_pruned(tmp_path):
    journal = a_run(tmp_path)
    with lease(journal.root, "train"):
        result = prune_run(tmp_path, RUN, dry_run=False)
    assert result.refused is not None and "in use by process" in result.refused
    assert len(list_checkpoints(journal.checkpoints)) == 2


def test_a_checkpoint_whose_export_fails_stays(tmp_path, invoke):
    journal = a_run(tmp_path)
    result = invoke(tmp_path, "prune", RUN)  # its base model is none
    assert result.exit_code == 2 and "base model" in result.output
    assert len(list_checkpoints(journal.checkpoints)) == 2


def test_what_is_kept_by_the_schedule():
    schedule = ScheduleConfig(save_freq=5, keep_checkpoints=3, keep_every=20, keep_best=1, best_metric="pass_at_1")
    assert schedule.retention == Retention(3, 20, 1, "pass_at_1", "max")


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"keep_best": 1}, "best_metric is unset; name what ranks them"),
        ({"best_metric": "mean_reward"}, "keep_best is 0; set how many"),
        ({"save_freq": 10, "keep_every": 15}, "checkpoints are made every 10 steps (save_freq); take a multiple"),
    ],
)
def test_settings_that_would_keep_nothing(settings, words):
    with pytest.raises(ConfigError) as error:
        parse_config({"experiment": "e", "schedule": settings}, "run.yaml")
    assert "schedule" in str(error.value) and words in str(error.value)
