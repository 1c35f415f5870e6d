"""What the log says when little is left to learn from."""

from trainer.algorithms.rollout_correction.advice import warnings_for
from trainer.algorithms.rollout_correction.config import RejectionRule, RolloutCorrectionConfig

ESS = "rollout_corr/rollout_is_eff_sample_size"


def test_silent_where_all_is_well():
    assert warnings_for({ESS: 0.9, "rollout_corr/rollout_rs_masked_fraction": 0.1}, RolloutCorrectionConfig()) == []
    assert warnings_for({}, RolloutCorrectionConfig()) == []


def test_a_small_sample_by_token_names_the_difference():
    (warning,) = warnings_for({ESS: 0.3, "training/rollout_probs_diff_mean": 0.25}, RolloutCorrectionConfig())
    assert "counts as 30% of its size" in warning and "0.25" in warning


def test_a_small_sample_by_sequence_blames_the_product():
    metrics = {ESS: 0.02, "response_length/mean": 812.4, "rollout_corr/rollout_is_ratio_fraction_low": 0.75}
    (warning,) = warnings_for(metrics, RolloutCorrectionConfig(weights="sequence"))
    assert "the product over 812 tokens" in warning and "75%" in warning and "Set weights to token" in warning


def test_rejection_of_most_names_the_rules():
    config = RolloutCorrectionConfig(reject=[RejectionRule(over="max", statistic="k2", high=0.1)])
    metrics = {
        "rollout_corr/rollout_rs_masked_fraction": 0.8,
        "rollout_corr/rollout_rs_seq_max_k2_seq_masked_fraction": 0.7,
    }
    (warning,) = warnings_for(metrics, config)
    assert "80% of the tokens were rejected" in warning and "seq_max_k2 70% of rollouts" in warning


def test_icepop_that_drops_most_says_so():
    config = RolloutCorrectionConfig(low=0.5, high=5.0, outside="mask")
    (warning,) = warnings_for({"rollout_corr/rollout_is_oob_ratio": 0.6}, config)
    assert "60% of the tokens have weights outside [0.5, 5]" in warning
