"""Files that are complete or absent, and the names they have."""

import os
import threading
from concurrent.futures import ThreadPoolExecutor

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from support.killed import in_child, limit_file_size

from tasks import journal as module
from tasks.journal import (
    Journal,
    JournalError,
    eval_label,
    read_json,
    step_label,
    write_json,
    write_table,
    write_text,
)


def test_labels_sort_as_numbers_do():
    assert step_label(12) == "step_000012"
    assert eval_label(0) == "eval_step_000000"
    assert sorted([step_label(100), step_label(9)]) == [step_label(9), step_label(100)]


def test_steps_and_evaluations_are_apart(tmp_path):
    journal = Journal(tmp_path)
    assert journal.stage_dir(step_label(3)) == tmp_path / "steps" / "step_000003"
    assert journal.stage_dir(eval_label(3)) == tmp_path / "evals" / "step_000003"
    assert journal.trials_dir(eval_label(3)) != journal.trials_dir(step_label(3))


def test_json_round_trip(tmp_path):
    value = {"b": [1, 2.5, None], "a": {"text": "naïve ✓ \udcff"}}
    write_json(tmp_path / "deep" / "er" / "x.json", value)
    assert read_json(tmp_path / "deep" / "er" / "x.json") == value


def test_a_missing_file_is_none(tmp_path):
    assert read_json(tmp_path / "x.json") is None
    assert Journal(tmp_path).stage(step_label(1), "update.json") is None


@pytest.mark.parametrize("damage", [b"", b'{"a": 1', b"\xff\xfe"])
def test_a_damaged_file_is_named(tmp_path, damage):
    (tmp_path / "x.json").write_bytes(damage)
    with pytest.raises(JournalError, match=r"x\.json is damaged .*remove it"):
        read_json(tmp_path / "x.json")


@pytest.mark.parametrize(
    "write",
    [lambda path: write_text(path, "x" * 2**16), lambda path: write_table(path, pa.table({"a": range(2**16)}))],
    ids=["text", "table"],
)
def test_on_a_full_disk_the_old_file_stays_and_nothing_else(tmp_path, write):
    path = tmp_path / "x"
    path.write_text("old")

    def fill():
        limit_file_size(1000)
        with pytest.raises(OSError) as raised:
            write(path)
        assert raised.value.filename == str(path)

    in_child(fill)
    assert [file.name for file in tmp_path.iterdir()] == ["x"] and path.read_text() == "old"


@pytest.mark.parametrize(
    "write",
    [lambda path: write_text(path, "new"), lambda path: write_table(path, pa.table({"a": [1]}))],
    ids=["text", "table"],
)
def test_a_crash_before_the_rename_leaves_the_old_file(tmp_path, monkeypatch, write):
    path = tmp_path / "x"
    path.write_text("old")

    def crash(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(module.os, "replace", crash)
    with pytest.raises(KeyboardInterrupt):
        write(path)
    assert path.read_text() == "old"


def test_content_is_on_disk_before_the_name_is(tmp_path, monkeypatch):
    order = []
    real_sync, real_replace = os.fsync, os.replace
    monkeypatch.setattr(module.os, "fsync", lambda fd: (order.append("sync"), real_sync(fd)))
    monkeypatch.setattr(module.os, "replace", lambda *a: (order.append("rename"), real_replace(*a)))
    write_text(tmp_path / "x", "new")
    write_table(tmp_path / "y", pa.table({"a": [1]}))
    assert order == ["sync", "rename", "sync"] * 2


def test_writing_leaves_nothing_beside(tmp_path):
    write_json(tmp_path / "x.json", {})
    write_table(tmp_path / "y.parquet", pa.table({"a": [1]}))
    assert sorted(p.name for p in tmp_path.iterdir()) == ["x.json", "y.parquet"]
    assert pq.read_table(tmp_path / "y.parquet").to_pylist() == [{"a": 1}]


def test_a_trial_counts_once_trial_json_is_there(tmp_path):
    journal = Journal(tmp_path)
    assert journal.trials("step_000001") == []
    folder = journal.trials_dir("step_000001")
    write_text(folder / "b" / "trial.json", "{}")
    write_text(folder / "a" / "trial.json", "{}")
    write_text(folder / "half" / "rollout.parquet", "")
    assert [p.name for p in journal.trials("step_000001")] == ["a", "b"]
    assert journal.trials("step_000002") == []


def test_finished_steps_by_marker(tmp_path):
    journal = Journal(tmp_path)
    assert journal.finished_steps() == []
    for step in (2, 10, 1):
        write_json(journal.stage_dir(step_label(step)) / "update.json", {})
    write_json(journal.stage_dir(step_label(2)) / "record.json", {})
    write_json(journal.stage_dir(eval_label(7)) / "record.json", {})
    (tmp_path / "steps" / "notes").mkdir()
    assert journal.finished_steps("update.json") == [1, 2, 10]
    assert journal.finished_steps() == [2]


def test_threads_that_write_the_same_file_do_not_meet(tmp_path):
    path, together = tmp_path / "sampler.json", threading.Barrier(4)

    def write(number):
        for _ in range(50):
            together.wait(30)
            write_json(path, {"from": number, "filling": "x" * 10_000})

    with ThreadPoolExecutor(4) as threads:
        for done in [threads.submit(write, number) for number in range(4)]:
            done.result()
    assert len(read_json(path)["filling"]) == 10_000 and list(tmp_path.iterdir()) == [path]
