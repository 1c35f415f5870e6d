"""A model under DeepSpeed that computes packed rows."""

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from jaxtyping import Float

from trainer.learner.attention_backends import BACKENDS, Backend
from trainer.learner.moe.replay import RoutingReplay
from trainer.learner.offload import activations_on_host
from trainer.learner.packing import PackedRow
from trainer.learner.sequence.group import SequenceGroup
from trainer.learner.sequence.parts import RowPart


class PackedModel:
    """A DeepSpeed engine, called row by row. `head` is the engine's output head.

    With a `sequence` group, this rank computes a part of each row, and all of the group are called with the same row.
    """

    def __init__(
        self, engine: Any, head: Any, backend: Backend = BACKENDS["sdpa"], offload_activations: bool = False
    ) -> None:
        self.engine, self.head, self.backend, self.offloads = engine, head, backend, offload_activations
        self.replay: RoutingReplay | None = None
        self.sequence: SequenceGroup | None = None

    @property
    def device(self) -> torch.device:
        return torch.device(self.engine.device)

    def forward(self, row: PackedRow, temperature: float = 1.0) -> Float[torch.Tensor, " N"]:
        """What the head says of the row's trained tokens: log-probs, or values."""
        if self.sequence is None:
            return self._say(row, row, temperature)
        part = self.sequence.part(row)
        said = self._say(row, part, temperature, sequence=self.sequence)
        beside = [getattr(self.head, name) for name in self.head.beside]
        said, *whole = self.sequence.put_together((said, *beside), part, len(row.target_ids))
        for name, values in zip(self.head.beside, whole, strict=True):
            setattr(self.head, name, values)
        return said

    def _say(
        self, row: PackedRow, part: PackedRow | RowPart, temperature: float, **arguments: Any
    ) -> Float[torch.Tensor, " n"]:
        """What the head says of the trained tokens of a row's part, which may be all of it."""
        device = self.device
        self.head.aim(part.target_ids.to(device), temperature)
        if self.replay is not None:
            self.replay.aim(row, device, part if isinstance(part, RowPart) else None)
        saving: AbstractContextManager[Any] = activations_on_host(part.tokens) if self.offloads else nullcontext()
        with saving:
            output = self.engine(
                input_ids=part.token_ids.to(device),
                position_ids=part.position_ids.to(device),
                logits_to_keep=part.hidden_index.to(device),
                use_cache=False,
                **self.backend.arguments(part.spans, device),
                **arguments,
            )
        return output.logits[0, :, 0]
