"""What is checked before any engine is started."""

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from support.journals import make_run
from support.tasks import write_task

from harness.pool.index import REQUIRED_COLUMNS, PoolError, TaskPointer, write_index
from harness.pool.task import TaskError
from tasks.config import DataConfig, EvaluationConfig, RolloutConfig
from tasks.draw import read_groups
from tasks.prepare import prepare_model, prepare_pools
from tasks.sample_pool import sample_heldout, sample_pool
from trainer.model import ModelConfig, ModelError


@pytest.fixture
def index(tmp_path):
    pointers = [
        TaskPointer(
            f"task-{i}", write_task(tmp_path / "pool" / f"task-{i}"), extra={"difficulty": "easy" if i else "hard"}
        )
        for i in range(4)
    ]
    write_index(pointers, tmp_path / "pool" / "index.parquet")
    return tmp_path / "pool" / "index.parquet"


async def prepare(tmp_path, index, tasks_per_step=2, heldout=None):
    data = DataConfig(train=str(index), heldout=str(heldout or index))
    return await prepare_pools.fn(make_run(tmp_path), data, RolloutConfig(tasks_per_step=tasks_per_step))


async def test_a_pool_that_fits(tmp_path, index):
    assert await prepare(tmp_path, index) == 4


async def test_a_missing_index(tmp_path, index):
    for train, heldout in ((tmp_path / "none.parquet", index), (index, tmp_path / "none.parquet")):
        with pytest.raises(PoolError, match=r"none\.parquet: no such index; build the pool first"):
            await prepare(tmp_path, train, heldout=heldout)


async def test_an_empty_pool(tmp_path, index):
    empty = tmp_path / "empty.parquet"
    pq.write_table(pa.table({name: pa.array([], pa.string()) for name in REQUIRED_COLUMNS}), empty)
    with pytest.raises(PoolError, match=r"empty\.parquet: the index holds no tasks"):
        await prepare(tmp_path, empty)


async def test_a_pool_smaller_than_a_step(tmp_path, index):
    with pytest.raises(PoolError, match=r"rollout.tasks_per_step is 5, but the training pool holds 4 tasks"):
        await prepare(tmp_path, index, tasks_per_step=5)


async def test_a_difficulty_that_no_task_has(tmp_path, index):
    data = DataConfig(train=str(index), heldout=str(index), difficulty=["brutal"])
    with pytest.raises(PoolError, match=r"data.difficulty is \['brutal'\], but .* has easy, hard; choose among these"):
        await prepare_pools.fn(make_run(tmp_path), data, RolloutConfig(tasks_per_step=1))


async def test_a_difficulty_counts_against_the_size_of_a_step(tmp_path, index):
    data = DataConfig(train=str(index), heldout=str(index), difficulty=["easy"])
    assert await prepare_pools.fn(make_run(tmp_path), data, RolloutConfig(tasks_per_step=3)) == 3
    with pytest.raises(PoolError, match="holds 3 tasks"):
        await prepare_pools.fn(make_run(tmp_path), data, RolloutConfig(tasks_per_step=4))


async def test_a_task_without_tests(tmp_path, index):
    (tmp_path / "pool" / "task-2" / "tests" / "test_solution.py").unlink()
    with pytest.raises(TaskError, match="task-2"):
        await prepare(tmp_path, index)


async def test_a_model_that_is_not_there(tmp_path):
    with pytest.raises(ModelError, match=r"no folder '\./nowhere'"):
        await prepare_model.fn(make_run(tmp_path), ModelConfig(path="./nowhere"))


async def test_a_step_draws_its_groups_once(tmp_path, index):
    run, rollout = make_run(tmp_path), RolloutConfig(tasks_per_step=2, attempts_per_task=8)
    data = DataConfig(train=str(index), heldout=str(index))
    assert await sample_pool.fn(run, "step_000001", 1, data, rollout) == 16
    path = run.journal.stage_dir("step_000001") / "groups.parquet"
    groups = read_groups(path)
    assert [group.attempts for group in groups] == [8, 8]
    # trials of these groups may have ended already: they stand, whatever is asked for now
    await sample_pool.fn(run, "step_000001", 1, data.model_copy(update={"seed": 1}), RolloutConfig(tasks_per_step=4))
    assert read_groups(path) == groups


async def test_an_evaluation_takes_every_task(tmp_path, index):
    run, data = make_run(tmp_path), DataConfig(train=str(index), heldout=str(index))
    assert await sample_heldout.fn(run, "eval_step_000000", data, EvaluationConfig(attempts_per_task=3)) == 12
    groups = read_groups(run.journal.stage_dir("eval_step_000000") / "groups.parquet")
    assert [group.task_id for group in groups] == [f"task-{i}" for i in range(4)]
