"""What an update reports: sums over rows, then over ranks."""

from typing import Any

import torch

from trainer.algorithms.mismatch import MismatchSums
from trainer.algorithms.rollout_correction.config import RolloutCorrectionConfig
from trainer.algorithms.rollout_correction.correct import Correction


class Totals:
    """Sums of one update.

    `per_token` are means over the trained tokens that were computed, `shares` add up to a loss of the mini-batches.
    Of ranks that compute the same rows, one `counts` them. With `fresh`, whether engine and trainer agree is measured
    on the tokens of this weight version only.
    """

    def __init__(self, correction: RolloutCorrectionConfig, counts: bool = True, fresh: int | None = None) -> None:
        self.counts, self.fresh = counts, fresh
        self.mismatch = MismatchSums.zero(correction)
        self.tokens = 0
        self.per_token: dict[str, float] = {}
        self.shares: dict[str, float] = {}
        self.grad_norms: dict[str, list[float]] = {}
        self.skipped = 0

    def add(self, tokens: int, per_token: dict[str, torch.Tensor], shares: dict[str, torch.Tensor]) -> None:
        """Count a row of the policy."""
        if not self.counts:
            return
        self.tokens += tokens
        for name, values in per_token.items():
            self.per_token[name] = self.per_token.get(name, 0.0) + float(values.detach().sum())
        self.add_shares(shares)

    def add_shares(self, shares: dict[str, torch.Tensor]) -> None:
        """Count parts of losses."""
        if not self.counts:
            return
        for name, share in shares.items():
            self.shares[name] = self.shares.get(name, 0.0) + float(share.detach())

    def compare(self, trainer: torch.Tensor, rollout: torch.Tensor, row: Any, correction: Correction) -> None:
        """Count how the log-probs of trainer and engine differ."""
        if not self.counts:
            return
        fresh = None if self.fresh is None else row.columns["weight_versions"] == self.fresh
        self.mismatch.add(trainer, rollout, row.sample_index, len(row.samples), correction, fresh)

    def step(self, engine: Any, name: str, applied: bool) -> None:
        """Count an optimizer step, or one that was dropped, whose norm says nothing."""
        norms = self.grad_norms.setdefault(name, [])
        if applied:
            norms.append(float(engine.get_global_grad_norm()))
        self.skipped += not applied

    def reduce(self, steps: int) -> dict[str, float]:
        """Metrics over all ranks, the same on each; losses are means over `steps` mini-batches."""
        import torch.distributed as dist

        means, shares = _common_names(self.per_token), _common_names(self.shares)
        local = [self.per_token.get(name, 0.0) for name in means] + [self.shares.get(name, 0.0) for name in shares]
        totals = torch.tensor([*local, float(self.tokens)], dtype=torch.float64)
        dist.all_reduce(totals)
        dist.all_reduce(self.mismatch.sums)
        dist.all_reduce(self.mismatch.maxima, op=dist.ReduceOp.MAX)
        tokens = max(float(totals[-1]), 1.0)
        metrics = {name: float(total) / tokens for name, total in zip(means, totals[: len(means)], strict=True)}
        metrics |= {
            name: float(total) / max(steps, 1) for name, total in zip(shares, totals[len(means) : -1], strict=True)
        }
        metrics |= {name: sum(norms) / len(norms) for name, norms in self.grad_norms.items() if norms}
        metrics["actor/skipped_steps"] = float(self.skipped)
        return metrics | self.mismatch.metrics()


def _common_names(sums: dict[str, float]) -> list[str]:
    """Names that any rank has, in one order on all: a rank may have computed no row."""
    import torch.distributed as dist

    gathered: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(gathered, sorted(sums))
    return sorted(set().union(*gathered))
