"""Stage 5 of a step, where an algorithm asks for it: what the learner's models say of the sampled tokens."""

import time

import pyarrow as pa
from prefect import task

from tasks.journal import write_table
from tasks.policy import staged
from tasks.progress import Event, emit
from tasks.run import RunRef
from trainer.learner.group import LearnerGroup


@task(**staged("score_batch"))
async def score_batch(run: RunRef, label: str, step: int, columns: list[str], temperature: float) -> dict[str, float]:
    """Write scores.parquet, a row for each sampled token of batch.parquet, if any of `columns` is asked for."""
    folder = run.journal.stage_dir(label)
    if not columns or (folder / "scores.parquet").is_file():
        return {}
    emit(Event("stage", label, "score"))
    started = time.monotonic()
    learner = LearnerGroup.attach(run.name)
    scores = await learner.score(folder / "batch.parquet", columns, temperature, updates=step - 1)
    write_table(folder / "scores.parquet", pa.table(dict(scores)))
    return {"timing_s/score": time.monotonic() - started}
