"""A built pool's folder: killed at any time, held by one, told completely."""

import json
from dataclasses import replace

import pytest

from harness.pool.builder.store import PackageResult, Store
from harness.pool.index import PoolError, read_index

RESULT = PackageResult(
    "mathy==1", "mathy", "1", "k",
    tasks=({"instance_id": "mathy-a", "extra": {"package": "mathy", "bug": "loop_once"}},),
    candidates=9, reasons={"survived": 8}, quarantined=({"task": "mathy-b", "reason": "flaky"},),
    tests_quarantined={"t.py::test": "slow: 3 s"}, notes=("n",),
)  # fmt: skip


def test_two_builds_on_one_folder_refuse(tmp_path):
    store = Store(tmp_path / "pool")
    with store.held(), pytest.raises(PoolError, match="another build runs"), Store(tmp_path / "pool").held():
        pass
    with store.held():
        pass


def test_a_folder_of_other_things_is_left_alone(tmp_path):
    (tmp_path / "precious").write_text("x")
    with pytest.raises(PoolError, match="is no built pool"), Store(tmp_path).held():
        pass
    assert [file.name for file in tmp_path.iterdir()] == ["precious"]


def test_half_written_tasks_go_when_the_folder_is_held_again(tmp_path):
    store = Store(tmp_path / "pool")
    with store.held():
        (store.tasks / ".new.abc" / "x").mkdir(parents=True)
    with store.held():
        assert not list(store.tasks.iterdir())


def test_the_index_knows_all_packages_and_rejected_the_rest(tmp_path):
    store = Store(tmp_path / "pool")
    with store.held():
        other = replace(RESULT, label="b==1", tasks=({"instance_id": "b-a", "extra": {"package": "b"}},))
        for result in (RESULT, other, PackageResult("c==1", "c", "1", "", problem="no tests")):
            store.put_result(result)
            for facts in result.tasks:
                (store.tasks / facts["instance_id"]).mkdir(parents=True)
        index = store.write_index()
    assert {row.instance_id: row.extra["package"] for row in read_index(index)} == {"mathy-a": "mathy", "b-a": "b"}
    rejected = [json.loads(line) for line in (tmp_path / "pool" / "rejected.jsonl").read_text().splitlines()]
    assert {"package": "c==1", "reason": "no tests"} in rejected
    assert {"package": "mathy==1", "task": "mathy-b", "reason": "flaky"} in rejected
    assert {"package": "mathy==1", "test": "t.py::test", "reason": "slow: 3 s"} in rejected
    assert {"package": "mathy==1", "reason": "survived", "bugs": 8} in rejected
    assert store.result("mathy==1") == RESULT
