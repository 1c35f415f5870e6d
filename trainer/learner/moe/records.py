"""What a rollout's record says of the experts of each token.

A record is an array [tokens, layers, k] of expert ids, in which a choice that was not recorded is -1: layers without
experts, tokens that the engine did not report, and each rollout's last token, which the engine never read and whose
hidden state predicts nothing.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch
from jaxtyping import Int

from trainer.rollout import RolloutError

if TYPE_CHECKING:
    from trainer.learner.packing import PackedRow

NOT_RECORDED = -1


def read_record(data: memoryview | bytes, shape: Sequence[int], tokens: int) -> Int[np.ndarray, "T layers k"]:
    """The record of a rollout of so many tokens, from the columns of a batch; a view where it can be.

    Raises:
        RolloutError: bytes and shape do not fit each other, or the rollout.
    """
    positions, layers, chosen = shape
    if positions not in (tokens - 1, tokens) or len(data) != 2 * positions * layers * chosen:
        raise RolloutError(
            f"routing of shape {list(shape)} in {len(data)} bytes for {tokens} tokens; it needs all but the last "
            "token, and two bytes for each choice"
        )
    return np.frombuffer(data, dtype="<i2").reshape(positions, layers, chosen)


def is_recorded(experts: Int[np.ndarray, "T layers k"]) -> np.ndarray:
    """[T, layers] whether each entry is a choice of k different experts; engines fill what they do not know with 0."""
    ordered = np.sort(experts, axis=-1)
    return (ordered[..., 0] >= 0) & (ordered[..., 1:] != ordered[..., :-1]).all(-1)


def row_record(row: "PackedRow") -> Int[torch.Tensor, "T layers k"] | None:
    """The records of a packed row's rollouts, laid out as its tokens are; None if none of them has one.

    Raises:
        RolloutError: records of one row that differ in layers or in experts chosen a token.
    """
    shapes = {sample.experts.shape[1:] for sample in row.samples if sample.experts is not None}
    if not shapes:
        return None
    if len(shapes) > 1:
        raise RolloutError(f"rollouts of one batch have routing of different shapes, {sorted(shapes)} for each token")
    experts = np.full((row.tokens, *shapes.pop()), NOT_RECORDED, dtype=np.int16)
    for source in row.sources:
        sample = row.samples[source.sample]
        if sample.experts is not None:
            part = sample.experts[source.start : min(source.end, len(sample.token_ids) - 1)]
            experts[source.place : source.place + len(part)] = np.where(
                is_recorded(part)[..., None], part, NOT_RECORDED
            )
    return torch.from_numpy(experts)
