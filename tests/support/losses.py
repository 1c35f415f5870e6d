"""Random rows for policy losses."""

import torch

from trainer.algorithms.policy_losses.base import LossInputs


def make_inputs(
    lengths: tuple[int, ...] = (3, 1, 5),
    spread: float = 0.5,
    advantages: tuple[float, ...] | None = None,
    seed: int = 0,
) -> LossInputs:
    """Rollouts of these lengths, their tokens interleaved, in double precision; `spread` is the size of log-ratios."""
    generator = torch.Generator().manual_seed(seed)
    owners = torch.cat([torch.full((n,), i) for i, n in enumerate(lengths)])
    owners = owners[torch.randperm(len(owners), generator=generator)]
    old = -torch.rand(len(owners), generator=generator, dtype=torch.float64) * 3
    new = old + spread * torch.randn(len(owners), generator=generator, dtype=torch.float64)
    if advantages is None:
        per_rollout = torch.randn(len(lengths), generator=generator, dtype=torch.float64)
    else:
        per_rollout = torch.tensor(advantages, dtype=torch.float64)
    return LossInputs(new.requires_grad_(), old, per_rollout[owners], owners, len(lengths))
