"""Sampler against trainer: the numbers are those of loops over lists, and add over rows."""

import math
from itertools import chain

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from trainer.algorithms.mismatch import MismatchSums
from trainer.algorithms.rollout_correction import segments as segments_module
from trainer.algorithms.rollout_correction.config import RejectionRule, RolloutCorrectionConfig
from trainer.algorithms.rollout_correction.correct import correct

OFF = RolloutCorrectionConfig(mode="off")
RULES = [
    RejectionRule(over="mean", statistic="k1", low=-0.3, high=0.3),
    RejectionRule(over="sum", statistic="k3", high=0.5),
    RejectionRule(over="max", statistic="k2", high=1.0),
]
CONFIGS = [
    OFF,
    RolloutCorrectionConfig(mode="bypass", reject=RULES),
    RolloutCorrectionConfig(),
    RolloutCorrectionConfig(low=0.8, high=1.5, outside="mask", reject=RULES[:1]),
    RolloutCorrectionConfig(weights="sequence", high=3.0, reject=RULES[1:]),
    RolloutCorrectionConfig(weights="sequence", low=0.5, high=2.0, outside="mask"),
]
PAIR = st.tuples(st.floats(-6.0, -0.01), st.floats(-1.0, 1.0)).map(lambda pair: (pair[0], min(pair[0] + pair[1], 0.0)))
ROLLOUTS = st.lists(st.lists(PAIR, max_size=7), min_size=1, max_size=9).filter(any)


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch):
    """Rollouts are cut by blocks, and blocks hold several rollouts."""
    monkeypatch.setattr(segments_module, "BLOCK", 5)
    monkeypatch.setattr(segments_module, "_FEW", 2)


def add(sums, rollouts):
    old = torch.tensor([a for rollout in rollouts for a, _ in rollout], dtype=torch.float64)
    sampled = torch.tensor([b for rollout in rollouts for _, b in rollout], dtype=torch.float64)
    owners = torch.tensor([i for i, rollout in enumerate(rollouts) for _ in rollout], dtype=torch.long)
    correction = correct(old, sampled, owners, len(rollouts), sums.config)
    sums.add(old, sampled, owners, len(rollouts), correction)


def metrics(config, *rows):
    sums = MismatchSums.zero(config)
    for row in rows:
        add(sums, row)
    return sums.metrics()


@pytest.mark.parametrize("chosen", [[True, False, True, True, False, True, True, False], [False] * 8])
def test_agreement_is_measured_on_tokens_of_the_present_weights_and_all_else_on_all(chosen):
    old = torch.linspace(-2.0, -0.1, 8, dtype=torch.float64)
    rollout, fresh = old.flip(0), torch.tensor(chosen)
    rollout[fresh] = old[fresh] + 1e-9
    owners, config = torch.zeros(8, dtype=torch.long), RolloutCorrectionConfig()
    correction = correct(old, rollout, owners, 1, config)
    sums, everything = MismatchSums.zero(config), MismatchSums.zero(config)
    sums.add(old, rollout, owners, 1, correction, fresh)
    everything.add(old, rollout, owners, 1, correction)
    found, of_all = sums.metrics(), everything.metrics()
    agreement = {name for name in of_all if name.startswith("training/rollout_")}
    assert {name: found[name] for name in of_all.keys() - agreement} == {
        name: of_all[name] for name in of_all.keys() - agreement
    }
    if not any(chosen):
        assert not agreement & found.keys()
        return
    assert (
        found["training/rollout_actor_probs_pearson_corr"] > 0.9999 and found["training/rollout_probs_diff_max"] < 1e-8
    )
    assert of_all["training/rollout_actor_probs_pearson_corr"] < 0.9


def bound(raw, config):
    low, high = config.low or 0.0, config.high
    return min(max(raw, low), high) if config.outside == "truncate" else raw * (low <= raw <= high)


def mean(values):
    return sum(values) / len(values)


def std(values, sample=False):
    if len(values) == 1:
        return 0.0
    return math.sqrt(sum((v - mean(values)) ** 2 for v in values) / (len(values) - sample))


def share(values, holds):
    return sum(map(holds, values)) / len(values)


def slow_metrics(rollouts, config):
    """Every metric but the correlation, from the formulas."""
    rollouts = [rollout for rollout in rollouts if rollout]
    tokens = [pair for rollout in rollouts for pair in rollout]
    gaps = [mean([b - a for a, b in rollout]) for rollout in rollouts]
    products = [math.exp(sum(a - b for a, b in rollout)) for rollout in rollouts]
    differences = [abs(math.exp(a) - math.exp(b)) for a, b in tokens]
    result = {
        "training/rollout_probs_diff_mean": mean(differences),
        "training/rollout_probs_diff_max": max(differences),
        "training/rollout_probs_diff_std": std(differences),
        "rollout_corr/kl": mean([b - a for a, b in tokens]),
        "rollout_corr/k3_kl": mean([math.exp(a - b) - (a - b) - 1 for a, b in tokens]),
        "rollout_corr/chi2_token": mean([math.exp(a - b) ** 2 for a, b in tokens]) - 1,
        "rollout_corr/chi2_seq": mean([product**2 for product in products]) - 1,
        "rollout_corr/training_ppl": mean([math.exp(-mean([a for a, _ in rollout])) for rollout in rollouts]),
        "rollout_corr/training_log_ppl": mean([-mean([a for a, _ in rollout]) for rollout in rollouts]),
        "rollout_corr/rollout_ppl": mean([math.exp(-mean([b for _, b in rollout])) for rollout in rollouts]),
        "rollout_corr/rollout_log_ppl": mean([-mean([b for _, b in rollout]) for rollout in rollouts]),
        "rollout_corr/log_ppl_diff": mean(gaps),
        "rollout_corr/log_ppl_abs_diff": mean([abs(gap) for gap in gaps]),
        "rollout_corr/log_ppl_diff_max": max(gaps),
        "rollout_corr/log_ppl_diff_min": min(gaps),
        "rollout_corr/ppl_ratio": mean([math.exp(gap) for gap in gaps]),
    }
    if config.mode == "decoupled" and config.weights != "none":
        result |= slow_weights(rollouts, products, config)
    if config.reject:
        result |= slow_rejection(rollouts, config)
    return result


def slow_weights(rollouts, products, config):
    by_token = config.weights == "token"
    raw = [
        [math.exp(a - b) if by_token else product for a, b in rollout]
        for rollout, product in zip(rollouts, products, strict=True)
    ]
    applied = [[bound(weight, config) for weight in weights] for weights in raw]
    flat_raw, flat = list(chain(*raw)), list(chain(*applied))
    kept = [weight for weight in flat if weight > 0] if by_token else products
    of_rollouts = [mean(weights) for weights in applied]
    kept_rollouts = [weight for weight in of_rollouts if weight > 0]
    low = config.low or 1 / config.high
    counted = flat_raw if by_token else products
    result = {
        "mean": mean(flat),
        "std": std(flat),
        "eff_sample_size": 1 / mean([(w / (mean(flat) + 1e-8)) ** 2 for w in flat]) if any(flat) else 0.0,
        "ratio_fraction_high": share(counted, lambda w: w > config.high),
        "ratio_fraction_low": share(counted, lambda w: w < low),
        "seq_mean": mean(of_rollouts),
        "seq_std": std(of_rollouts, sample=True),
        "seq_fraction_high": share([mean(weights) for weights in raw], lambda w: w > config.high),
        "seq_fraction_low": share([mean(weights) for weights in raw], lambda w: w < low),
    }
    if kept:
        result |= {"max": max(kept), "min": min(kept)}
    if kept_rollouts:
        result |= {"seq_max": max(kept_rollouts), "seq_min": min(kept_rollouts)}
        result["seq_max_deviation"] = max(abs(weight - 1) for weight in kept_rollouts)
    if config.outside == "mask":
        result["oob_ratio"] = share(flat, lambda w: w == 0)
    return {f"rollout_corr/rollout_is_{name}": value for name, value in result.items()}


def slow_rejection(rollouts, config):
    result, rejected = {}, [False] * len(rollouts)
    for rule in config.reject:
        statistics = []
        for rollout in rollouts:
            logs = [a - b for a, b in rollout]
            k = {"k1": [-x for x in logs], "k2": [x * x / 2 for x in logs], "k3": [math.exp(x) - 1 - x for x in logs]}
            statistics.append({"sum": sum, "mean": mean, "max": max}[rule.over](k[rule.statistic]))
        low = -math.inf if rule.low is None else rule.low
        outside = [not low <= value <= rule.high for value in statistics]
        rejected = [a or b for a, b in zip(rejected, outside, strict=True)]
        spread = [v for v, rollout in zip(statistics, rollouts, strict=True) for _ in rollout]
        values = {
            "mean": mean(spread),
            "std": std([min(max(v, low), rule.high) for v in spread]),
            "max": max(statistics),
            "min": min(statistics),
            "seq_mean": mean(statistics),
            "fraction_high": mean([v > rule.high for v in statistics]),
            "fraction_low": mean([v < low for v in statistics]),
            "masked_fraction": mean([not low <= v <= rule.high for v in spread]),
            "seq_masked_fraction": mean(outside),
        }
        result |= {f"rollout_corr/rollout_rs_{rule.name}_{name}": value for name, value in values.items()}
    lengths = [len(rollout) for rollout in rollouts]
    masked = sum(length for length, out in zip(lengths, rejected, strict=True) if out)
    result["rollout_corr/rollout_rs_masked_fraction"] = masked / sum(lengths)
    result["rollout_corr/rollout_rs_seq_masked_fraction"] = mean(rejected)
    return result


@pytest.mark.parametrize("config", CONFIGS)
@given(rollouts=ROLLOUTS)
@settings(max_examples=25, deadline=None)
def test_against_loops(config, rollouts):
    result = metrics(config, rollouts)
    result.pop("training/rollout_actor_probs_pearson_corr")
    expected = slow_metrics(rollouts, config)
    assert set(result) == set(expected)
    for name, value in expected.items():
        # a weight is float32, and a deviation is the root of a difference
        tolerance = 1e-5 if "rollout_is" in name else 1e-9
        assert result[name] == pytest.approx(value, rel=tolerance, abs=3e-7 if "std" in name else tolerance), name


@pytest.mark.parametrize("config", CONFIGS)
@given(rollouts=ROLLOUTS, random=st.randoms(use_true_random=False))
@settings(max_examples=15, deadline=None)
def test_neither_rows_nor_order_nor_ranks_matter(config, rollouts, random):
    whole = metrics(config, rollouts)
    order = list(rollouts)
    random.shuffle(order)
    cut = random.randint(0, len(order))
    rows = metrics(config, order[:cut], [], order[cut:])
    ranks = [MismatchSums.zero(config) for _ in range(3)]
    add(ranks[0], order[:cut])
    add(ranks[2], order[cut:])
    together = MismatchSums(
        config, torch.stack([rank.sums for rank in ranks]).sum(0), torch.stack([rank.maxima for rank in ranks]).amax(0)
    )
    for other in (rows, together.metrics()):
        assert set(other) == set(whole)
        for name, value in whole.items():
            assert other[name] == pytest.approx(value, rel=1e-7, abs=3e-8, nan_ok=True), name


RANDOM = np.random.default_rng(0)


@pytest.mark.parametrize("scale, spread", [(1.0, 0.1), (1.0, 1e-3), (1e-3, 1e-4)])
def test_correlation_is_numpys_in_float32_too(scale, spread):
    old = -RANDOM.exponential(scale, 4000).astype(np.float32)
    sampled = np.minimum(old + spread * RANDOM.standard_normal(4000).astype(np.float32), 0.0)
    expected = np.corrcoef(np.exp(old.astype(np.float64)), np.exp(sampled.astype(np.float64)))[0, 1]
    sums = MismatchSums.zero(OFF)
    for part in np.split(np.arange(4000), [7, 1500]):
        owners = torch.zeros(len(part), dtype=torch.long)
        columns = torch.tensor(old[part]), torch.tensor(sampled[part])
        sums.add(*columns, owners, 1, correct(*columns, owners, 1, OFF))
    assert sums.metrics()["training/rollout_actor_probs_pearson_corr"] == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize("config", CONFIGS)
def test_equal_policies(config):
    result = metrics(config, [[(-0.1, -0.1), (-2.0, -2.0)], [(-0.7, -0.7)]])
    assert result["training/rollout_actor_probs_pearson_corr"] == pytest.approx(1.0)
    for name in (
        "training/rollout_probs_diff_max",
        "rollout_corr/kl",
        "rollout_corr/chi2_token",
        "rollout_corr/chi2_seq",
    ):
        assert result[name] == 0.0
    if config.weighted:
        for name in ("mean", "min", "max", "seq_min", "eff_sample_size"):
            assert result[f"rollout_corr/rollout_is_{name}"] == pytest.approx(1.0, abs=1e-7)


@pytest.mark.parametrize("logprob", [-0.5, -0.1, -1e-6])
def test_a_constant_side_has_no_correlation(logprob):
    result = metrics(OFF, [[(logprob, logprob)] * 11])
    assert math.isnan(result["training/rollout_actor_probs_pearson_corr"])


def test_what_was_masked_is_no_minimum():
    config = RolloutCorrectionConfig(low=0.5, high=5.0, outside="mask")
    result = metrics(config, [[(-3.0, -0.1), (-1.0, -0.9)], [(-4.0, -0.1)]])
    kept = math.exp(-0.1)
    assert result["rollout_corr/rollout_is_min"] == result["rollout_corr/rollout_is_max"] == pytest.approx(kept)
    assert result["rollout_corr/rollout_is_seq_min"] == pytest.approx(kept / 2)
    assert result["rollout_corr/rollout_is_mean"] == pytest.approx(kept / 3)
    assert result["rollout_corr/rollout_is_oob_ratio"] == pytest.approx(2 / 3)


@pytest.mark.parametrize("weights", ["token", "sequence"])
def test_all_masked_gives_no_extremes_and_no_sample(weights):
    config = RolloutCorrectionConfig(weights=weights, low=0.9, high=1.1, outside="mask")
    result = metrics(config, [[(-3.0, -0.1)], [(-4.0, -0.2)]])
    assert result["rollout_corr/rollout_is_eff_sample_size"] == 0.0
    assert "rollout_corr/rollout_is_seq_min" not in result
    assert all(map(math.isfinite, result.values()))


def test_effective_sample_size_of_one_heavy_token():
    config = RolloutCorrectionConfig(high=1e6)
    rows = [[[(0.0, -10.0)], *[[(-20.0, -10.0)] for _ in range(9)]]]
    assert metrics(config, *rows)["rollout_corr/rollout_is_eff_sample_size"] == pytest.approx(0.1, rel=1e-6)


@pytest.mark.parametrize("config", CONFIGS)
def test_extreme_log_ratios_give_finite_numbers(config):
    result = metrics(config, [[(-1e4, 0.0), (-1.0, -1.0)], [(0.0, -1e4)], [(-0.5, -0.5)]])
    assert all(map(math.isfinite, result.values()))


def test_nothing_counted_gives_no_numbers():
    assert metrics(OFF) == {}
    assert metrics(OFF, []) == {}


def test_the_trainers_side_carries_no_gradient():
    sums = MismatchSums.zero(OFF)
    old, sampled, owners = (
        torch.tensor([-1.0, -2.0], requires_grad=True),
        torch.tensor([-1.0, -2.0]),
        torch.zeros(2).long(),
    )
    sums.add(old, sampled, owners, 1, correct(old, sampled, owners, 1, OFF))
    assert not sums.sums.requires_grad and not sums.maxima.requires_grad
