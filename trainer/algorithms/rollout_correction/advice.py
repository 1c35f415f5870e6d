"""What a step's log says when the correction has left little to learn from."""

from collections.abc import Mapping

from trainer.algorithms.rollout_correction.config import RolloutCorrectionConfig

LEAST_SAMPLE_SIZE = 0.5
"""Below it, less than half of the batch carries the gradient."""
MOST_REJECTED = 0.5

_ESS = "rollout_corr/rollout_is_eff_sample_size"


def warnings_for(metrics: Mapping[str, float], config: RolloutCorrectionConfig) -> list[str]:
    """Sentences for the log of a step with these metrics; none where all is well."""
    warnings = []
    effective = metrics.get(_ESS)
    if effective is not None and effective < LEAST_SAMPLE_SIZE:
        reason = _product(metrics) if config.weights == "sequence" else _token(metrics)
        warnings.append(f"{_ESS} is {effective:.2f}: the batch counts as {effective:.0%} of its size. {reason}")
    rejected = metrics.get("rollout_corr/rollout_rs_masked_fraction", 0.0)
    if rejected > MOST_REJECTED:
        rules = ", ".join(
            f"{rule.name} {metrics[f'rollout_corr/rollout_rs_{rule.name}_seq_masked_fraction']:.0%} of rollouts"
            for rule in config.reject
        )
        warnings.append(
            f"{rejected:.0%} of the tokens were rejected and count as zeros in the loss ({rules}): the gradient is "
            "that much smaller. Widen the rules in reject, or look why engine and trainer differ."
        )
    dropped = metrics.get("rollout_corr/rollout_is_oob_ratio", 0.0)
    if dropped > MOST_REJECTED:
        warnings.append(
            f"{dropped:.0%} of the tokens have weights outside [{config.low or 0:g}, {config.high:g}] and were "
            "dropped: widen low and high, or set outside to truncate."
        )
    return warnings


def _product(metrics: Mapping[str, float]) -> str:
    length = metrics.get("response_length/mean")
    tokens = "all tokens of a rollout" if length is None else f"{length:.0f} tokens (mean)"
    return (
        f"weights is sequence: the product over {tokens} multiplies small differences until few rollouts carry the "
        f"gradient; {metrics.get('rollout_corr/rollout_is_ratio_fraction_low', 0.0):.0%} of products are low and "
        f"{metrics.get('rollout_corr/rollout_is_ratio_fraction_high', 0.0):.0%} high. Set weights to token."
    )


def _token(metrics: Mapping[str, float]) -> str:
    return (
        f"Single tokens differ: mean |p - q| is {metrics.get('training/rollout_probs_diff_mean', 0.0):.3g}. Sampling "
        "from old weights, another temperature or precision in the engine, or a failed sync of weights does that."
    )
