"""Legal-looking nonsense is named, with what it would silently do; sensible settings pass without a word."""

import pytest

from trainer.algorithms.check import StepFacts, check
from trainer.algorithms.config import AlgorithmConfig
from trainer.algorithms.registry import POLICY_LOSSES

FACTS = {
    "attempts_per_task": 8,
    "response_tokens": 80,
    "ppo_epochs": 1,
    "has_critic": False,
    "has_reward_function": False,
    "has_overlong_penalty": False,
}
TOKEN_CLIP = {"clip_ratio_low": 0.2, "clip_ratio_high": 0.2}


def messages(level, algorithm, **facts):
    found = check(AlgorithmConfig(**algorithm), StepFacts(**FACTS | facts))
    return [finding.message for finding in found if finding.level == level]


ERRORS = [
    ({"adv_estimator": "gae"}, {}, "needs values; set learner.critic"),
    ({"adv_estimator": "gdpo"}, {}, "no named rewards; set a reward.function that returns a dict"),
    (
        {"adv_estimator": "gdpo", "kl": {"place": "reward"}},
        {"has_reward_function": True},
        "gdpo reads named rewards only; set kl.place: loss",
    ),
    ({"adv_estimator": "maxrl"}, {"has_overlong_penalty": True}, "overlong_buffer makes rewards negative"),
    ({"loss_agg": "token-mean"}, {}, "gspo is defined with seq-mean-token-mean"),
    ({"policy_loss": "gmpo", "loss_agg": "token-mean", **TOKEN_CLIP}, {}, "gmpo is defined with seq-mean-token-mean"),
    ({"policy_loss": "ppo", "loss_agg": "seq-mean-token-sum-norm", **TOKEN_CLIP}, {}, "without loss_horizon"),
    ({"policy_loss": "ppo", "clip_ratio_low": 0.2}, {}, "clip_ratio_high is 0.0004, made for gspo"),
    ({"policy_loss": "ppo", "clip_ratio_high": 0.28}, {}, "clip_ratio_low is 0.0003, made for gspo"),
    ({"clip_ratio_high": 0.28}, {}, "clip_ratio_high is 0.28, made for token ratios"),
    ({"clip_ratio_low": 0.2}, {}, "clip_ratio_low is 0.2, made for token ratios"),
]

WARNINGS = [
    ({"kl": {"place": "both"}}, {}, "paid twice"),
    ({"kl": {"place": "reward", "estimator": "k3+"}}, {}, "a reward carries no gradient"),
    ({"kl": {"place": "loss", "controller": "adaptive"}}, {}, "only the weight in the reward is adapted"),
    ({}, {"ppo_epochs": 4, "attempts_per_task": 2}, "ppo_epochs is 4 with groups of 2"),
    ({}, {"has_critic": True}, "grpo asks for no values"),
    ({"rollout_correction": {"weights": "sequence"}}, {"response_tokens": 4096}, "answers of up to 4096 tokens"),
    ({"rollout_correction": {"mode": "bypass", "weights": "token"}}, {}, "only decoupled weighs"),
    ({"rollout_correction": {"outside": "mask"}}, {}, "'mask' without low"),
    ({"policy_loss": "dppo_tv", "loss_agg": "token-mean", **TOKEN_CLIP}, {}, "clip_ratio_c is 3.0"),
    ({"clip_cov_ratio": 0.1}, {}, r"clip_cov_ratio is set, but nothing that is chosen reads it (read by clip_cov)"),
    ({"adv_estimator": "rloo", "norm_adv_by_std": False}, {}, "norm_adv_by_std is set, but nothing"),
]


@pytest.mark.parametrize(("algorithm", "facts", "message"), ERRORS)
def test_errors(algorithm, facts, message):
    (found,) = messages("error", algorithm, **facts)
    assert message in found


@pytest.mark.parametrize(("algorithm", "facts", "message"), WARNINGS)
def test_warnings(algorithm, facts, message):
    (found,) = messages("warning", algorithm, **facts)
    assert message in found
    assert not messages("error", algorithm, **facts)


@pytest.mark.parametrize(
    ("algorithm", "facts"),
    [
        ({}, {}),
        ({"adv_estimator": "gae"}, {"has_critic": True}),
        ({"adv_estimator": "gdpo", "reward_weights": {"tests": 1.0}}, {"has_reward_function": True}),
        ({"policy_loss": "ppo", "loss_agg": "token-mean", **TOKEN_CLIP}, {"ppo_epochs": 4}),
        ({"policy_loss": "ppo", "loss_agg": "seq-mean-token-sum-norm", "loss_horizon": 80, **TOKEN_CLIP}, {}),
        ({"policy_loss": "clip_cov", "clip_cov_ratio": 0.1, "loss_agg": "token-mean", **TOKEN_CLIP}, {}),
        ({"kl": {"place": "reward", "controller": "adaptive"}}, {}),
        ({"kl": {"place": "loss", "estimator": "k3+"}}, {}),
        ({"rollout_correction": {"weights": "sequence"}}, {}),
        ({"rollout_correction": {"outside": "mask", "low": 0.5}}, {}),
    ],
)
def test_sensible_settings_pass(algorithm, facts):
    assert check(AlgorithmConfig(**algorithm), StepFacts(**FACTS | facts)) == []


def test_every_loss_says_what_its_clipping_means():
    """Else the check of bounds would pass over a new loss in silence."""
    for name, entry in POLICY_LOSSES.items():
        clips = {"clip_ratio_low", "clip_ratio_high"} & set(entry.settings)
        assert not clips or entry.options.get("clip_scale") in ("token", "sequence"), name
