"""Checkpoints are complete or absent."""

import json

import pytest

from trainer.learner.checkpoint import MARKER, Checkpoint, CheckpointError, list_checkpoints, prune


def write(root, step, complete=True):
    folder = root / f"global_step_{step}"
    folder.mkdir(parents=True)
    (folder / "shard.pt").write_text("weights")
    if complete:
        marker = {"step": step, "ranks": 2, "fingerprint": f"f{step}", "model_path": "/models/tiny"}
        (folder / MARKER).write_text(json.dumps(marker))
    return folder


def test_opens_what_the_marker_says(tmp_path):
    path = write(tmp_path, 8)
    assert Checkpoint.open(path) == Checkpoint(path, 8, 2, "f8", "/models/tiny")


def test_a_folder_without_marker_is_none(tmp_path):
    with pytest.raises(CheckpointError, match="was never finished"):
        Checkpoint.open(write(tmp_path, 8, complete=False))
    with pytest.raises(CheckpointError):
        Checkpoint.open(tmp_path / "missing")


def test_lists_by_number_and_leaves_out_what_is_unfinished(tmp_path):
    for step in (10, 9, 100):
        write(tmp_path, step)
    write(tmp_path, 200, complete=False)
    (tmp_path / ".global_step_300.partial").mkdir()
    (tmp_path / ".global_step_300.partial" / MARKER).write_text("{}")
    (tmp_path / "notes.txt").write_text("")
    assert [c.step for c in list_checkpoints(tmp_path)] == [9, 10, 100]


def test_no_folder_holds_no_checkpoints(tmp_path):
    assert list_checkpoints(tmp_path / "missing") == []


def test_prune_keeps_the_newest(tmp_path):
    for step in (2, 4, 10):
        write(tmp_path, step)
    unfinished = write(tmp_path, 1, complete=False)
    prune(tmp_path, 2)
    assert [c.step for c in list_checkpoints(tmp_path)] == [4, 10]
    assert not (tmp_path / "global_step_2").exists()
    assert unfinished.is_dir()


def test_prune_of_fewer_than_are_kept_deletes_nothing(tmp_path):
    write(tmp_path, 2)
    prune(tmp_path, 3)
    assert [c.step for c in list_checkpoints(tmp_path)] == [2]
