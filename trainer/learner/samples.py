"""Rollouts of a batch as the learner reads them: a sample for each segment of a trial."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby, pairwise

import numpy as np
import pyarrow as pa
from jaxtyping import Float, Int

from trainer.batch import sampled
from trainer.learner.config import optimizer_steps
from trainer.learner.moe.records import read_record

_COLUMNS = {"logprobs": "rollout_logprobs"} | {
    name: name for name in ("weight_versions", "advantages", "returns", "values", "old_logprobs", "ref_logprobs")
}
"""Columns of a batch with an entry a token, and what they are called here."""


@dataclass(frozen=True)
class TrainSample:
    """What the learner needs of one rollout; `index` is its row in the batch.

    `token_ids` and `loss_mask` have one entry a token. `columns` have one entry a trained token: `rollout_logprobs`
    always, `advantages` and others once they are computed. `experts` is the record of routing (`moe.records`), if it is
    read and there is one.
    """

    index: int
    session_id: str
    group_id: str
    token_ids: Sequence[int]
    loss_mask: Sequence[int]
    prompt_length: int
    columns: Mapping[str, Float[np.ndarray, " trained"]]
    experts: Int[np.ndarray, "positions layers k"] | None = field(default=None, compare=False)

    @property
    def trained_tokens(self) -> int:
        return len(self.columns["rollout_logprobs"])

    @property
    def has_signal(self) -> bool:
        """Some advantage is not 0: without one the policy loss has no gradient."""
        return bool(self.columns["advantages"].any())


def read_samples(batch: pa.Table, routing: bool = False) -> list[TrainSample]:
    """The rollouts of a batch, in its order, with the columns of tokens that it has, and records of `routing`."""
    rows = batch.select(["session_id", "group_id", "token_ids", "loss_mask", "prompt_length"]).to_pylist()
    ends = np.cumsum([sum(row["loss_mask"]) for row in rows])[:-1]
    columns = {
        name: np.split(sampled(batch, column), ends)
        for column, name in _COLUMNS.items()
        if column in batch.column_names and batch.num_rows and not batch.column(column).null_count
    }
    experts = _routing(batch) if routing else [None] * len(rows)
    return [
        TrainSample(i, columns={name: parts[i] for name, parts in columns.items()}, experts=experts[i], **row)
        for i, row in enumerate(rows)
    ]


def _routing(batch: pa.Table) -> list[Int[np.ndarray, "positions layers k"] | None]:
    lengths = batch.column("token_ids").combine_chunks().value_lengths().to_pylist()
    shapes = batch.column("routing_shape").to_pylist()
    # views into the batch: records are much larger than all else
    return [
        None if shape is None else read_record(memoryview(record.as_buffer()), shape, tokens)
        for record, shape, tokens in zip(batch.column("routed_experts"), shapes, lengths, strict=True)
    ]


def mini_batches(samples: Sequence[TrainSample], trials: int | None) -> list[list[TrainSample]]:
    """The samples of a batch, in parts of about so many trials each, or in one part if None.

    Parts are of equal size, but for one trial: each is an optimizer step, and a few trials that are left over would
    weigh as much as all of another. Segments of a trial stay together; how many there are changes no number of steps.
    """
    by_trial = [list(segments) for _, segments in groupby(samples, key=lambda sample: sample.session_id)]
    count = len(by_trial)
    parts = optimizer_steps(count, trials)
    edges = [count * part // parts for part in range(parts + 1)]
    return [
        [sample for segments in by_trial[start:end] for sample in segments]
        for start, end in pairwise(edges)
        if end > start
    ]
