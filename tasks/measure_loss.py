"""Of a warm start: how likely the present policy finds the trajectories that it does not learn from."""

import numpy as np
import pyarrow.parquet as pq
from prefect import task

from tasks.gather_corpus import LABEL, VALIDATION
from tasks.journal import read_json, write_json
from tasks.policy import staged
from tasks.run import RunRef
from trainer.learner.group import LearnerGroup
from trainer.supervised import TEMPERATURE


@task(**staged("measure_loss"))
async def measure_loss(run: RunRef, label: str, step: int) -> dict[str, float]:
    """Mean negative log-likelihood of a token held back, in nats, under the weights after `step`; {} if none is.

    Written to validation.json.
    """
    file = run.journal.stage_dir(label) / "validation.json"
    known = read_json(file)
    if known is not None:
        return dict(known)
    held_back = run.journal.stage_dir(LABEL) / VALIDATION
    if not pq.read_metadata(held_back).num_rows:
        return {}
    scores = await LearnerGroup.attach(run.name).score(held_back, ["old_logprobs"], TEMPERATURE, updates=step)
    found = {"val/loss": -float(np.mean(scores["old_logprobs"], dtype=np.float64))}
    write_json(file, found)
    return found
