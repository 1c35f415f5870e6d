"""Combinations that would train something else than meant are refused, with the setting that mends them."""

import pytest
from pydantic import ValidationError

from trainer.algorithms.config import AlgorithmConfig
from trainer.algorithms.registry import ADVANTAGE_ESTIMATORS, POLICY_LOSSES, register


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"adv_estimator": "gae"}, "adv_estimator is 'gae'; known are .*grpo"),
        ({"policy_loss": "dpo"}, "policy_loss is 'dpo'; known are gspo, ppo"),
        ({"loss_agg": "token-mean"}, "loss_agg is 'token-mean'.*set that, or policy_loss: ppo"),
        ({"policy_loss": "ppo"}, "clip_ratio_high is 0.0004.*set clip_ratio_low: 0.2 and clip_ratio_high: 0.2"),
        ({"clip_ratio_low": 0.0}, "clip_ratio_low"),
        ({"clip_ratio_c": 1.0}, "clip_ratio_c"),
        ({"loss_agg": "mean"}, "loss_agg"),
        ({"clip": 0.2}, "clip"),
    ],
)
def test_refused(values, message):
    with pytest.raises(ValidationError, match=message):
        AlgorithmConfig(**values)


def test_ppo_with_its_own_bounds_is_accepted():
    config = AlgorithmConfig(policy_loss="ppo", clip_ratio_low=0.2, clip_ratio_high=0.2, loss_agg="token-mean")
    assert config.loss_agg == "token-mean"


def test_builtin_algorithms_are_registered():
    assert "grpo" in ADVANTAGE_ESTIMATORS
    assert {"gspo", "ppo"} <= POLICY_LOSSES.keys()


def test_a_name_is_taken_once():
    registry = {}
    register(registry, "mine")(len)
    with pytest.raises(ValueError, match="'mine' is registered already, by builtins"):
        register(registry, "mine")(max)
    assert registry == {"mine": len}


def test_a_users_loss_becomes_known(monkeypatch):
    monkeypatch.setitem(POLICY_LOSSES, "mine", lambda inputs, config: None)
    assert AlgorithmConfig(policy_loss="mine", loss_agg="token-mean").policy_loss == "mine"
