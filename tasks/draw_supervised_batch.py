"""Of a step of a warm start: what it learns from, by seed and step alone."""

import asyncio
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from prefect import task

from tasks.gather_corpus import LABEL, TRAIN
from tasks.journal import write_table
from tasks.policy import staged
from tasks.run import RunRef
from trainer.supervised import sessions_of_step


@task(**staged("draw_supervised_batch", timeout=600))
async def draw_supervised_batch(run: RunRef, label: str, step: int, batch_size: int, seed: int) -> int:
    """Write batch.parquet. Returns the number of its trajectories."""
    corpus = run.journal.stage_dir(LABEL) / TRAIN
    return await asyncio.to_thread(_draw, corpus, run.journal.stage_dir(label), step, batch_size, seed)


def _draw(corpus: Path, folder: Path, step: int, batch_size: int, seed: int) -> int:
    table = pq.read_table(corpus)
    sessions = sorted(set(table.column("session_id").to_pylist()))
    chosen = sessions_of_step(sessions, step, batch_size, seed)
    if not (folder / "batch.parquet").is_file():
        of_step = pc.is_in(table.column("session_id"), value_set=pa.array(chosen))
        write_table(folder / "batch.parquet", table.filter(of_step))
    return len(chosen)
