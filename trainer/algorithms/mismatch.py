"""How far the policy that sampled is from the policy that is trained, token by token.

The numbers come from sums that add over rows and ranks. Names and formulas are verl's (rollout_corr_helper, debug
metrics).
"""

import math
from dataclasses import dataclass

import torch
from jaxtyping import Float

_FIELDS = ("n", "p", "q", "pp", "qq", "pq", "abs_diff", "diff_sq", "kl", "k3", "chi2")
_MAX_LOG_RATIO = 20.0


@dataclass
class MismatchSums:
    """Sums over trained tokens of p (trainer's probability), q (engine's) and their comparisons."""

    sums: Float[torch.Tensor, " fields"]
    max_diff: Float[torch.Tensor, ""]

    @classmethod
    def zero(cls) -> "MismatchSums":
        return cls(torch.zeros(len(_FIELDS), dtype=torch.float64), torch.zeros((), dtype=torch.float64))

    def add(self, trainer_logprobs: Float[torch.Tensor, " N"], rollout_logprobs: Float[torch.Tensor, " N"]) -> None:
        """Count N tokens."""
        if not len(trainer_logprobs):
            return
        train, roll = trainer_logprobs.detach().double().cpu(), rollout_logprobs.double().cpu()
        p, q = train.exp(), roll.exp()
        log_ratio = (train - roll).clamp(-_MAX_LOG_RATIO, _MAX_LOG_RATIO)
        ratio = log_ratio.exp()
        difference = (p - q).abs()
        columns = (
            torch.ones_like(p),
            p,
            q,
            p * p,
            q * q,
            p * q,
            difference,
            difference**2,
            -log_ratio,
            ratio - log_ratio - 1,
            ratio**2,
        )
        self.sums += torch.stack([column.sum() for column in columns])
        self.max_diff = torch.maximum(self.max_diff, difference.max())

    def metrics(self) -> dict[str, float]:
        """verl's names; empty if nothing was counted. The correlation is NaN where either side is constant."""
        s = dict(zip(_FIELDS, self.sums.tolist(), strict=True))
        n = s["n"]
        if n == 0:
            return {}
        covariance = s["pq"] - s["p"] * s["q"] / n
        variances = (s["pp"] - s["p"] ** 2 / n) * (s["qq"] - s["q"] ** 2 / n)
        mean_diff = s["abs_diff"] / n
        return {
            "training/rollout_actor_probs_pearson_corr": covariance / math.sqrt(variances)
            if variances > 0
            else math.nan,
            "training/rollout_probs_diff_mean": mean_diff,
            "training/rollout_probs_diff_max": float(self.max_diff),
            "training/rollout_probs_diff_std": math.sqrt(max(s["diff_sq"] / n - mean_diff**2, 0.0)),
            "rollout_corr/kl": s["kl"] / n,
            "rollout_corr/k3_kl": s["k3"] / n,
            "rollout_corr/chi2_token": s["chi2"] / n - 1,
        }
