"""Legal-looking settings that would silently do something else than they say."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from trainer.algorithms.config import AlgorithmConfig
from trainer.algorithms.registry import ADVANTAGE_ESTIMATORS, KL_ESTIMATORS, LOSS_AGGREGATIONS, POLICY_LOSSES, Entry

SEQUENCE_CLIP_LIMIT = 0.05
"""Sequence ratios are exponentials of *mean* log-ratios and stay within a few thousandths of 1."""
TOKEN_CLIP_LIMIT = 0.01
SMALL_GROUP = 4
SMALL_TRUNCATION = 20.0
LONG_RESPONSE = 512


@dataclass(frozen=True)
class StepFacts:
    """What a check must know of the rest of a run's configuration."""

    attempts_per_task: int
    response_tokens: int
    ppo_epochs: int
    has_critic: bool
    has_reward_function: bool
    has_overlong_penalty: bool


@dataclass(frozen=True)
class Finding:
    """`message` names the field, its value, what would happen, and the mend."""

    level: Literal["error", "warning"]
    message: str


def check(algorithm: AlgorithmConfig, facts: StepFacts) -> list[Finding]:
    """All findings, errors first."""
    errors = [Finding("error", message) for message in _errors(algorithm, facts)]
    return errors + [Finding("warning", message) for message in _warnings(algorithm, facts)]


def _errors(algorithm: AlgorithmConfig, facts: StepFacts) -> Iterator[str]:
    loss = POLICY_LOSSES[algorithm.policy_loss]
    bounds = {name: getattr(algorithm, name) for name in ("clip_ratio_low", "clip_ratio_high") if name in loss.settings}
    if "values" in ADVANTAGE_ESTIMATORS[algorithm.adv_estimator].needs and not facts.has_critic:
        yield f"adv_estimator is {algorithm.adv_estimator!r}, which needs values; set learner.critic: {{}}"
    if algorithm.adv_estimator == "gdpo" and not facts.has_reward_function:
        yield "adv_estimator is 'gdpo', but trials have no named rewards; set a reward.function that returns a dict"
    if algorithm.adv_estimator == "gdpo" and algorithm.kl.in_reward:
        yield f"kl.place is {algorithm.kl.place!r}, but gdpo reads named rewards only; set kl.place: loss"
    if algorithm.adv_estimator == "maxrl" and facts.has_overlong_penalty:
        yield (
            "reward.overlong_buffer makes rewards negative, and maxrl divides by their mean; set overlong_buffer: 0, "
            "or another adv_estimator"
        )
    if "loss_aggs" in loss.options and algorithm.loss_agg not in loss.options["loss_aggs"]:
        yield (
            f"loss_agg is {algorithm.loss_agg!r}, but {loss.name} is defined with "
            f"{' or '.join(loss.options['loss_aggs'])}; set that, or policy_loss: ppo"
        )
    if algorithm.loss_agg == "seq-mean-token-sum-norm" and algorithm.loss_horizon is None:
        yield (
            "loss_agg is 'seq-mean-token-sum-norm' without loss_horizon: a divisor that follows each batch's longest "
            "answer changes the learning rate from step to step; set loss_horizon to the longest answer you allow"
        )
    for name, bound in bounds.items():
        if loss.options.get("clip_scale") == "token" and bound < TOKEN_CLIP_LIMIT:
            yield (
                f"{name} is {bound}, made for gspo's sequence ratios; {loss.name} clips token ratios, and nearly all "
                "on that side would lose their gradient: set clip_ratio_low: 0.2 and clip_ratio_high: 0.2"
            )
        if loss.options.get("clip_scale") == "sequence" and bound > SEQUENCE_CLIP_LIMIT:
            yield (
                f"{name} is {bound}, made for token ratios; {loss.name} clips ratios of whole sequences, which stay "
                "within a few thousandths of 1, so that nothing on that side would ever be clipped: set "
                "clip_ratio_low: 3e-4 and clip_ratio_high: 4e-4"
            )


def _warnings(algorithm: AlgorithmConfig, facts: StepFacts) -> Iterator[str]:
    kl, correction = algorithm.kl, algorithm.rollout_correction
    chosen = _chosen(algorithm)
    read = {setting for entry in chosen for setting in entry.settings}
    for field in sorted(algorithm.model_fields_set & _all_settings() - read):
        users = ", ".join(entry.name for entry in _entries() if field in entry.settings)
        yield f"{field} is set, but nothing that is chosen reads it (read by {users}): it changes nothing"
    if kl.place == "both":
        yield "kl.place is 'both': the divergence is paid twice, in the reward and in the loss"
    if kl.in_reward and kl.estimator.endswith("+"):
        yield f"kl.estimator is {kl.estimator!r}: a reward carries no gradient, so that the + changes nothing there"
    if kl.controller == "adaptive" and not kl.in_reward:
        yield "kl.controller is 'adaptive', but only the weight in the reward is adapted: set kl.place: reward"
    if algorithm.policy_loss.startswith("dppo_") and algorithm.clip_ratio_c < SMALL_TRUNCATION:
        yield (
            f"clip_ratio_c is {algorithm.clip_ratio_c}: {algorithm.policy_loss} bounds ratios by divergence already, "
            "and truncates them here besides; set it to 10000, as published"
        )
    if facts.ppo_epochs > 1 and facts.attempts_per_task < SMALL_GROUP:
        yield (
            f"learner.ppo_epochs is {facts.ppo_epochs} with groups of {facts.attempts_per_task}: advantages of so few "
            "attempts are mostly noise, and each epoch fits it again; raise rollout.attempts_per_task"
        )
    if facts.has_critic and "values" not in ADVANTAGE_ESTIMATORS[algorithm.adv_estimator].needs:
        yield f"learner.critic is set, but {algorithm.adv_estimator} asks for no values: it is computed for nothing"
    if correction.mode == "decoupled" and correction.weights == "sequence" and facts.response_tokens > LONG_RESPONSE:
        yield (
            f"rollout_correction.weights is 'sequence' with answers of up to {facts.response_tokens} tokens: a product "
            "of so many ratios is near 0 or truncated for most rollouts; watch "
            "rollout_corr/rollout_is_eff_sample_size, or set weights: token"
        )
    if correction.mode != "decoupled" and "weights" in correction.model_fields_set:
        yield f"rollout_correction.weights is set, but mode is {correction.mode!r}: only decoupled weighs"
    if correction.mode == "decoupled" and correction.outside == "mask" and correction.low is None:
        yield "rollout_correction.outside is 'mask' without low: only weights above high are dropped; IcePop has both"


def _chosen(algorithm: AlgorithmConfig) -> list[Entry]:
    return [
        ADVANTAGE_ESTIMATORS[algorithm.adv_estimator],
        POLICY_LOSSES[algorithm.policy_loss],
        LOSS_AGGREGATIONS[algorithm.loss_agg],
        KL_ESTIMATORS[algorithm.kl.estimator],
    ]


def _entries() -> list[Entry]:
    registries = (ADVANTAGE_ESTIMATORS, POLICY_LOSSES, LOSS_AGGREGATIONS, KL_ESTIMATORS)
    return [entry for registry in registries for entry in registry.values()]


def _all_settings() -> set[str]:
    return {setting for entry in _entries() for setting in entry.settings}
