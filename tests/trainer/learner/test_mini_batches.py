"""A mini-batch is so many trials, in however many segments each."""

import pytest
from support.rollouts import batch_of, make_rollout

from trainer.learner.samples import mini_batches, read_samples


def samples_of(segments):
    """A trial for each entry, with so many segments."""
    rollouts = [
        make_rollout(f"s-{trial}", segment=segment, num_segments=count)
        for trial, count in enumerate(segments)
        for segment in range(count)
    ]
    return read_samples(batch_of(rollouts, rewards=[0.0] * len(rollouts)))


def sessions(parts):
    return [[sample.session_id for sample in part] for part in parts]


def test_segments_change_no_number_of_steps():
    assert sessions(mini_batches(samples_of([1, 1, 1, 1]), 2)) == [["s-0", "s-1"], ["s-2", "s-3"]]
    assert sessions(mini_batches(samples_of([3, 1, 2, 1]), 2)) == [["s-0"] * 3 + ["s-1"], ["s-2"] * 2 + ["s-3"]]


@pytest.mark.parametrize(
    ("trials", "size", "sizes"), [(513, 128, [128, 128, 128, 129]), (9, 4, [4, 5]), (3, 8, [3]), (7, 2, [1, 2, 2, 2])]
)
def test_no_few_that_are_left_over_take_a_step_of_their_own(trials, size, sizes):
    parts = mini_batches(samples_of([1] * trials), size)
    assert sorted(len(part) for part in parts) == sizes
    assert [sample.session_id for part in parts for sample in part] == sorted(f"s-{i}" for i in range(trials))


def test_without_a_size_there_is_one():
    assert sessions(mini_batches(samples_of([2, 1]), None)) == [["s-0", "s-0", "s-1"]]
    assert mini_batches([], None) == []
