"""Names and ranges of the algorithm section; what fits together is test_check's."""

import pytest
from pydantic import ValidationError

from trainer.algorithms.config import AlgorithmConfig


def test_defaults_are_grpo_and_gspo():
    config = AlgorithmConfig()
    assert (config.adv_estimator, config.policy_loss, config.loss_agg) == ("grpo", "gspo", "seq-mean-token-mean")
    assert (config.clip_ratio_low, config.clip_ratio_high) == (3e-4, 4e-4)
    assert (config.rollout_correction.mode, config.rollout_correction.weights) == ("decoupled", "token")
    assert config.kl.place == "none"


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"adv_estimator": "gea"}, "adv_estimator is 'gea'; known are .*gae, .*grpo"),
        ({"policy_loss": "dpo"}, "policy_loss is 'dpo'; known are .*gspo"),
        ({"loss_agg": "mean"}, "loss_agg is 'mean'; known are .*token-mean"),
        ({"kl": {"estimator": "k4"}}, "kl.estimator is 'k4'; known are .*k1"),
        ({"clip_ratio_low": 0.0}, "clip_ratio_low"),
        ({"clip_ratio_c": 1.0}, "clip_ratio_c"),
        ({"clip": 0.2}, "clip"),
    ],
)
def test_refused(values, message):
    with pytest.raises(ValidationError, match=message):
        AlgorithmConfig(**values)


@pytest.mark.parametrize(
    ("values", "columns"),
    [
        ({}, []),
        ({"adv_estimator": "gae"}, ["values"]),
        ({"adv_estimator": "optimal_token_baseline"}, ["old_logprobs", "sum_pi_squared"]),
        ({"adv_estimator": "remax"}, []),
        ({"kl": {"place": "loss"}}, ["ref_logprobs"]),
        ({"kl": {"place": "reward"}}, ["old_logprobs", "ref_logprobs"]),
    ],
)
def test_what_the_learner_must_compute_first(values, columns):
    assert AlgorithmConfig(**values).score_columns == columns


def test_only_remax_asks_for_a_greedy_trial():
    assert AlgorithmConfig(adv_estimator="remax").needs_greedy_trial
    assert not AlgorithmConfig().needs_greedy_trial
