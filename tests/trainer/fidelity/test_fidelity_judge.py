"""Which steps count as unfaithful, and how many of them are in a row."""

import math

import pytest
from pydantic import ValidationError

from trainer.fidelity.causes import Suspicion
from trainer.fidelity.config import FidelityConfig
from trainer.fidelity.gate import stop_message, warning
from trainer.fidelity.judge import MAX_DIFF, MEAN_DIFF, PEARSON, shortfalls, steps_below

CONFIG = FidelityConfig(threshold=0.99, max_mean_diff=0.02, max_diff=0.5)


def measured(pearson=0.995, mean=0.01, largest=0.4):
    return {PEARSON: pearson, MEAN_DIFF: mean, MAX_DIFF: largest}


GOOD, BAD, NOTHING = measured(), measured(pearson=0.9), {"critic/score/mean": 0.5}


def test_each_limit_is_named_with_its_value():
    assert shortfalls(GOOD, CONFIG) == []
    for metrics, name in (
        (BAD, "0.9000, below fidelity.threshold 0.99"),
        (measured(mean=0.03), "0.03, above fidelity.max_mean_diff 0.02"),
        (measured(largest=0.6), "0.6, above fidelity.max_diff 0.5"),
    ):
        (text,) = shortfalls(metrics, CONFIG)
        assert name in text
    assert shortfalls(measured(mean=0.9, largest=0.9), FidelityConfig()) == []


def test_a_step_without_rollouts_is_not_judged():
    assert shortfalls(NOTHING, CONFIG) is None


def test_a_correlation_that_does_not_exist_counts_where_the_probabilities_differ():
    assert shortfalls(measured(pearson=math.nan, mean=0.001), FidelityConfig()) == []
    (text,) = shortfalls(measured(pearson=math.nan, mean=0.3), FidelityConfig())
    assert "does not exist" in text


@pytest.mark.parametrize(
    "newest_first, count",
    [
        ([], 0),
        ([GOOD, BAD, BAD], 0),
        ([BAD, BAD, GOOD, BAD], 2),
        ([BAD, NOTHING, BAD, GOOD], 2),
        ([NOTHING, NOTHING], 0),
    ],
)
def test_steps_in_a_row(newest_first, count):
    assert steps_below(newest_first, CONFIG) == count


def test_the_error_names_the_cause_its_evidence_and_the_mend():
    found = [Suspicion("temperature", 0.9, "it is 0.7", "set it to 1"), Suspicion("template", 0.2, "a bit", "look")]
    text = stop_message(["Pearson is low"], 12, 3, found, CONFIG)
    assert "for 3 steps in a row, so training stops after step 12: Pearson is low." in text
    assert "Likely cause: temperature (it is 0.7).\nset it to 1." in text
    assert "Less likely: template (a bit)" in text and "fidelity.patience" in text
    assert "Likely cause: unknown" in stop_message(["x"], 1, 1, [], CONFIG)


def test_the_warning_counts_towards_the_stop():
    text = warning(["Pearson is low"], 2, [], False, FidelityConfig(patience=3))
    assert "step 2 in a row, the run stops at 3" in text and "next step is scored" in text
    assert "stops at" not in warning(["Pearson is low"], 2, [], True, FidelityConfig(patience=None))


def test_limits_that_cannot_be_are_refused():
    for wrong in ({"threshold": 1.5}, {"patience": 0}, {"max_diff": 0}, {"treshold": 0.9}):
        with pytest.raises(ValidationError):
            FidelityConfig(**wrong)
