"""How far the policy that sampled is from the policy that is trained, and what the correction made of it.

The numbers come from sums and maxima that add over rows and ranks. Names and formulas are verl's (rollout_corr_helper,
debug metrics), with these readings:

* min and max leave out what was masked: the 0 of a dropped token is no weight that anyone had. Mean, standard deviation
  and effective sample size count it, because the loss does.
* Sequence weights: rollout_is_{min,max} are of the products before they are bounded, and the fractions of rollouts;
  mean, standard deviation and effective sample size are over tokens.
* A rule's mean and std are over tokens, its other numbers over rollouts.
* Rollouts without sampled tokens are in no number. What exp is applied to is clamped to +-20.
* training/rollout_* tell whether engine and trainer agree on the same weights: where rollouts have some of older ones,
  these tokens are left out. All other numbers are over all tokens.
"""

import math
from dataclasses import dataclass
from typing import SupportsFloat

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from numpy.typing import NDArray

from trainer.algorithms.rollout_correction.config import RejectionRule, RolloutCorrectionConfig
from trainer.algorithms.rollout_correction.correct import SAFETY_BOUND, Correction, on_host
from trainer.algorithms.rollout_correction.segments import BLOCK, Block, Segments

_TOKEN_SUMS = ("n", "fresh", "p", "q", "pp", "qq", "pq", "abs_diff", "diff_sq", "k3", "chi2")
_ROLLOUT_SUMS = ("s", "kl", "log_ppl", "ppl", "q_log_ppl", "q_ppl", "gap", "abs_gap", "ppl_ratio", "chi2_seq")
_WEIGHT_SUMS = ("w", "ww", "high", "low", "dropped", "seq", "seq_sq", "seq_high", "seq_low")
_RULE_SUMS = ("weighted", "clamped", "clamped_sq", "seq", "high", "low", "masked")
_ROUNDING = 1e-14
"""A variance below this share of the mean square is rounding: probabilities are known to 7 digits."""


@dataclass
class MismatchSums:
    """Sums over trained tokens and their rollouts, of p, the trainer's probability, and q, the engine's.

    To combine ranks, all-reduce `sums` with SUM and `maxima` with MAX; a minimum is kept as the maximum of negated
    values. The layout depends on the config alone, so it is the same on a rank that counted nothing.
    """

    config: RolloutCorrectionConfig
    sums: Float[torch.Tensor, " fields"]
    maxima: Float[torch.Tensor, " extremes"]

    @classmethod
    def zero(cls, config: RolloutCorrectionConfig) -> "MismatchSums":
        sums, maxima = _layout(config)
        return cls(
            config,
            torch.zeros(len(sums), dtype=torch.float64),
            torch.full((len(maxima),), -torch.inf, dtype=torch.float64),
        )

    @torch.no_grad()
    def add(
        self,
        trainer_logprobs: Float[torch.Tensor, " N"],
        rollout_logprobs: Float[torch.Tensor, " N"],
        sample_index: Int[torch.Tensor, " N"],
        sample_count: int,
        correction: Correction,
        fresh: Bool[torch.Tensor, " N"] | None = None,
    ) -> None:
        """Count a row of N tokens of whole rollouts, and the `correction` that was made of them under the same config.

        Args:
            fresh: Which tokens were sampled from the weights that are trained; all if None.

        Raises:
            SegmentError: rollouts are interleaved.
        """
        if not len(trainer_logprobs):
            return
        trainer, rollout = on_host(trainer_logprobs), on_host(rollout_logprobs)
        segments = Segments.of_index(sample_index, sample_count)
        row = _Row(self.config, segments, correction)
        for block in segments.blocks():
            newest = None if fresh is None else fresh[block.tokens].cpu()
            row.tokens(block, trainer[block.tokens], rollout[block.tokens], newest)
        row.rollouts()
        names, extremes = _layout(self.config)
        self.sums += torch.tensor([row.sums[name] for name in names], dtype=torch.float64)
        highest = torch.tensor([row.maxima[name] for name in extremes], dtype=torch.float64)
        self.maxima = torch.maximum(self.maxima, highest)

    def metrics(self) -> dict[str, float]:
        """verl's names; empty if nothing was counted. The correlation is NaN where either side is constant."""
        names, extremes = _layout(self.config)
        s = dict(zip(names, self.sums.tolist(), strict=True))
        m = dict(zip(extremes, self.maxima.tolist(), strict=True))
        if s["n"] == 0:
            return {}
        metrics = _training_metrics(s, m) | _distance_metrics(s, m)
        if self.config.weighted:
            metrics |= _weight_metrics(s, m, self.config)
        if self.config.reject:
            metrics |= _rejection_metrics(s, m, self.config.reject)
        return metrics


class _Row:
    """Sums and maxima of one row."""

    def __init__(self, config: RolloutCorrectionConfig, segments: Segments, correction: Correction) -> None:
        self.config, self.segments, self.correction = config, segments, correction
        sums, maxima = _layout(config)
        self.sums, self.maxima = dict.fromkeys(sums, 0.0), dict.fromkeys(maxima, -math.inf)
        # of each rollout: sums over its tokens of log rho, of the engine's log-prob, of rho and of the weight
        self.log_ratio, self.logprob, self.ratio, self.weight = np.zeros((4, len(segments.owners)))
        # memory that is used again is in the cache; freshly allocated it would have to be cleared for each block
        self.buffers = torch.empty((3, min(BLOCK, int(segments.bounds[-1]))), dtype=torch.float64)
        self.token_weights = correction.weights.cpu() if config.weighted and config.weights == "token" else None

    def tokens(
        self,
        block: Block,
        trainer: Float[torch.Tensor, " B"],
        rollout: Float[torch.Tensor, " B"],
        fresh: Bool[torch.Tensor, " B"] | None,
    ) -> None:
        """Count a block's tokens, and add to what is known of its rollouts."""
        size = len(trainer)
        p, q, log_ratio = (buffer[:size] for buffer in self.buffers)
        log_ratio.copy_(trainer - rollout)
        block.add_sums(log_ratio, self.log_ratio)
        block.add_sums(rollout, self.logprob)

        # squares of float32 are exact in float64, so that the correlation may be taken from sums
        p.copy_(trainer.exp())
        q.copy_(rollout.exp())
        if fresh is not None:
            p, q = p[fresh], q[fresh]
        self._add(n=size, fresh=len(p), p=p.sum(), q=q.sum(), pp=p.dot(p), qq=q.dot(q), pq=p.dot(q))
        difference = p.sub_(q).abs_()
        self._add(abs_diff=difference.sum(), diff_sq=difference.dot(difference))
        if len(difference):
            self._raise("diff", difference.amax())

        total_log_ratio = float(log_ratio.clamp_(-SAFETY_BOUND, SAFETY_BOUND).sum())
        ratio = log_ratio.exp_()
        self._add(k3=float(ratio.sum()) - size - total_log_ratio, chi2=float(ratio.dot(ratio)) - size)
        if self.token_weights is not None:
            self._weights_of_tokens(block, ratio, self.token_weights[block.tokens])

    def _weights_of_tokens(
        self, block: Block, raw: Float[torch.Tensor, " B"], weights: Float[torch.Tensor, " B"]
    ) -> None:
        exact = self.buffers[0][: len(weights)].copy_(weights)
        block.add_sums(exact, self.weight)
        block.add_sums(raw, self.ratio)
        self._add(
            ww=exact.dot(exact),
            # numpy compares several times faster
            high=np.count_nonzero(raw.numpy() > self.config.high),
            low=np.count_nonzero(raw.numpy() < self.config.lower_threshold),
        )
        if self.config.outside == "mask":
            kept = weights[weights > 0]
            self._add(dropped=len(weights) - len(kept))
            weights = kept
        if len(weights):
            low, high = torch.aminmax(weights)
            self._raise("w", high)
            self._raise("-w", -low)

    def rollouts(self) -> None:
        """Count the rollouts, once all tokens are."""
        lengths = self.segments.lengths
        gap = -self.log_ratio / lengths
        log_ppl, q_log_ppl = -(self.log_ratio + self.logprob) / lengths, -self.logprob / lengths
        self._add(
            s=len(lengths),
            kl=-self.log_ratio.sum(),
            log_ppl=log_ppl.sum(),
            ppl=_exp(log_ppl).sum(),
            q_log_ppl=q_log_ppl.sum(),
            q_ppl=_exp(q_log_ppl).sum(),
            gap=gap.sum(),
            abs_gap=np.abs(gap).sum(),
            ppl_ratio=_exp(gap).sum(),
            chi2_seq=np.square(_exp(self.log_ratio)).sum() - len(lengths),
        )
        self._raise("gap", gap.max())
        self._raise("-gap", -gap.min())
        if self.token_weights is not None:
            self._add(w=self.weight.sum())
            self._weights_of_rollouts(self.weight / lengths, self.ratio / lengths)
        elif self.config.weighted:
            self._sequence_weights()
        for rule in self.config.reject:
            self._rule(rule, self.correction.statistics[rule.name].cpu().numpy()[self.segments.owners])
        if self.config.reject:
            rejected = ~self.correction.accepted.cpu().numpy()[self.segments.owners]
            self._add(rejected=lengths[rejected].sum(), seq_rejected=rejected.sum())

    def _sequence_weights(self) -> None:
        lengths = self.segments.lengths
        first = torch.from_numpy(self.segments.bounds[:-1]).to(self.correction.weights.device)
        weights = self.correction.weights[first].double().cpu().numpy()
        raw = _exp(self.log_ratio)
        self._add(
            w=(lengths * weights).sum(),
            ww=(lengths * weights**2).sum(),
            high=np.count_nonzero(raw > self.config.high),
            low=np.count_nonzero(raw < self.config.lower_threshold),
            dropped=lengths[weights == 0].sum(),
        )
        self._raise("w", raw.max())
        self._raise("-w", -raw.min())
        self._weights_of_rollouts(weights, raw)

    def _weights_of_rollouts(self, weights: NDArray[np.float64], raw: NDArray[np.float64]) -> None:
        deviation = weights - 1
        self._add(
            seq=deviation.sum(),
            seq_sq=np.square(deviation).sum(),
            seq_high=np.count_nonzero(raw > self.config.high),
            seq_low=np.count_nonzero(raw < self.config.lower_threshold),
        )
        kept = weights[weights > 0]
        if len(kept):
            self._raise("seq", kept.max())
            self._raise("-seq", -kept.min())

    def _rule(self, rule: RejectionRule, statistic: NDArray[np.float64]) -> None:
        lengths = self.segments.lengths
        high = statistic > rule.high
        low = statistic < _lowest(rule)
        clamped = statistic.clip(_lowest(rule), rule.high)
        values = {
            "weighted": (lengths * statistic).sum(),
            "clamped": (lengths * clamped).sum(),
            "clamped_sq": (lengths * clamped**2).sum(),
            "seq": statistic.sum(),
            "high": high.sum(),
            "low": low.sum(),
            "masked": lengths[high | low].sum(),
        }
        self._add(**{f"{rule.name}/{field}": value for field, value in values.items()})
        self._raise(rule.name, statistic.max())
        self._raise(f"-{rule.name}", -statistic.min())

    def _add(self, **amounts: SupportsFloat) -> None:
        for name, amount in amounts.items():
            self.sums[name] += float(amount)

    def _raise(self, name: str, value: SupportsFloat) -> None:
        self.maxima[name] = float(np.maximum(self.maxima[name], float(value)))


def _layout(config: RolloutCorrectionConfig) -> tuple[list[str], list[str]]:
    """Names of the sums and of the maxima."""
    sums, maxima = [*_TOKEN_SUMS, *_ROLLOUT_SUMS], ["diff", "gap", "-gap"]
    if config.weighted:
        sums += _WEIGHT_SUMS
        maxima += ["w", "-w", "seq", "-seq"]
    if config.reject:
        sums += ["rejected", "seq_rejected"]
    for rule in config.reject:
        sums += [f"{rule.name}/{field}" for field in _RULE_SUMS]
        maxima += [rule.name, f"-{rule.name}"]
    return sums, maxima


def _training_metrics(s: dict[str, float], m: dict[str, float]) -> dict[str, float]:
    n = s["fresh"]
    if not n:
        return {}
    mean_diff = s["abs_diff"] / n
    covariance = s["pq"] - s["p"] * s["q"] / n
    variances = [s["pp"] - s["p"] ** 2 / n, s["qq"] - s["q"] ** 2 / n]
    constant = variances[0] <= _ROUNDING * s["pp"] or variances[1] <= _ROUNDING * s["qq"]
    return {
        "training/rollout_actor_probs_pearson_corr": math.nan
        if constant
        else covariance / math.sqrt(variances[0] * variances[1]),
        "training/rollout_probs_diff_mean": mean_diff,
        "training/rollout_probs_diff_max": m["diff"],
        "training/rollout_probs_diff_std": _deviation(s["abs_diff"], s["diff_sq"], n),
    }


def _distance_metrics(s: dict[str, float], m: dict[str, float]) -> dict[str, float]:
    n, rollouts = s["n"], s["s"]
    return {
        "rollout_corr/kl": s["kl"] / n,
        "rollout_corr/k3_kl": s["k3"] / n,
        "rollout_corr/chi2_token": s["chi2"] / n,
        "rollout_corr/chi2_seq": s["chi2_seq"] / rollouts,
        "rollout_corr/training_ppl": s["ppl"] / rollouts,
        "rollout_corr/training_log_ppl": s["log_ppl"] / rollouts,
        "rollout_corr/rollout_ppl": s["q_ppl"] / rollouts,
        "rollout_corr/rollout_log_ppl": s["q_log_ppl"] / rollouts,
        "rollout_corr/log_ppl_diff": s["gap"] / rollouts,
        "rollout_corr/log_ppl_abs_diff": s["abs_gap"] / rollouts,
        "rollout_corr/log_ppl_diff_max": m["gap"],
        "rollout_corr/log_ppl_diff_min": -m["-gap"],
        "rollout_corr/ppl_ratio": s["ppl_ratio"] / rollouts,
    }


def _weight_metrics(s: dict[str, float], m: dict[str, float], config: RolloutCorrectionConfig) -> dict[str, float]:
    n, rollouts = s["n"], s["s"]
    mean = s["w"] / n
    spread = s["seq_sq"] - s["seq"] ** 2 / rollouts
    of_fractions = n if config.weights == "token" else rollouts
    metrics = {
        "mean": mean,
        "std": _deviation(s["w"], s["ww"], n),
        "eff_sample_size": (mean + 1e-8) ** 2 * n / s["ww"] if s["ww"] > 0 else 0.0,
        "ratio_fraction_high": s["high"] / of_fractions,
        "ratio_fraction_low": s["low"] / of_fractions,
        "seq_mean": 1 + s["seq"] / rollouts,
        "seq_std": math.sqrt(max(spread, 0.0) / (rollouts - 1)) if rollouts > 1 else 0.0,
        "seq_fraction_high": s["seq_high"] / rollouts,
        "seq_fraction_low": s["seq_low"] / rollouts,
    }
    if config.outside == "mask":
        metrics["oob_ratio"] = s["dropped"] / n
    if m["w"] > -math.inf:
        metrics |= {"max": m["w"], "min": -m["-w"]}
    if m["seq"] > -math.inf:
        high, low = m["seq"], -m["-seq"]
        metrics |= {"seq_max": high, "seq_min": low, "seq_max_deviation": max(abs(high - 1), abs(low - 1))}
    return {f"rollout_corr/rollout_is_{name}": value for name, value in metrics.items()}


def _rejection_metrics(s: dict[str, float], m: dict[str, float], rules: list[RejectionRule]) -> dict[str, float]:
    n, rollouts = s["n"], s["s"]
    metrics = {"masked_fraction": s["rejected"] / n, "seq_masked_fraction": s["seq_rejected"] / rollouts}
    for rule in rules:
        r = {field: s[f"{rule.name}/{field}"] for field in _RULE_SUMS}
        values = {
            "mean": r["weighted"] / n,
            "std": _deviation(r["clamped"], r["clamped_sq"], n),
            "max": m[rule.name],
            "min": -m[f"-{rule.name}"],
            "seq_mean": r["seq"] / rollouts,
            "fraction_high": r["high"] / rollouts,
            "fraction_low": r["low"] / rollouts,
            "masked_fraction": r["masked"] / n,
            "seq_masked_fraction": (r["high"] + r["low"]) / rollouts,
        }
        metrics |= {f"{rule.name}_{name}": value for name, value in values.items()}
    return {f"rollout_corr/rollout_rs_{name}": value for name, value in metrics.items()}


def _exp(values: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.exp(values.clip(-SAFETY_BOUND, SAFETY_BOUND))


def _deviation(total: float, squares: float, count: float) -> float:
    return math.sqrt(max(squares / count - (total / count) ** 2, 0.0))


def _lowest(rule: RejectionRule) -> float:
    return -math.inf if rule.low is None else rule.low
