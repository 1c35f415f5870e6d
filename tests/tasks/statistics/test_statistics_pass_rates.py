"""pass@1 from first attempts, pass@k without bias, and what they speak of."""

import numpy as np
import pytest

from tasks.statistics.intervals import wilson
from tasks.statistics.pass_rates import TaskResult, any_of_k, by_part, first_attempts, pass_at_k, rates

LOST = None


def results(*attempts, cluster=str, **fields):
    return {f"t{i}": TaskResult(cluster(i), list(made), **fields) for i, made in enumerate(attempts)}


def test_only_the_first_attempt_counts_for_pass_at_1():
    rate = first_attempts(results([1.0, 0.0, 0.0], [0.0, 1.0, 1.0], [0.0, 1.0, 1.0], [0.0, 0.0, 0.0]))
    assert (rate.value, rate.scored, rate.tasks, rate.coverage) == (0.25, 4, 4, 1.0)
    assert rate.wilson == wilson(1, 4)


def test_a_spoiled_first_attempt_is_not_replaced_by_the_second():
    rate = first_attempts(results([LOST, 1.0], [LOST, 1.0], [0.0, 1.0], []))
    assert (rate.value, rate.scored, rate.tasks) == (0.0, 1, 4)


def test_nothing_scored():
    assert first_attempts(results([LOST], [])) is None
    assert any_of_k(results([1.0, LOST]), 2) is None
    assert rates({}) == {}


def test_pass_at_k_is_of_the_tasks_that_have_as_many_attempts():
    rate = any_of_k(results([1.0, 0.0, 0.0, 0.0], [0.0, 1.0, LOST, 1.0], [LOST, LOST, LOST, 1.0]), 2)
    assert rate.value == pytest.approx((pass_at_k(4, 1, 2) + pass_at_k(3, 2, 2)) / 2)
    assert (rate.scored, rate.tasks, rate.wilson) == (2, 3, None)


def test_pass_at_k_has_no_bias():
    """Best of n would give 1 - (1 - p)^n; the estimate from n attempts is that of k."""
    rng, chance = np.random.default_rng(0), 0.2
    solved = (rng.random((4000, 8)) < chance).sum(1)
    assert np.mean([pass_at_k(8, int(c), 2) for c in solved]) == pytest.approx(1 - (1 - chance) ** 2, abs=0.01)


def test_rates_go_as_far_as_attempts_were_made():
    assert list(rates(results([1.0] * 5, [0.0] * 5))) == [1, 2, 4]
    assert list(rates(results([1.0], [0.0]))) == [1]


def test_related_tasks_make_the_interval_wider():
    made = [[float(i // 10 % 2)] for i in range(100)]
    apart, together = first_attempts(results(*made)), first_attempts(results(*made, cluster=lambda i: str(i // 10)))
    assert apart.clusters == 100 and together.clusters == 10
    width = together.interval.high - together.interval.low
    assert width > 2 * (apart.interval.high - apart.interval.low)
    assert together.interval == together.bootstrap


def test_clusters_that_all_came_out_alike_do_not_make_it_certain():
    rate = first_attempts(results(*[[0.0]] * 20, cluster=lambda i: str(i // 10)))
    assert rate.interval == wilson(0, 2)
    rate = any_of_k(results(*[[1.0, 1.0]] * 20, cluster=lambda i: str(i // 10)), 2)
    assert rate.interval == wilson(2, 2)


def test_parts():
    tasks = results([1.0], difficulty="easy") | {"x": TaskResult("x", [0.0]), "y": TaskResult("y", [0.0], "r", "hard")}
    assert {name: set(part) for name, part in by_part(tasks, "difficulty").items()} == {
        "(not told)": {"x"},
        "easy": {"t0"},
        "hard": {"y"},
    }
    assert by_part(results([1.0], [0.0]), "repository") == {}


def test_json_round_trip():
    result = TaskResult("c", [1.0, LOST], "r", "hard")
    assert TaskResult(**result.to_json()) == result
