"""Estimators of a token's KL divergence KL(policy || reference), and the controller of its weight.

J. Schulman, Approximating KL Divergence, 2020 (http://joschu.net/blog/kl-approx.html). They take log-probs of the
sampled tokens under both, and are averages over samples of the policy. The value of k1 and k3 is unbiased and their
gradient is not that of the divergence; with k2 it is the other way round. The forms with + join the two.
"""

import math

import torch
from jaxtyping import Float

from trainer.algorithms.kl_config import KLConfig
from trainer.algorithms.registry import KL_ESTIMATORS, register

_BLOG = "http://joschu.net/blog/kl-approx.html"
_MAX_LOG_RATIO = 20.0
_MAX_K3 = 10.0
_MAX_ERROR = 0.2


@register(KL_ESTIMATORS, "k1", source=_BLOG)
@register(KL_ESTIMATORS, "kl", source=_BLOG)
def k1(logprobs: Float[torch.Tensor, " N"], ref_logprobs: Float[torch.Tensor, " N"]) -> Float[torch.Tensor, " N"]:
    """log pi - log ref (k1, kl): unbiased, of high variance; as a loss its gradient is 0 on average."""
    return logprobs - ref_logprobs


@register(KL_ESTIMATORS, "k2", source=_BLOG)
@register(KL_ESTIMATORS, "mse", source=_BLOG)
def k2(logprobs: Float[torch.Tensor, " N"], ref_logprobs: Float[torch.Tensor, " N"]) -> Float[torch.Tensor, " N"]:
    """(log pi - log ref)^2 / 2 (k2, mse): biased, its gradient is right."""
    return 0.5 * (logprobs - ref_logprobs).square()


@register(KL_ESTIMATORS, "k3", source=_BLOG)
@register(KL_ESTIMATORS, "low_var_kl", source=_BLOG)
def k3(logprobs: Float[torch.Tensor, " N"], ref_logprobs: Float[torch.Tensor, " N"]) -> Float[torch.Tensor, " N"]:
    """ref/pi - 1 - log(ref/pi) (k3, low_var_kl): unbiased, never negative; at most 10, where its gradient ends."""
    log_ratio = (ref_logprobs - logprobs).clamp(-_MAX_LOG_RATIO, _MAX_LOG_RATIO)
    return (torch.expm1(log_ratio) - log_ratio).clamp(max=_MAX_K3)


@register(KL_ESTIMATORS, "abs")
def absolute(logprobs: Float[torch.Tensor, " N"], ref_logprobs: Float[torch.Tensor, " N"]) -> Float[torch.Tensor, " N"]:
    """|log pi - log ref|: a distance, not an estimate of the divergence."""
    return (logprobs - ref_logprobs).abs()


@register(KL_ESTIMATORS, "k1+", source=_BLOG)
@register(KL_ESTIMATORS, "kl+", source=_BLOG)
def k1_straight_through(
    logprobs: Float[torch.Tensor, " N"], ref_logprobs: Float[torch.Tensor, " N"]
) -> Float[torch.Tensor, " N"]:
    """Value of k1, gradient of k2 (k1+, kl+)."""
    return _straight_through(k1(logprobs, ref_logprobs), k2(logprobs, ref_logprobs))


@register(KL_ESTIMATORS, "k3+", source=_BLOG)
@register(KL_ESTIMATORS, "low_var_kl+", source=_BLOG)
def k3_straight_through(
    logprobs: Float[torch.Tensor, " N"], ref_logprobs: Float[torch.Tensor, " N"]
) -> Float[torch.Tensor, " N"]:
    """Value of k3, gradient of k2 (k3+, low_var_kl+): has a gradient where k3 is at its bound."""
    return _straight_through(k3(logprobs, ref_logprobs), k2(logprobs, ref_logprobs))


def _straight_through(
    value: Float[torch.Tensor, " N"], gradient: Float[torch.Tensor, " N"]
) -> Float[torch.Tensor, " N"]:
    return value.detach() + (gradient - gradient.detach())


def next_coef(coef: float, measured: float, rollouts: int, config: KLConfig) -> float:
    """Weight of the divergence after a step of `rollouts` that measured `measured` nats a token.

    coef * (1 + clip(measured / target - 1, ±0.2) * rollouts / horizon), Ziegler et al., 2019 (arXiv:1909.08593, section
    2.2). A step larger than the horizon corrects by one horizon: the weight stays positive.

    Raises:
        ValueError: `measured` is not finite.
    """
    if config.controller == "fixed":
        return coef
    if not math.isfinite(measured):
        raise ValueError(f"the measured KL divergence is {measured}; the step's log-probs are not finite")
    error = min(max(measured / config.target - 1, -_MAX_ERROR), _MAX_ERROR)
    return coef * (1 + error * min(rollouts / config.horizon, 1.0))
