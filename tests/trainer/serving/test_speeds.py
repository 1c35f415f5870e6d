"""Which replica is too slow for new sessions."""

import pytest

from trainer.serving.speeds import ANSWERS, REST_SECONDS, Speeds


@pytest.fixture
def clock():
    return {"now": 0.0}


@pytest.fixture
def speeds(clock):
    return Speeds(lambda: clock["now"])


def answers(speeds, replica, seconds_a_token, times=ANSWERS):
    for _ in range(times):
        speeds.observe(replica, 10, 10 * seconds_a_token)


def test_one_that_is_much_slower_than_the_others_is_slow(speeds):
    for replica, seconds in enumerate((0.02, 0.025, 0.03, 0.2)):
        answers(speeds, replica, seconds)
    assert speeds.slow(range(4)) == {3}


def test_all_that_are_equally_slow_are_not(speeds):
    answers(speeds, 0, 2.0)
    answers(speeds, 1, 2.0)
    assert speeds.slow(range(2)) == set()


def test_of_two_only_one_can_be_slow_and_a_lone_one_never(speeds):
    answers(speeds, 0, 0.01)
    assert speeds.slow(range(2)) == set()
    answers(speeds, 1, 1.0)
    assert speeds.slow(range(2)) == {1}
    assert speeds.slow([1]) == set(), "the others are gone"


def test_a_few_answers_prove_nothing(speeds):
    answers(speeds, 0, 0.01)
    answers(speeds, 1, 1.0, times=ANSWERS - 1)
    assert speeds.slow(range(2)) == set()


def test_one_that_recovers_or_is_replaced_is_not_slow(speeds):
    answers(speeds, 0, 0.01)
    answers(speeds, 1, 1.0)
    answers(speeds, 1, 0.01, times=ANSWERS)
    assert speeds.slow(range(2)) == set()
    answers(speeds, 1, 1.0)
    speeds.forget(1)
    assert speeds.slow(range(2)) == set()


def test_one_that_was_left_alone_for_long_is_tried_again(speeds, clock):
    answers(speeds, 0, 0.01)
    answers(speeds, 1, 1.0)
    clock["now"] = REST_SECONDS
    answers(speeds, 0, 0.01)
    assert speeds.slow(range(2)) == set()
