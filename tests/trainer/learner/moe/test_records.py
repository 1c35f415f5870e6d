"""Records of routing: read from a batch, laid out as packed rows are."""

import dataclasses

import numpy as np
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.rollouts import batch_of, make_rollout, make_sample

from trainer.learner.moe.records import is_recorded, read_record, row_record
from trainer.learner.packing import pack_rows
from trainer.learner.samples import read_samples
from trainer.rollout import RolloutError


def told(sample, first=0):
    """The sample, whose token i was read by the experts (first + i, first + i + 1) in layer 0, one more in layer 1."""
    positions = np.arange(len(sample.token_ids) - 1)[:, None, None]
    experts = first + positions + np.arange(2)[:, None] + np.arange(2)
    return dataclasses.replace(sample, experts=experts.astype("<i2"))


@settings(deadline=None)
@given(
    answers=st.lists(st.lists(st.integers(0, 3), min_size=1, max_size=8), min_size=1, max_size=6),
    groups=st.integers(1, 3),
    budget=st.integers(1, 60),
    share=st.sampled_from(["always", "never"]),
)
def test_records_follow_their_tokens(answers, groups, budget, share):
    samples = [
        told(make_sample(make_rollout(f"s{i}", f"g{i % groups}", range(1, 6), [answer]), i))
        for i, answer in enumerate(answers)
    ]
    last = 0
    for row in pack_rows(samples, budget, share):
        record = row_record(row)
        assert record is not None and record.shape == (row.tokens, 2, 2)
        for place, position in enumerate(row.position_ids[0].tolist()):
            span = next(span for span in row.spans if span.start <= place < span.end)
            if (
                place == span.end - 1
                and any(position == len(s.token_ids) - 1 for s in row.samples)
                and (record[place, 0, 0] == -1)
            ):
                last += 1
                continue
            assert record[place].tolist() == [[position, position + 1], [position + 1, position + 2]]
    assert last == len(samples), "each rollout's last token, and no other, has no record"


def test_a_shared_prefix_follows_the_first_rollout_that_has_a_record():
    one, two, three = (make_sample(make_rollout(f"s{i}", turns=[(i,)]), i) for i in range(3))
    (row,) = pack_rows([one, told(two, 10), told(three, 20)], 2048)
    record = row_record(row)
    assert record[:3, 0, 0].tolist() == [10, 11, 12]
    assert record[3:, 0, 0].tolist() == [-1, -1, -1], "one answer token each, which is the last"


def test_rows_without_records_have_none():
    (row,) = pack_rows([make_sample(make_rollout())], 2048)
    assert row_record(row) is None


def test_what_an_engine_does_not_know_is_no_choice():
    experts = np.array([[[0, 0], [3, 0]], [[-1, 2], [7, 7]]])
    assert is_recorded(experts).tolist() == [[False, True], [False, False]]
    assert is_recorded(np.array([[[0], [-1]]])).tolist() == [[True, False]], "of one expert a token, 0 is a choice"


def test_records_of_different_models_do_not_share_a_row():
    one = told(make_sample(make_rollout("a", "g")))
    other = dataclasses.replace(one, index=1, experts=one.experts[:, :1])
    (row,) = pack_rows([one, other], 2048)
    with pytest.raises(RolloutError, match="different shapes"):
        row_record(row)


def test_a_batch_is_read_with_its_records_when_asked(tmp_path):
    data = np.arange(6 * 2 * 2, dtype="<i2")
    rollouts = [make_rollout("a", routed_experts=data.tobytes(), routing_shape=[6, 2, 2]), make_rollout("b")]
    pq.write_table(batch_of(rollouts), tmp_path / "batch.parquet")
    table = pq.read_table(tmp_path / "batch.parquet")
    a, b = read_samples(table, routing=True)
    assert np.array_equal(a.experts, data.reshape(6, 2, 2)) and b.experts is None
    assert [s.experts for s in read_samples(table)] == [None, None]


def test_a_record_that_does_not_fit_is_refused():
    assert read_record(bytes(2 * 5 * 2), [5, 1, 2], tokens=6).shape == (5, 1, 2)
    for shape, size in (([4, 1, 2], 16), ([5, 1, 2], 18)):
        with pytest.raises(RolloutError, match="for 6 tokens"):
            read_record(bytes(size), shape, tokens=6)
