"""What the learner reads of a batch: sampled tokens only, in the order of the rows."""

import numpy as np
import pyarrow as pa
import pytest
from support.rollouts import batch_of, make_rollout

from trainer.batch import with_advantages
from trainer.learner.samples import read_samples

ROLLOUTS = [make_rollout(f"s-{i}", turns=[(4, 5)[: i + 1], (6,)]) for i in range(2)]
ADVANTAGES = np.array([1.0, 2.0, 0.0, 0.0, 3.0], dtype=np.float32)


def batch(**columns):
    return with_advantages(batch_of(ROLLOUTS), ADVANTAGES, **columns)


def test_columns_are_cut_by_rollout():
    first, second = read_samples(batch(returns=ADVANTAGES + 1))
    assert first.columns["advantages"].tolist() == [1.0, 2.0] and first.trained_tokens == 2
    assert second.columns["returns"].tolist() == [1.0, 1.0, 4.0] and second.has_signal
    known = {"rollout_logprobs", "weight_versions"}
    assert set(first.columns) == known | {"advantages", "returns"}, "what is not computed is not there"


def test_a_batch_without_advantages_can_be_scored():
    known = {"rollout_logprobs", "weight_versions"}
    assert [set(sample.columns) for sample in read_samples(batch_of(ROLLOUTS))] == [known] * 2


@pytest.mark.parametrize("column", ["logprobs", "advantages"])
def test_what_stands_at_other_tokens_is_never_read(column):
    table = batch()
    mask = [m for row in table.column("loss_mask").to_pylist() for m in row]
    flat = table.column(column).combine_chunks()
    junk = np.where(np.array(mask) == 1, flat.flatten().to_numpy(), 123.0).astype(np.float32)
    changed = pa.ListArray.from_arrays(flat.offsets, pa.array(junk, pa.float32()))
    other = table.set_column(table.column_names.index(column), table.schema.field(column), changed)
    for have, want in zip(read_samples(other), read_samples(table), strict=True):
        for name, values in want.columns.items():
            np.testing.assert_array_equal(have.columns[name], values)


def test_an_empty_batch():
    assert read_samples(with_advantages(batch_of([]), np.empty(0))) == []
