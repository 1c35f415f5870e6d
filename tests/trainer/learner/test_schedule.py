"""Learning rates by the number of the update."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainer.learner.config import LearnerConfig
from trainer.learner.schedule import lr_factor


def factors(schedule, updates, warmup=0, total=-1, floor=0.1):
    return [lr_factor(update, schedule, warmup, total, floor) for update in range(1, updates + 1)]


@given(
    update=st.integers(1, 10_000),
    schedule=st.sampled_from(["constant", "linear", "cosine"]),
    warmup=st.integers(0, 100),
    total=st.integers(-1, 2000),
    floor=st.floats(0.001, 1),
)
def test_never_zero_and_never_above_one(update, schedule, warmup, total, floor):
    """A total of -1 or 0, updates beyond the total, a warm-up that is longer than it: the policy still learns."""
    assert 0 < lr_factor(update, schedule, warmup, total, floor) <= 1 + 1e-9


def test_warm_up_reaches_one():
    assert factors("cosine", 5, warmup=4) == [0.25, 0.5, 0.75, 1.0, 1.0]


def test_cosine_and_linear_end_at_the_floor():
    assert factors("cosine", 6, total=5, floor=0.2) == pytest.approx([1.0, 0.8828427, 0.6, 0.3171573, 0.2, 0.2])
    assert factors("linear", 6, total=5, floor=0.2) == pytest.approx([1.0, 0.8, 0.6, 0.4, 0.2, 0.2])


def test_a_schedule_takes_its_length_from_the_run():
    config = LearnerConfig(lr_schedule="cosine")
    assert config.over(30).lr_total_steps == 30
    assert LearnerConfig(lr_schedule="cosine", lr_total_steps=8).over(30).lr_total_steps == 8
