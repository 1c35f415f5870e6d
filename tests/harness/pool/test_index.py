"""The index: a round trip, portability, and what it refuses."""

import shutil

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from harness.pool.index import PoolError, TaskPointer, read_index, write_index


@pytest.fixture
def pool(tmp_path):
    for name in ("a", "b"):
        (tmp_path / "pool" / "tasks" / name).mkdir(parents=True)
    return tmp_path / "pool"


def rows(pool):
    tasks = pool / "tasks"
    return [
        TaskPointer("b", tasks / "b", "kata", {"split": "train", "pass_rate": 0.5}),
        TaskPointer("a", tasks / "a", extra={"split": "train"}),
    ]


def test_rows_come_back_in_order(pool):
    write_index(rows(pool), pool / "index.parquet")
    assert read_index(pool / "index.parquet") == rows(pool)


def test_the_columns_are_those_of_a_pointer_table(pool):
    write_index(rows(pool), pool / "index.parquet")
    first = pq.read_table(pool / "index.parquet").to_pylist()[0]
    assert first["prompt"] == [{"role": "user", "content": "tasks/b"}]
    assert first["reward_model"] == {"style": "rule", "ground_truth": None}
    assert first["extra_info"]["harbor_task_path"] == "tasks/b"
    assert first["extra_info"]["instance_id"] == "b"
    assert first["extra_info"]["data_source"] == "kata"


def test_a_pool_can_be_moved_with_its_index(pool, tmp_path):
    write_index(rows(pool), pool / "index.parquet")
    shutil.move(pool, tmp_path / "elsewhere")
    moved = read_index(tmp_path / "elsewhere" / "index.parquet")
    assert [p.task_path for p in moved] == [tmp_path / "elsewhere" / "tasks" / name for name in "ba"]


def test_an_index_elsewhere_points_by_absolute_path(pool, tmp_path):
    write_index(rows(pool), tmp_path / "other" / "kept.parquet")
    assert read_index(tmp_path / "other" / "kept.parquet") == rows(pool)


def test_further_columns_are_extras(pool):
    write_index(rows(pool), pool / "index.parquet")
    table = pq.read_table(pool / "index.parquet")
    pq.write_table(table.append_column("harness", pa.array(["edit", None])), pool / "index.parquet")
    first, second = read_index(pool / "index.parquet")
    assert first.extra["harness"] == "edit"
    assert "harness" not in second.extra


def test_what_is_no_index_is_refused(pool, tmp_path):
    with pytest.raises(PoolError, match="no such index"):
        read_index(pool / "none.parquet")
    (pool / "text.parquet").write_text("hello, this is no parquet file")
    with pytest.raises(PoolError, match="not a parquet file"):
        read_index(pool / "text.parquet")
    pq.write_table(pa.table({"prompt": ["x"]}), pool / "short.parquet")
    with pytest.raises(PoolError, match="'reward_model', 'extra_info'"):
        read_index(pool / "short.parquet")
    info = [{"instance_id": "a", "data_source": "kata"}]
    pq.write_table(pa.table({"prompt": ["x"], "reward_model": ["x"], "extra_info": info}), pool / "info.parquet")
    with pytest.raises(PoolError, match="extra_info lacks"):
        read_index(pool / "info.parquet")


def test_an_empty_pool_is_refused(pool):
    with pytest.raises(PoolError, match="without tasks"):
        write_index([], pool / "index.parquet")
    write_index(rows(pool), pool / "index.parquet")
    pq.write_table(pq.read_table(pool / "index.parquet").slice(0, 0), pool / "index.parquet")
    with pytest.raises(PoolError, match="holds no tasks"):
        read_index(pool / "index.parquet")


def test_a_missing_task_directory_is_named(pool):
    write_index(rows(pool), pool / "index.parquet")
    (pool / "tasks" / "a").rmdir()
    with pytest.raises(PoolError, match=r"1 of 2 task directories are missing.*tasks/a"):
        read_index(pool / "index.parquet")


def test_rows_that_do_not_fit_one_table_are_refused(pool):
    first, second = rows(pool)
    with pytest.raises(PoolError, match="b occurs more than once"):
        write_index([first, first], pool / "index.parquet")
    with pytest.raises(PoolError, match="which the index fills"):
        write_index([TaskPointer("a", pool, extra={"instance_id": "c"})], pool / "index.parquet")
    with pytest.raises(PoolError, match="one type"):
        write_index([first, TaskPointer("a", second.task_path, extra={"split": 3})], pool / "index.parquet")
    assert list(pool.glob("*.parquet")) == []
