"""A rank's part of a row."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from jaxtyping import Int

if TYPE_CHECKING:
    from trainer.learner.packing import PackedRow, Span


@dataclass(frozen=True)
class RowPart:
    """Tokens [start, start + L) of a row that is filled up so that all parts are of length L.

    `spans` are those of the whole row, filling included: attention sees all of it. `hidden_index` counts from `start`;
    `trained` says which of the row's trained tokens are predicted here, n of them.
    """

    start: int
    token_ids: Int[torch.Tensor, "1 L"]
    position_ids: Int[torch.Tensor, "1 L"]
    spans: "tuple[Span, ...]"
    hidden_index: Int[torch.Tensor, " n"]
    target_ids: Int[torch.Tensor, " n"]
    trained: Int[torch.Tensor, " n"]

    @property
    def tokens(self) -> int:
        return self.token_ids.shape[1]

    def cut(self, values: torch.Tensor, filling: int) -> torch.Tensor:
        """The part's entries of `values` [T, ..], which has one a token of the row."""
        mine = values[self.start : self.start + self.tokens]
        rest = values.new_full((self.tokens - len(mine), *values.shape[1:]), filling)
        return torch.cat([mine, rest])


def part_of(row: "PackedRow", place: int, parts: int) -> RowPart:
    """Part number `place` of a row in `parts` parts. What fills the row up sees itself alone, and trains nothing."""
    from trainer.learner.packing import Span

    length = -(-row.tokens // parts)
    start, end, filled = place * length, (place + 1) * length, parts * length
    trained = ((row.hidden_index >= start) & (row.hidden_index < end)).nonzero()[:, 0]
    filling = (Span(row.tokens, filled, row.tokens, row.tokens),) if filled > row.tokens else ()

    def mine(values: torch.Tensor) -> torch.Tensor:
        # any token will do
        return torch.nn.functional.pad(values, (0, filled - row.tokens))[:, start:end]

    return RowPart(
        start,
        mine(row.token_ids),
        mine(row.position_ids),
        row.spans + filling,
        row.hidden_index[trained] - start,
        row.target_ids[trained],
        trained,
    )
