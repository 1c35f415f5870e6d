"""Uniting, splitting, filtering, counting and checking indexes."""

import random

import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.pool import index_tools
from harness.pool.index import (
    PoolError,
    TaskPointer,
    read_index,
    root_variable,
    stored_paths,
    write_index,
)
from harness.pool.index_tools import (
    filter_rows,
    from_frame,
    merge,
    repository_of,
    shared_repositories,
    split_by_repository,
    to_frame,
    validate,
)


def pointer(name, tmp_path, **extra):
    return TaskPointer(name, tmp_path / "tasks" / name, "set", extra)


@pytest.fixture
def rows(tmp_path):
    return [
        pointer("a__b-1", tmp_path, repo="a/b", pass_rate=0.0, trials=4),
        pointer("a__b-2", tmp_path, repo="A/B", pass_rate=0.5, trials=4, difficulty="easy"),
        pointer("c__d-1", tmp_path, repo="c/d", pass_rate=1.0, trials=4),
        pointer("e__f-1", tmp_path, repo="e/f"),
    ]


def test_rows_survive_pandas(rows):
    frame = to_frame(rows)
    assert list(frame.columns[:3]) == ["instance_id", "task_path", "data_source"]
    back = from_frame(frame)
    assert back == rows
    assert from_frame(frame[frame.pass_rate > 0].sort_values("pass_rate", ascending=False)) == [rows[2], rows[1]]
    with pytest.raises(PoolError, match=r"lacks the columns \['task_path'"):
        from_frame(pd.DataFrame({"instance_id": ["a"]}))


def test_a_written_index_is_flat_enough_for_pandas(tmp_path, rows):
    for row in rows:
        row.task_path.mkdir(parents=True)
    write_index(rows, tmp_path / "index.parquet")
    frame = pd.read_parquet(tmp_path / "index.parquet")
    assert list(frame.difficulty.dropna()) == ["easy"]
    frame["split"] = "train"
    frame["difficulty"] = "new"
    frame.to_parquet(tmp_path / "index.parquet")
    changed = read_index(tmp_path / "index.parquet")
    assert [row.extra["difficulty"] for row in changed] == ["new"] * 4
    assert changed[0].extra == rows[0].extra | {"split": "train", "difficulty": "new"}


def test_paths_below_a_variables_folder_are_portable(tmp_path, rows, monkeypatch):
    for row in rows:
        row.task_path.mkdir(parents=True)
    monkeypatch.setenv("POOLS", str(tmp_path))
    index = tmp_path / "elsewhere" / "index.parquet"
    write_index(rows, index, "POOLS")
    assert stored_paths(index)[0] == "${POOLS}/tasks/a__b-1" and root_variable(index) == "POOLS"
    (tmp_path / "tasks").rename(tmp_path / "moved_tasks")
    (tmp_path / "mount").mkdir()
    (tmp_path / "moved_tasks").rename(tmp_path / "mount/tasks")
    monkeypatch.setenv("POOLS", str(tmp_path / "mount"))
    assert read_index(index)[0].task_path == tmp_path / "mount/tasks/a__b-1"
    monkeypatch.delenv("POOLS")
    with pytest.raises(PoolError, match=r"begin with \$\{POOLS\}, which is not set; export POOLS=FOLDER"):
        read_index(index)
    with pytest.raises(PoolError, match="NONE"):
        write_index(rows, index, "NONE")


def test_only_a_leading_variable_is_one(tmp_path):
    odd = TaskPointer("a", tmp_path / "x${HOME}" / "a")
    odd.task_path.mkdir(parents=True)
    write_index([odd], tmp_path / "index.parquet")
    assert read_index(tmp_path / "index.parquet") == [odd]


def test_merging_refuses_an_id_that_comes_again(rows):
    assert merge([rows[:2], rows[2:]]) == rows
    with pytest.raises(PoolError, match="a__b-2 is in more than one index"):
        merge([rows[:2], rows[1:]])
    again = TaskPointer("a__b-2", rows[1].task_path / "other")
    assert merge([rows, [again]], "first") == rows


@pytest.mark.parametrize(
    ("instance", "extra", "repository"),
    [
        ("astropy__astropy-12907", {}, "astropy__astropy"),
        ("x", {"repo": "A/b"}, "a/b"),
        ("x", {"function": "gcd", "repo": None}, "gcd"),
        ("plain-task-7", {}, "plain-task-7"),
        ("a__b-1", {"package": "toolz"}, "toolz"),
    ],
)
def test_the_repository_of_a_row(tmp_path, instance, extra, repository):
    assert repository_of(TaskPointer(instance, tmp_path, extra=extra)) == repository


@given(st.lists(st.integers(1, 12), min_size=2, max_size=12), st.floats(0.05, 0.95), st.integers(0, 1000))
@settings(max_examples=60, deadline=None)
def test_no_repository_is_on_both_sides(sizes, share, seed):
    from pathlib import Path

    rows = [
        TaskPointer(f"{i}-{j}", Path(f"/{i}/{j}"), extra={"repo": f"o/{i}"})
        for i, n in enumerate(sizes)
        for j in range(n)
    ]
    random.Random(seed).shuffle(rows)
    train, heldout = split_by_repository(rows, share, seed)
    assert train and heldout
    assert not set(map(repository_of, train)) & set(map(repository_of, heldout))
    assert {r.instance_id for r in train} | {r.instance_id for r in heldout} == {r.instance_id for r in rows}
    assert len(train) + len(heldout) == len(rows)
    assert {r.extra["split"] for r in train} == {"train"} and {r.extra["split"] for r in heldout} == {"heldout"}
    assert split_by_repository(rows, share, seed) == (train, heldout)
    assert [r.instance_id for r in train] == [
        r.instance_id for r in rows if r.instance_id in {t.instance_id for t in train}
    ]


def test_the_share_is_met_where_repositories_are_small(tmp_path):
    rows = [pointer(f"r{i}__x-{j}", tmp_path) for i in range(50) for j in range(4)]
    _, heldout = split_by_repository(rows, 0.25, 3)
    assert 46 <= len(heldout) <= 54
    assert split_by_repository(rows, 0.25, 4)[1] != heldout


def test_what_cannot_be_split_is_refused(rows):
    with pytest.raises(PoolError, match="one repository"):
        split_by_repository(rows[:2], 0.5, 0)
    for share in (0, 1, -1, 2):
        with pytest.raises(PoolError, match="between 0 and 1"):
            split_by_repository(rows, share, 0)


@pytest.mark.parametrize(
    ("where", "kept"),
    [
        ("0 < pass_rate < 1", [1]),
        ("pass_rate >= 0.5 or repo == 'e/f'", [1, 2, 3]),
        ("difficulty == 'easy'", [1]),
        ("not pass_rate > 0", [0, 3]),
        ("instance_id in ['a__b-1', 'e__f-1']", [0, 3]),
    ],
)
def test_filters(rows, where, kept):
    assert filter_rows(rows, where) == [rows[i] for i in kept]


@pytest.mark.parametrize("where", ["speed > 1", "pass_rate >", "pass_rate", "1", "repo + 1", "", "a = 1"])
def test_filters_that_cannot_be_computed_are_refused(rows, where):
    with pytest.raises(PoolError, match="--where"):
        filter_rows(rows, where)


def test_counts(rows):
    assert index_tools.counts(rows, "repository") == {"a/b": 2, "c/d": 1, "e/f": 1}
    assert index_tools.counts(rows, "difficulty") == {"-": 3, "easy": 1}
    assert index_tools.counts(rows, "data_source") == {"set": 4}
    assert index_tools.pass_rates(rows) == [0.0, 0.5, 1.0]
    assert shared_repositories(rows, rows[1:2]) == {"a/b": 2}


def test_validation_finds_what_is_wrong(tmp_path, small_pool):
    good = small_pool[:2]
    twice = TaskPointer("twice", good[0].task_path)
    gone = TaskPointer("gone", tmp_path / "gone")
    found = list(validate([*good, twice, gone], ["a", "/b", "c", "d"]))
    assert [(f.instance_id, f.level) for f in found] == [
        (good[1].instance_id, "warning"),
        ("twice", "error"),
        ("gone", "error"),
    ]
    assert good[0].instance_id in found[1].text and "no such task directory" in found[2].text
