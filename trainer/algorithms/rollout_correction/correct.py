"""Importance weights and rejection: from the policy that sampled, the engine's, to the one that ratios compare with.

Truncated importance sampling (TIS): Ionides, 2008; for engines that differ from trainers, Yao et al., 2025. Masking
outside a range is IcePop, Ring Team, Every Step Evolves, 2025 (arXiv:2510.18855). k1, k2, k3: Schulman, Approximating
KL divergence, 2020.

What is rejected keeps its place in the loss's normaliser, as a zero: the gradient of a batch that is mostly rejected is
small. Dividing by the accepted tokens alone would inflate the few that are left to the weight of a whole batch, just
when the batch is least trusted.
"""

from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from numpy.typing import NDArray

from trainer.algorithms.rollout_correction.config import RejectionRule, RolloutCorrectionConfig
from trainer.algorithms.rollout_correction.segments import BLOCK, Segments

SAFETY_BOUND = 20.0
"""Log-ratios are clamped to +-20 before exp: beyond, a float32 product of weight and loss says nothing."""


class CorrectionError(ValueError):
    """Columns that do not belong together."""


@dataclass(frozen=True)
class Correction:
    """What multiplies the loss of each of N tokens, which are those of S whole rollouts.

    `keep` is False where a weight was masked or a rule rejected the rollout. `statistics` holds, by the name of each
    rule, the statistic of every rollout in float64 (0 without tokens), and `accepted` whether all rules let it pass.
    """

    weights: Float[torch.Tensor, " N"]
    keep: Bool[torch.Tensor, " N"]
    accepted: Bool[torch.Tensor, " S"]
    statistics: dict[str, Float[torch.Tensor, " S"]]

    @property
    def factors(self) -> Float[torch.Tensor, " N"]:
        """Weights, 0 where a token is dropped."""
        return self.weights * self.keep

    def apply(self, losses: Float[torch.Tensor, " N"]) -> Float[torch.Tensor, " N"]:
        """Losses of tokens, weighted; those that are dropped stay, as zeros."""
        return losses * self.factors


@torch.no_grad()
def correct(
    old_logprobs: Float[torch.Tensor, " N"],
    rollout_logprobs: Float[torch.Tensor, " N"],
    sample_index: Int[torch.Tensor, " N"],
    sample_count: int,
    config: RolloutCorrectionConfig,
) -> Correction:
    """w = exp(old - rollout) by token, or exp of its sum by rollout; bounded or masked; rollouts accepted by all rules.

    A row holds whole rollouts, one after the other, so the result does not depend on how a batch is cut into rows.
    Nothing has a gradient. Where no weights apply (off, bypass, none) they are ones that take no memory. In bypass mode
    `old_logprobs` are the trainer's present ones: rules compare them with the engine's. The work is done on the host,
    which reads a row faster than an accelerator starts the kernels for it; results are on the device of the input.

    Raises:
        CorrectionError: columns of different lengths.
        SegmentError: rollouts are interleaved.
    """
    if not len(old_logprobs) == len(rollout_logprobs) == len(sample_index):
        raise CorrectionError(
            f"{len(old_logprobs)} log-probs of the trainer, {len(rollout_logprobs)} of the engine, "
            f"{len(sample_index)} owners: one each per sampled token is needed"
        )
    device = old_logprobs.device
    old, rollout = on_host(old_logprobs), on_host(rollout_logprobs)
    tokens = len(old)
    weights = torch.ones(1, device=device).expand(tokens)
    keep = torch.ones(1, dtype=torch.bool, device=device).expand(tokens)
    accepted = torch.ones(sample_count, dtype=torch.bool)
    statistics: dict[str, torch.Tensor] = {}
    by_rollout = config.weighted and config.weights == "sequence"

    if config.weighted and config.weights == "token":
        weights, inside = _token_weights(old, rollout, config)
        weights, keep = weights.to(device), keep if inside is None else inside.to(device)
    if by_rollout or config.reject:
        segments = Segments.of_index(sample_index, sample_count)
        log_weights, statistics = _by_rollout(old, rollout, segments, config.reject)
        for rule in config.reject:
            accepted &= _accepts(rule, statistics[rule.name])
        keep_rollout = accepted
        if by_rollout:
            bounded, inside = _bounded(log_weights.clamp(-SAFETY_BOUND, SAFETY_BOUND).exp().float(), config)
            weights = bounded.to(device).index_select(0, sample_index)
            keep_rollout = accepted if inside is None else accepted & inside
        if not bool(keep_rollout.all()):
            keep = keep_rollout.to(device).index_select(0, sample_index) & keep
    return Correction(weights, keep, accepted, statistics)


def on_host(column: Float[torch.Tensor, " N"]) -> Float[torch.Tensor, " N"]:
    """Detached, in memory that the CPU reads, and in float32 or float64."""
    column = column.detach().cpu()
    return column if column.dtype in (torch.float32, torch.float64) else column.float()


def token_statistic(name: str, log_ratio: Float[torch.Tensor, " B"]) -> Float[torch.Tensor, " B"]:
    """k1 = -log rho, k2 = log(rho)^2 / 2, k3 = rho - 1 - log rho, of log-ratios that are clamped already."""
    if name == "k1":
        return -log_ratio
    if name == "k2":
        return log_ratio.square() / 2
    return log_ratio.exp() - 1 - log_ratio


def _token_weights(
    old: Float[torch.Tensor, " N"], rollout: Float[torch.Tensor, " N"], config: RolloutCorrectionConfig
) -> tuple[Float[torch.Tensor, " N"], Bool[torch.Tensor, " N"] | None]:
    weights = torch.empty(len(old))
    keep = torch.empty(len(old), dtype=torch.bool) if config.outside == "mask" else None
    for start in range(0, len(old), BLOCK):
        part = slice(start, start + BLOCK)
        raw = (old[part] - rollout[part]).clamp_(-SAFETY_BOUND, SAFETY_BOUND).exp_()
        weights[part], inside = _bounded(raw, config)
        if keep is not None and inside is not None:
            keep[part] = inside
    return weights, keep


def _bounded(
    weights: Float[torch.Tensor, " B"], config: RolloutCorrectionConfig
) -> tuple[Float[torch.Tensor, " B"], Bool[torch.Tensor, " B"] | None]:
    """Weights truncated to the range, or zeroed outside of it; in the latter case, which were inside."""
    if config.outside == "truncate":
        return weights.clamp_(config.low, config.high), None
    inside = weights <= config.high
    if config.low is not None:
        inside &= weights >= config.low
    return weights.mul_(inside), inside


def _by_rollout(
    old: Float[torch.Tensor, " N"],
    rollout: Float[torch.Tensor, " N"],
    segments: Segments,
    rules: list[RejectionRule],
) -> tuple[Float[torch.Tensor, " S"], dict[str, Float[torch.Tensor, " S"]]]:
    """Sum of the log-ratios of each rollout, unclamped, and its statistic for each rule; in float64."""
    rollouts = len(segments.owners)
    log_weights = np.zeros(rollouts)
    totals: dict[str, NDArray[np.float64]] = {
        rule.name: np.full(rollouts, -np.inf) if rule.over == "max" else np.zeros(rollouts) for rule in rules
    }
    for block in segments.blocks():
        log_ratio = (old[block.tokens] - rollout[block.tokens]).double()
        block.add_sums(log_ratio, log_weights)
        log_ratio.clamp_(-SAFETY_BOUND, SAFETY_BOUND)
        by_token = {name: token_statistic(name, log_ratio) for name in {rule.statistic for rule in rules}}
        for rule in rules:
            collect = block.raise_maxima if rule.over == "max" else block.add_sums
            collect(by_token[rule.statistic], totals[rule.name])
    for rule in rules:
        if rule.over == "mean":
            totals[rule.name] /= segments.lengths
    return segments.spread(log_weights), {name: segments.spread(values) for name, values in totals.items()}


def _accepts(rule: RejectionRule, statistic: Float[torch.Tensor, " S"]) -> Bool[torch.Tensor, " S"]:
    accepted = statistic <= rule.high
    return accepted if rule.low is None else accepted & (statistic >= rule.low)
