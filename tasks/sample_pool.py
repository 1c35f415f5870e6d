"""Stage 1 of a step: draw the tasks to be tried."""

from prefect import task

from tasks.config import DataConfig, EvaluationConfig, RolloutConfig
from tasks.draw import as_groups, draw, groups_table, read_groups, read_pool, spread
from tasks.journal import write_table
from tasks.policy import staged
from tasks.run import RunRef


@task(**staged("sample_pool", timeout=300))
async def sample_pool(run: RunRef, label: str, step: int, data: DataConfig, rollout: RolloutConfig) -> int:
    """Write groups.parquet of a training step. Returns the number of trials it asks for."""
    path = run.journal.stage_dir(label) / "groups.parquet"
    pool = read_pool(data.train_index(run.root), data.difficulty)
    groups = as_groups(draw(pool, rollout.tasks_per_step, step, data.seed), label, rollout.attempts_per_task)
    if not path.is_file():
        write_table(path, groups_table(groups))
    return sum(group.attempts for group in read_groups(path))


@task(**staged("sample_heldout", timeout=300))
async def sample_heldout(run: RunRef, label: str, data: DataConfig, evaluation: EvaluationConfig) -> int:
    """Write groups.parquet of an evaluation. Returns the number of trials it asks for."""
    path = run.journal.stage_dir(label) / "groups.parquet"
    pool = read_pool(data.heldout_index(run.root), data.difficulty)
    groups = as_groups(spread(pool, evaluation.max_tasks), label, evaluation.attempts_per_task)
    if not path.is_file():
        write_table(path, groups_table(groups))
    return sum(group.attempts for group in read_groups(path))
