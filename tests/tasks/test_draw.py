"""Which tasks a step tries."""

from pathlib import Path

import pyarrow.parquet as pq
from hypothesis import given
from hypothesis import strategies as st

from harness.pool.index import TaskPointer
from tasks.draw import as_groups, draw_refill, groups_path, groups_table, read_draws, read_groups, spread

POOL = [TaskPointer(f"task-{i}", Path(f"/pool/task-{i}"), extra={"function": f"f{i // 2}"}) for i in range(23)]


def ids(tasks):
    return [task.instance_id for task in tasks]


@given(st.integers(1, 40), st.integers(1, 40))
def test_spread_takes_that_many_in_order_from_end_to_end(size, count):
    pool = [TaskPointer(str(i), Path("/")) for i in range(size)]
    taken = [int(t.instance_id) for t in spread(pool, count)]
    assert len(taken) == min(size, count)
    assert taken == sorted(set(taken))
    if count >= 2:
        assert (taken[0], taken[-1]) == (0, size - 1)


def test_spread_without_a_count_takes_all():
    assert spread(POOL, None) == POOL


def test_groups_are_named_by_round_and_task():
    (group, *_) = as_groups(POOL[4:6], "step_000002", 8)
    assert group.group_id == "step_000002/task-4"
    assert (group.task_id, group.task_path, group.cluster, group.attempts) == ("task-4", Path("/pool/task-4"), "f2", 8)


def test_a_task_without_function_is_its_own_cluster():
    (group,) = as_groups([TaskPointer("alone", Path("/pool/alone"))], "step_000001", 2)
    assert group.cluster == "alone"


def test_groups_round_trip(tmp_path):
    groups = as_groups(POOL, "step_000002", 8)
    pq.write_table(groups_table(groups), tmp_path / "groups.parquet")
    assert read_groups(tmp_path / "groups.parquet") == groups


def test_a_greedy_trial_is_a_group_of_its_own(tmp_path):
    groups = as_groups(POOL[:2], "step_000002", 8, greedy=True)
    assert [(g.group_id, g.attempts, g.greedy) for g in groups] == [
        ("step_000002/task-0", 8, False),
        ("step_000002/task-0#greedy", 1, True),
        ("step_000002/task-1", 8, False),
        ("step_000002/task-1#greedy", 1, True),
    ]
    assert [g.baseline_of for g in groups if g.greedy] == ["step_000002/task-0", "step_000002/task-1"]
    assert groups[1].task_path == groups[0].task_path
    pq.write_table(groups_table(groups), tmp_path / "groups.parquet")
    assert read_groups(tmp_path / "groups.parquet") == groups


def test_draws_are_read_in_order_up_to_the_last(tmp_path):
    draws = [as_groups(POOL[i : i + 1], "step_000002", 8) for i in range(12)]
    for refill, groups in enumerate(draws):
        pq.write_table(groups_table(groups), groups_path(tmp_path, refill))
    assert groups_path(tmp_path).name == "groups.parquet"
    assert read_draws(tmp_path) == draws
    groups_path(tmp_path, 3).unlink()
    assert read_draws(tmp_path) == draws[:3]


DRAWS = {
    "tried": st.sets(st.sampled_from(ids(POOL))),
    "accepted": st.integers(0, 12),
    "wanted": st.integers(1, 12),
    "step": st.integers(1, 50),
    "refill": st.integers(1, 5),
    "seed": st.integers(0, 5),
}


@given(**DRAWS)
def test_a_refill_replaces_what_is_missing_by_what_is_untried(tried, accepted, wanted, step, refill, seed):
    drawn = ids(draw_refill(POOL, tried, accepted, wanted, step, refill, seed))
    assert len(drawn) == len(set(drawn)) == min(max(wanted - accepted, 0), len(POOL) - len(tried))
    assert not tried & set(drawn)


@given(**DRAWS)
def test_a_refill_is_drawn_the_same_again(**values):
    assert draw_refill(POOL, **values) == draw_refill(POOL, **values)
    # whatever else was tried, the order in which tasks come is that of seed, step and refill
    fewer = values | {"tried": set(), "accepted": 0, "wanted": len(POOL)}
    order = ids(draw_refill(POOL, **fewer))
    drawn = ids(draw_refill(POOL, **values))
    assert drawn == [name for name in order if name not in values["tried"]][: len(drawn)]


def test_refills_differ_by_seed_step_and_number():
    orders = [
        tuple(ids(draw_refill(POOL, (), 0, 23, step, refill, seed)))
        for step in (1, 2)
        for refill in (1, 2)
        for seed in (0, 1)
    ]
    assert len(set(orders)) == len(orders)
