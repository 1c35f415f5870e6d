"""What trials say about the policy."""

import dataclasses
import itertools
import json
import math

import numpy as np
import pytest
from support.journals import make_result, make_run, write_trial

from harness.pool.index import TaskPointer
from harness.verifier.verdict import Status
from tasks.draw import as_groups
from tasks.evaluation import difference_interval, mean_interval, pass_at_k, stored_results, summarise, task_results
from trainer.rollout import Outcome


@pytest.mark.parametrize(("attempts", "solved"), [(4, 0), (4, 1), (5, 2), (6, 6)])
def test_pass_at_k_is_the_mean_over_all_choices_of_attempts(attempts, solved):
    results = [1] * solved + [0] * (attempts - solved)
    for k in range(1, attempts + 1):
        choices = list(itertools.combinations(results, k))
        assert pass_at_k(attempts, solved, k) == pytest.approx(sum(map(any, choices)) / len(choices))


def test_pass_at_more_than_was_tried():
    with pytest.raises(ValueError, match="pass@5 needs 5 attempts, there are 4"):
        pass_at_k(4, 1, 5)


CLUSTERS = {f"f{i}": list(np.random.default_rng(i).integers(0, 2, 4).astype(float)) for i in range(20)}


def test_the_interval_is_around_the_mean_of_cluster_means():
    interval = mean_interval(CLUSTERS)
    assert interval.mean == pytest.approx(np.mean([np.mean(v) for v in CLUSTERS.values()]))
    assert interval.low < interval.mean < interval.high
    deviation = np.std([np.mean(v) for v in CLUSTERS.values()]) / math.sqrt(len(CLUSTERS))
    assert interval.high - interval.low == pytest.approx(2 * 1.96 * deviation, rel=0.1)


def test_clusters_weigh_the_same_however_many_trials_they_have():
    assert mean_interval({"a": [1.0] * 100, "b": [0.0]}).mean == 0.5


def test_the_interval_is_the_same_again():
    assert mean_interval(CLUSTERS) == mean_interval(CLUSTERS)


def test_pairing_takes_out_what_both_share():
    """Clusters differ widely, the gain is the same in each: the paired interval is a point."""
    after = {name: [x + 0.25 for x in values] for name, values in CLUSTERS.items()}
    gain = difference_interval(CLUSTERS, after)
    assert (gain.mean, gain.low, gain.high) == pytest.approx((0.25, 0.25, 0.25))


def test_a_difference_is_after_minus_before_over_shared_clusters():
    gain = difference_interval({"a": [0.0], "b": [0.0, 1.0], "gone": [0.0]}, {"a": [1.0], "b": [1.0], "new": [0.0]})
    assert gain.mean == pytest.approx(0.75)


def test_nothing_shared():
    with pytest.raises(ValueError, match="share no task"):
        difference_interval({"a": [0.0]}, {"b": [1.0]})


@pytest.fixture
def evaluation(tmp_path):
    """Two tasks of one function and one of another, four attempts each."""
    run, label = make_run(tmp_path), "eval_step_000004"
    pool = [TaskPointer(n, tmp_path / n, extra={"function": f}) for n, f in (("x1", "x"), ("x2", "x"), ("y1", "y"))]
    solved = {"x1": 4, "x2": 1, "y1": 0}
    trials = [
        write_trial(
            run, label, make_result(f"{name}-{i}", f"{label}/{name}"), Status.PASSED if i < n else Status.FAILED
        )
        for name, n in solved.items()
        for i in range(4)
    ]
    return run, label, as_groups(pool, label, 4), trials


def test_summary(evaluation):
    _, _, groups, trials = evaluation
    summary = summarise(trials, groups)
    assert summary["mean_reward"] == pytest.approx(5 / 12)
    assert (summary["tasks"], summary["scored"], summary["launched"], summary["coverage"]) == (3, 12, 12, 1.0)
    assert summary["pass_at_1"] == pytest.approx(2 / 3)  # the first attempts of x1 and x2 solved them
    assert summary["pass_at_2"] == pytest.approx((1 + 1 / 2 + 0) / 3)
    assert summary["pass_at_4"] == pytest.approx(2 / 3)
    assert "pass_at_8" not in summary
    assert summary["clusters"] == {"x": [1.0] * 5 + [0.0] * 3, "y": [0.0] * 4}
    assert summary["mean_response_length"] == 2.0
    assert summary["outcomes"] == {
        "solved": {"completed": 5},
        "policy": {"failed": {"completed": 7}},
        "infrastructure": {},
    }
    assert stored_results(json.loads(json.dumps(summary))) == task_results(trials, groups)


def test_the_first_attempt_is_the_one_that_began_first(evaluation):
    """Not the one that ended first, nor the first by name; tries that infrastructure spoiled count from their begin."""
    run, label, groups, _ = evaluation
    label = label.replace("4", "5")
    groups = [dataclasses.replace(group, group_id=group.group_id.replace("4", "5")) for group in groups[:1]]
    began = {"a": (100.0, 0.0), "b": (120.0, 90.0), "c": (60.0, 0.0)}  # b was tried again for 90 s
    trials = [
        write_trial(
            run,
            label,
            make_result(f"x1-{name}", f"{label}/x1", started_at=at, timings={"retries": retries}),
            Status.PASSED if name == "b" else Status.FAILED,
        )
        for name, (at, retries) in began.items()
    ]
    assert task_results(trials, groups)["x1"].attempts == [1.0, 0.0, 0.0]
    assert summarise(trials, groups)["pass_at_1"] == 1.0


def test_parts_of_the_pool(evaluation):
    *_, groups, trials = evaluation
    parts = summarise(trials, [dataclasses.replace(g, difficulty=g.cluster) for g in groups])["parts"]
    assert parts["repository"] == {}
    assert {name: part["tasks"] for name, part in parts["difficulty"].items()} == {"x": 2, "y": 1}
    assert parts["difficulty"]["x"]["pass_at"]["1"]["value"] == 1.0


def test_trials_that_infrastructure_spoiled_are_counted_and_not_failures(evaluation):
    run, label, groups, trials = evaluation
    trials = [
        *trials[1:],
        write_trial(run, label, make_result("x1-0", f"{label}/x1", outcome=Outcome.INFRA_ERROR), None),
    ]
    summary = summarise(trials, groups)
    assert summary["mean_reward"] == pytest.approx(4 / 11)
    assert summary["left_out"] == {"infra_error": 1}
    assert (summary["scored"], summary["coverage"]) == (11, 11 / 12)
    assert summary["outcomes"]["infrastructure"] == {"infra_error": 1}
    assert summary["pass_at_4"] == pytest.approx(1 / 2)  # of x2 and y1 alone, and it says so
    assert (summary["pass_at"]["4"]["scored"], summary["pass_at"]["4"]["tasks"]) == (2, 3)
    # x1's first attempt is now the one that began first of the three that are left
    assert (summary["pass_at"]["1"]["scored"], summary["pass_at"]["1"]["coverage"]) == (3, 1.0)


def test_nothing_scored(evaluation):
    summary = summarise([], evaluation[2])
    assert math.isnan(summary["mean_reward"])
    assert summary["coverage"] == 0.0 and summary["clusters"] == {}
