"""Paired tests, against scipy; and that no difference is called which they do not support."""

import itertools

import numpy as np
import pytest
from scipy import stats

from tasks.statistics.paired import compare, mcnemar, permutation
from tasks.statistics.pass_rates import TaskResult


def singles(outcomes, cluster=str):
    return {f"t{i}": TaskResult(cluster(i), [x]) for i, x in enumerate(outcomes)}


def groups(rows, cluster=str):
    return {f"t{i}": TaskResult(cluster(i), list(row)) for i, row in enumerate(rows)}


@pytest.mark.parametrize(("won", "lost"), [(0, 0), (1, 0), (5, 0), (6, 0), (7, 2), (3, 3), (40, 22), (600, 500)])
def test_mcnemar_is_the_exact_binomial_test(won, lost):
    expected = stats.binomtest(won, won + lost, 0.5).pvalue if won + lost else 1.0
    assert mcnemar(won, lost) == pytest.approx(expected, rel=1e-9)
    assert mcnemar(won, lost) == mcnemar(lost, won)


def test_few_clusters_are_turned_round_in_all_ways_as_by_scipy():
    sums = np.random.default_rng(1).normal(0.3, 1, 9)
    expected = stats.permutation_test(
        (sums, np.zeros(9)), lambda x, y: np.mean(x - y), permutation_type="samples", n_resamples=np.inf
    )
    assert permutation(sums) == pytest.approx(expected.pvalue)
    by_hand = [abs(np.dot(signs, sums)) >= abs(sums.sum()) - 1e-9 for signs in itertools.product((1, -1), repeat=9)]
    assert permutation(sums) == np.mean(by_hand)


def test_many_clusters_are_turned_round_at_random():
    sums = np.random.default_rng(2).normal(0.25, 1, 60)
    assert permutation(sums) == pytest.approx(stats.ttest_1samp(sums, 0).pvalue, abs=0.02)
    assert permutation([1.0] * 40) == pytest.approx(1 / 20_001)
    assert permutation(sums) == permutation(sums)


def test_of_single_attempts_permutation_and_mcnemar_are_the_same_test():
    assert permutation([1.0] * 8 + [-1.0] * 3 + [0.0] * 50) == pytest.approx(mcnemar(8, 3))


def test_a_test_at_5_percent_errs_about_so_often():
    rng = np.random.default_rng(5)
    wrong = sum(permutation(rng.normal(size=10)) <= 0.05 for _ in range(400))
    assert wrong / 400 == pytest.approx(0.05, abs=0.03)


def test_one_attempt_at_unrelated_tasks_is_mcnemars():
    found = compare(singles([0.0] * 12 + [1.0] * 3 + [1.0]), singles([1.0] * 12 + [1.0] * 3 + [0.0]))
    assert (found.test, found.won, found.lost, found.better, found.why) == ("McNemar, exact", 12, 1, "second", "")
    assert found.p_value == mcnemar(12, 1)
    assert found.gain.mean == pytest.approx(11 / 16)


def test_the_other_way_round():
    found = compare(singles([1.0] * 10), singles([0.0] * 10))
    assert (found.better, found.gain.mean) == ("first", -1.0)


def test_related_tasks_count_as_one():
    """Thirty tasks, all gained, but of three functions: three coins that fell the same way."""
    related = {"cluster": lambda i: str(i // 10)}
    found = compare(singles([0.0] * 30, **related), singles([1.0] * 30, **related))
    assert (found.test, found.clusters, found.better) == ("permutation, exact", 3, None)
    assert "3 independent tasks only" in found.why and "0.25" in found.why


def test_several_attempts():
    rng = np.random.default_rng(7)
    first = groups((rng.random((40, 4)) < 0.3).astype(float))
    second = groups((rng.random((40, 4)) < 0.7).astype(float))
    found = compare(first, second)
    assert (found.test, found.better) == ("permutation", "second")
    assert found.gain.mean == pytest.approx(
        np.mean([np.mean(second[t].attempts) - np.mean(first[t].attempts) for t in first])
    )


def test_chance_is_not_called_a_difference():
    rng = np.random.default_rng(8)
    found = compare(*(groups((rng.random((40, 4)) < 0.5).astype(float)) for _ in range(2)))
    assert found.better is None and "chance alone" in found.why


@pytest.mark.parametrize("differing", range(1, 6))
def test_five_tasks_that_differ_are_never_enough(differing):
    found = compare(singles([0.0] * differing + [1.0] * 50), singles([1.0] * (differing + 50)))
    assert found.better is None and f"differ on {differing} independent tasks only" in found.why
    assert compare(singles([0.0] * 6 + [1.0] * 50), singles([1.0] * 56)).better == "second"


def test_no_difference_at_all():
    same = singles([1.0, 0.0])
    assert compare(same, same).why == "they did not differ on any task"


def test_trials_that_were_not_scored_could_turn_it_round():
    first, second = [0.0] * 8 + [1.0] * 20, [1.0] * 28
    assert compare(singles(first), singles(second)).better == "second"
    found = compare(singles(first + [1.0] * 8), singles(second + [None] * 8))
    assert found.better is None and "not scored" in found.why
    assert (found.paired, found.tasks) == (28, 36)
    assert compare(singles(first + [1.0] * 7), singles(second + [None] * 7)).better == "second"


def test_only_shared_tasks_are_compared():
    found = compare(singles([1.0, 0.0]) | {"mine": TaskResult("m", [1.0])}, singles([1.0, 0.0]))
    assert found.tasks == 2
    with pytest.raises(ValueError, match="no task is scored in both"):
        compare(singles([None]), singles([1.0]))
