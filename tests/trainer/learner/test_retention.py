"""Which checkpoints stay."""

from hypothesis import given
from hypothesis import strategies as st

from trainer.learner.retention import Retention

STEPS = range(10, 80, 10)


def test_the_newest_stay():
    assert Retention(keep_last=2).kept(STEPS, {}) == {60: ["last"], 70: ["last"]}
    assert Retention(keep_last=9).kept([10], {}) == {10: ["last"]}
    assert Retention().kept([], {}) == {}


def test_those_of_every_so_many_steps_stay():
    assert Retention(keep_last=1, keep_every=30).kept(STEPS, {}) == {30: ["every"], 60: ["every"], 70: ["last"]}


def test_the_best_stay_and_of_equals_the_later():
    scores = {10: 0.5, 20: 0.9, 30: 0.9, 40: 0.1}
    best = Retention(keep_last=1, keep_best=2, best_metric="x")
    assert best.kept(STEPS, scores) == {20: ["best"], 30: ["best"], 70: ["last"]}
    one = Retention(keep_last=1, keep_best=1, best_metric="x")
    assert one.kept(STEPS, scores) == {30: ["best"], 70: ["last"]}


def test_the_best_may_be_the_smallest():
    scores = {10: 0.5, 20: 0.9, 30: 0.1}
    retention = Retention(keep_last=1, keep_best=1, best_metric="loss", best_is="min")
    assert retention.kept(STEPS, scores) == {30: ["best"], 70: ["last"]}


@given(
    st.sets(st.integers(1, 100), min_size=1),
    st.dictionaries(st.integers(1, 100), st.floats(0, 1)),
    st.integers(1, 5),
    st.none() | st.integers(1, 9),
    st.integers(0, 3),
)
def test_the_newest_always_stays_and_nothing_is_made_up(steps, scores, last, every, best):
    kept = Retention(last, every, best, "x").kept(steps, scores)
    assert max(steps) in kept and set(kept) <= steps
    assert len(kept) >= min(last, len(steps)) and all(kept.values())
