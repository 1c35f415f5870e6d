"""The policy without its adapters: the model that training began with, for no memory at all."""

import torch
from jaxtyping import Float

from trainer.learner.lora.adapters import adapters_off
from trainer.learner.packed_model import PackedModel
from trainer.learner.packing import PackedRow


class LoraBase(PackedModel):
    """A frozen reference that is the policy's own engine."""

    def __init__(self, policy: PackedModel) -> None:
        super().__init__(policy.engine, policy.head, policy.backend)
        self.replay, self.sequence = policy.replay, policy.sequence

    def forward(self, row: PackedRow, temperature: float = 1.0) -> Float[torch.Tensor, " N"]:
        with adapters_off(self.engine.module), torch.no_grad():
            return super().forward(row, temperature)
