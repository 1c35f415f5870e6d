"""Weights and rejection against loops over lists."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from trainer.algorithms.rollout_correction import correct as correct_module
from trainer.algorithms.rollout_correction import segments as segments_module
from trainer.algorithms.rollout_correction.config import RejectionRule, RolloutCorrectionConfig
from trainer.algorithms.rollout_correction.correct import Correction, CorrectionError, correct
from trainer.algorithms.rollout_correction.segments import SegmentError, Segments

LOGPROB = st.floats(-12.0, 0.0, width=32)
ROLLOUTS = st.lists(st.lists(st.tuples(LOGPROB, LOGPROB), max_size=6), min_size=1, max_size=12)
RULES = [
    RejectionRule(over=over, statistic=statistic, high=1.5, low=-1.5 if statistic == "k1" and over != "max" else None)
    for over in ("sum", "mean", "max")
    for statistic in ("k1", "k2", "k3")
]


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch):
    """Rollouts are cut by blocks, and blocks hold several rollouts."""
    for module in (segments_module, correct_module):
        monkeypatch.setattr(module, "BLOCK", 5)
    monkeypatch.setattr(segments_module, "_FEW", 2)


def run(rollouts, config) -> Correction:
    old = torch.tensor([a for rollout in rollouts for a, _ in rollout], dtype=torch.float64)
    sampled = torch.tensor([b for rollout in rollouts for _, b in rollout], dtype=torch.float64)
    owners = [i for i, rollout in enumerate(rollouts) for _ in rollout]
    return correct(old, sampled, torch.tensor(owners, dtype=torch.long), len(rollouts), config)


def slow_weight(log_ratio, low, high, outside):
    weight = math.exp(max(-20.0, min(20.0, log_ratio)))
    if outside == "mask":
        return weight if (low or 0.0) <= weight <= high else 0.0
    return min(max(weight, low or 0.0), high)


def slow_statistic(rollout, rule):
    values = []
    for old, sampled in rollout:
        x = max(-20.0, min(20.0, old - sampled))
        values.append({"k1": -x, "k2": x * x / 2, "k3": math.exp(x) - 1 - x}[rule.statistic])
    if not values:
        return 0.0
    if rule.over == "max":
        return max(values)
    return sum(values) / (len(values) if rule.over == "mean" else 1)


@given(
    ROLLOUTS,
    st.sampled_from(["token", "sequence"]),
    st.sampled_from([None, 0.4]),
    st.sampled_from(["truncate", "mask"]),
)
@settings(max_examples=60, deadline=None)
def test_weights_are_those_of_a_loop(rollouts, weights, low, outside):
    config = RolloutCorrectionConfig(weights=weights, low=low, high=2.5, outside=outside)
    correction = run(rollouts, config)
    expected = []
    for rollout in rollouts:
        total = sum(old - sampled for old, sampled in rollout)
        for old, sampled in rollout:
            expected.append(slow_weight(old - sampled if weights == "token" else total, low, 2.5, outside))
    assert correction.weights.dtype == torch.float32
    assert correction.weights.tolist() == pytest.approx(expected, rel=1e-5)
    assert correction.factors.tolist() == pytest.approx(expected, rel=1e-5)
    assert correction.keep.tolist() == [weight > 0 for weight in expected]


@given(ROLLOUTS, st.lists(st.sampled_from(RULES), min_size=1, max_size=3, unique_by=lambda rule: rule.name))
@settings(max_examples=60, deadline=None)
def test_all_rules_must_accept(rollouts, rules):
    correction = run(rollouts, RolloutCorrectionConfig(weights="none", reject=rules))
    accepted = []
    for i, rollout in enumerate(rollouts):
        verdicts = []
        for rule in rules:
            statistic = slow_statistic(rollout, rule)
            assert float(correction.statistics[rule.name][i]) == pytest.approx(statistic, rel=1e-9, abs=1e-9)
            verdicts.append(statistic <= rule.high and (rule.low is None or statistic >= rule.low))
        accepted.append(all(verdicts))
    assert correction.accepted.tolist() == accepted
    assert correction.keep.tolist() == [accepted[i] for i, rollout in enumerate(rollouts) for _ in rollout]
    assert (correction.weights == 1).all()


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.name)
def test_each_rule_rejects_what_differs_and_accepts_what_agrees(rule):
    agrees, differs = [(-1.0, -1.001), (-0.5, -0.5)], [(-9.0, -1.0), (-0.5, -0.5)]
    correction = run([agrees, differs], RolloutCorrectionConfig(reject=[rule]))
    assert correction.accepted.tolist() == [True, False]
    assert correction.factors.tolist()[2:] == [0.0, 0.0]


def test_icepop_is_zero_outside_and_the_ratio_inside():
    rollouts = [[(math.log(w), 0.0)] for w in (0.49, 0.51, 1.0, 4.9, 5.1)]
    correction = run(rollouts, RolloutCorrectionConfig(low=0.5, high=5.0, outside="mask"))
    assert correction.weights.tolist() == pytest.approx([0.0, 0.51, 1.0, 4.9, 0.0], rel=1e-6)
    assert correction.keep.tolist() == [False, True, True, True, False]


@pytest.mark.parametrize("weights", ["token", "sequence"])
def test_masking_and_rejection_both_drop(weights):
    rule = RejectionRule(over="max", statistic="k2", high=0.1)
    config = RolloutCorrectionConfig(weights=weights, low=0.5, high=9.0, outside="mask", reject=[rule])
    correction = run(
        [[(-1.0, -3.0)], [(-1.3, -1.0), (-1.2, -1.0)], [(-0.8, -0.7)], [(-1.3, -1.0), (-1.5, -1.1)]], config
    )
    assert correction.accepted.tolist() == [False, True, True, True]
    kept = [False, True, True, True, *([True] * 2 if weights == "token" else [False] * 2)]
    assert correction.keep.tolist() == kept
    assert (correction.factors > 0).tolist() == kept


@pytest.mark.parametrize("mode", ["off", "bypass"])
def test_without_weights_they_are_ones(mode):
    correction = run([[(-1.0, -3.0)], [(-3.0, -1.0)]], RolloutCorrectionConfig(mode=mode))
    assert correction.factors.tolist() == [1.0, 1.0]


def test_bypass_rejects_all_the_same():
    rule = RejectionRule(over="max", statistic="k2", high=0.1)
    correction = run([[(-1.0, -3.0)], [(-1.0, -1.0)]], RolloutCorrectionConfig(mode="bypass", reject=[rule]))
    assert correction.weights.tolist() == [1.0, 1.0] and correction.factors.tolist() == [0.0, 1.0]


@pytest.mark.parametrize("weights", ["token", "sequence"])
@pytest.mark.parametrize("outside", ["truncate", "mask"])
def test_extreme_ratios_stay_finite(weights, outside):
    config = RolloutCorrectionConfig(weights=weights, outside=outside, high=1e9, reject=RULES)
    old, sampled = torch.tensor([-1e4, 0.0, -0.5]), torch.tensor([0.0, -1e4, -math.inf])
    for owners, count in (([0, 1, 2], 3), ([0, 0, 1], 2)):
        correction = correct(old, sampled, torch.tensor(owners), count, config)
        assert torch.isfinite(correction.factors).all()
        assert all(torch.isfinite(statistic).all() for statistic in correction.statistics.values())


@pytest.mark.parametrize("weights", ["none", "token", "sequence"])
def test_nothing_has_a_gradient(weights):
    config = RolloutCorrectionConfig(weights=weights, reject=RULES)
    old = torch.tensor([-1.0, -2.0, -3.0], requires_grad=True)
    correction = correct(old, torch.tensor([-1.5, -2.0, -2.5]), torch.tensor([0, 0, 1]), 2, config)
    for tensor in (correction.weights, correction.factors, *correction.statistics.values()):
        assert not tensor.requires_grad
    losses = correction.apply(old)
    losses.sum().backward()
    assert old.grad.tolist() == correction.factors.tolist()


@given(ROLLOUTS, st.randoms(use_true_random=False), st.sampled_from(["token", "sequence"]))
@settings(max_examples=40, deadline=None)
def test_neither_order_nor_cutting_into_rows_matters(rollouts, random, weights):
    config = RolloutCorrectionConfig(weights=weights, low=0.5, reject=RULES[:3])
    whole = run(rollouts, config)
    by_rollout = whole.factors.split([len(rollout) for rollout in rollouts])
    order = list(range(len(rollouts)))
    random.shuffle(order)
    shuffled = run([rollouts[i] for i in order], config)
    assert torch.equal(shuffled.accepted, whole.accepted[order])
    assert shuffled.factors.tolist() == pytest.approx(torch.cat([by_rollout[i] for i in order]).tolist(), rel=1e-6)
    rows = [run([rollout], config).factors for rollout in rollouts]
    assert torch.cat(rows).tolist() == pytest.approx(whole.factors.tolist(), rel=1e-6)


def test_nothing_sampled():
    correction = correct(torch.empty(0), torch.empty(0), torch.empty(0, dtype=torch.long), 0, RolloutCorrectionConfig())
    assert len(correction.factors) == 0


def test_bfloat16_columns_are_read():
    correction = correct(
        torch.tensor([-1.0, -2.0], dtype=torch.bfloat16), torch.tensor([-2.0, -2.0]), torch.tensor([0, 0]), 1,
        RolloutCorrectionConfig(high=10.0),
    )  # fmt: skip
    assert correction.weights.tolist() == pytest.approx([math.e, 1.0])


def test_columns_that_do_not_fit_raise():
    with pytest.raises(CorrectionError, match="2 log-probs of the trainer, 1 of the engine"):
        correct(torch.zeros(2), torch.zeros(1), torch.zeros(2, dtype=torch.long), 1, RolloutCorrectionConfig())


@pytest.mark.parametrize(
    ("index", "count", "message"),
    [([0, 1, 0], 2, "must not decrease"), ([0, 1, 2], 2, "from 0 to 2"), ([-1, 0], 1, "from -1")],
)
def test_interleaved_or_unknown_rollouts_raise(index, count, message):
    with pytest.raises(SegmentError, match=message):
        Segments.of_index(torch.tensor(index), count)


def test_a_decrease_at_the_edge_of_a_block_is_seen():
    with pytest.raises(SegmentError, match="must not decrease"):
        Segments.of_index(torch.tensor([0] * 2 + [1] * 3 + [0] * 4 + [1]), 2)


@given(st.lists(st.integers(0, 13), min_size=1, max_size=20))
@settings(max_examples=60, deadline=None)
def test_segments_reduce_as_loops_do(lengths):
    values = torch.arange(sum(lengths), dtype=torch.float64) - 7
    parts = [part.tolist() for part in values.split(lengths)]
    index = torch.repeat_interleave(torch.arange(len(lengths)), torch.tensor(lengths))
    for segments in (Segments.of_lengths(torch.tensor(lengths)), Segments.of_index(index, len(lengths))):
        sums, maxima = (
            torch.zeros(len(segments.owners)).double().numpy(),
            torch.full((len(segments.owners),), -1e9).numpy(),
        )
        for block in segments.blocks():
            block.add_sums(values[block.tokens], sums)
            block.raise_maxima(values[block.tokens], maxima)
        assert segments.spread(sums).tolist() == [sum(part) for part in parts]
        assert segments.spread(maxima).tolist() == [max(part, default=0.0) for part in parts]
        assert segments.lengths.tolist() == [length for length in lengths if length]


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"low": 3.0}, "not below high"),
        ({"high": 0.5}, "lacks 1"),
        ({"low": 1.5}, "lacks 1"),
        ({"high": math.inf}, "finite"),
        ({"high": 1.0, "outside": "mask"}, "a bound is 1"),
        ({"mode": "off", "reject": [RULES[0]]}, "mode is off"),
        ({"reject": [RULES[0], RULES[0]]}, "two rules named seq_sum_k1"),
    ],
)
def test_configs_that_cannot_be_meant(fields, message):
    with pytest.raises(ValidationError, match=message):
        RolloutCorrectionConfig(**fields)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"statistic": "k1", "high": 0.1}, "has two sides"),
        ({"statistic": "k1", "high": 0.1, "low": 0.0}, "set it below 0"),
        ({"statistic": "k3", "high": 0.1, "low": 0.01}, "leave it out"),
        ({"statistic": "k1", "over": "max", "high": 0.1, "low": -0.1}, "leave it out"),
        ({"statistic": "k2", "high": 0.0}, "above 0"),
        ({"statistic": "k2", "high": math.nan}, "above 0"),
    ],
)
def test_rules_that_cannot_be_meant(fields, message):
    with pytest.raises(ValidationError, match=message):
        RejectionRule(**{"over": "mean"} | fields)


def test_one_side_of_k1_can_be_tested():
    assert RejectionRule(over="sum", statistic="k1", low=-math.inf, high=0.1).name == "seq_sum_k1"
