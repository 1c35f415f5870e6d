"""A model under DeepSpeed that computes packed rows."""

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from jaxtyping import Float

from trainer.learner.attention_backends import BACKENDS, Backend
from trainer.learner.moe.replay import RoutingReplay
from trainer.learner.offload import activations_on_host
from trainer.learner.packing import PackedRow


class PackedModel:
    """A DeepSpeed engine, called row by row. `head` is the engine's output head."""

    def __init__(
        self, engine: Any, head: Any, backend: Backend = BACKENDS["sdpa"], offload_activations: bool = False
    ) -> None:
        self.engine, self.head, self.backend, self.offloads = engine, head, backend, offload_activations
        self.replay: RoutingReplay | None = None

    @property
    def device(self) -> torch.device:
        return torch.device(self.engine.device)

    def forward(self, row: PackedRow, temperature: float = 1.0) -> Float[torch.Tensor, " N"]:
        """What the head says of the row's trained tokens: log-probs, or values."""
        device = self.device
        self.head.aim(row.target_ids.to(device), temperature)
        if self.replay is not None:
            self.replay.aim(row, device)
        saving: AbstractContextManager[Any] = activations_on_host(row.tokens) if self.offloads else nullcontext()
        with saving:
            output = self.engine(
                input_ids=row.token_ids.to(device),
                position_ids=row.position_ids.to(device),
                logits_to_keep=row.hidden_index.to(device),
                use_cache=False,
                **self.backend.arguments(row.spans, device),
            )
        return output.logits[0, :, 0]
