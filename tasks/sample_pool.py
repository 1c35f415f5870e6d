"""Stage 1 of a step: draw the tasks to be tried."""

from pathlib import Path

from prefect import task

from harness.pool.index import read_index
from tasks.config import EvaluationConfig, RolloutConfig
from tasks.draw import as_groups, draw, groups_table, spread
from tasks.journal import write_table
from tasks.policy import staged
from tasks.run import RunRef


@task(**staged("sample_pool", timeout=300))
async def sample_pool(run: RunRef, label: str, step: int, index: Path, seed: int, rollout: RolloutConfig) -> int:
    """Write groups.parquet of a training step. Returns the number of trials it asks for."""
    path = run.journal.stage_dir(label) / "groups.parquet"
    groups = as_groups(draw(read_index(index), rollout.tasks_per_step, step, seed), label, rollout.attempts_per_task)
    if not path.is_file():
        write_table(path, groups_table(groups))
    return sum(group.attempts for group in groups)


@task(**staged("sample_heldout", timeout=300))
async def sample_heldout(run: RunRef, label: str, index: Path, evaluation: EvaluationConfig) -> int:
    """Write groups.parquet of an evaluation. Returns the number of trials it asks for."""
    path = run.journal.stage_dir(label) / "groups.parquet"
    groups = as_groups(spread(read_index(index), evaluation.max_tasks), label, evaluation.attempts_per_task)
    if not path.is_file():
        write_table(path, groups_table(groups))
    return sum(group.attempts for group in groups)
