"""Stage 6 of a step: one update of the learner, applied exactly once."""

import time
from typing import Any

from prefect import task

from tasks.journal import write_json
from tasks.policy import staged
from tasks.run import RunRef
from trainer.learner.group import LearnerGroup


# one that failed leaves weights that no second try can go on from: only a checkpoint leads back
@task(**staged("update_policy", retries=0))
async def update_policy(
    run: RunRef, label: str, step: int, temperature: float, sampled_ahead: bool = False
) -> dict[str, Any]:
    """Update the weights from batch.parquet and journal what came out.

    Of trials that were `sampled_ahead`, only the tokens of the present weights tell whether engine and trainer agree.
    """
    started = time.monotonic()
    path = run.journal.stage_dir(label)
    known = run.journal.stage(label, "update.json")
    if known is not None:
        # recovery has replayed it before the step began
        return known
    learner = LearnerGroup.attach(run.name)
    fresh = step - 1 if sampled_ahead else None
    record = await learner.update(step, path / "batch.parquet", temperature, fresh=fresh)
    done = record.to_json() | {"seconds": time.monotonic() - started, "ranks": len(learner.actors)}
    write_json(path / "update.json", done)
    return done
