"""An optimizer step that all ranks take, or none does."""

from typing import Any

import torch

from trainer.learner.collective import on_any_rank
from trainer.learner.errors import NonFiniteError

LIMIT = 3
"""Steps in a row without a finite gradient after which training stops."""


class OptimizerStep:
    """The steps of one model, `name`."""

    def __init__(self, engine: Any, name: str, ranks: int) -> None:
        self.engine, self.name, self.ranks = engine, name, ranks
        self.skipped_in_a_row = 0

    def backward(self, loss: torch.Tensor) -> None:
        """Add the gradient of this rank's share of a loss. One that is not finite spoils the step, on all ranks."""
        if not bool(torch.isfinite(loss.detach())):
            # its gradient may be finite all the same: make sure that it is not, since that is what ranks agree on
            loss = loss * float("nan")
        # ZeRO averages gradients over ranks; the shares must add up
        self.engine.backward(loss * self.ranks)

    def take(self) -> bool:
        """Step, or drop the gradient on all ranks if it is not finite on one. Returns whether the weights moved.

        A collective.

        Raises:
            NonFiniteError: it was the third in a row that was dropped.
        """
        if self.engine.zero_optimization_stage() == 0 and on_any_rank(not _finite(self.engine.module)):
            # ZeRO looks for itself, over all ranks; without it nobody does
            self.engine.zero_grad()
            applied = False
        else:
            self.engine.step()
            applied = bool(self.engine.was_step_applied())
        self.skipped_in_a_row = 0 if applied else self.skipped_in_a_row + 1
        if self.skipped_in_a_row >= LIMIT:
            raise NonFiniteError(
                f"the gradient of the {self.name} was not finite in {LIMIT} steps in a row; look at the last batches' "
                "losses and advantages, lower learner.lr, or go on from an earlier checkpoint"
            )
        return applied


def _finite(model: torch.nn.Module) -> bool:
    gradients = [parameter.grad for parameter in model.parameters() if parameter.grad is not None]
    return all(bool(torch.isfinite(gradient).all()) for gradient in gradients)
