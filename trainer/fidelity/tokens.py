"""The sampled tokens of a batch, as engine and trainer see them."""

from dataclasses import dataclass
from typing import Self

import numpy as np
import pyarrow as pa
from jaxtyping import Bool, Float, Int

from trainer.batch import sampled, sampled_lengths

COLUMNS = ["loss_mask", "logprobs", "weight_versions", "routing_shape"]
"""What is read of a batch: small against the routing itself."""


@dataclass(frozen=True)
class ComparedTokens:
    """Columns with one entry a sampled token, in the order of the batch.

    `difference` is the trainer's log-prob less the engine's. `rollout` numbers the rows of the batch, `answer` the
    answers of a row, `position` the tokens of an answer, all from 0. `routed` says whether the batch holds the experts
    that the engine chose for the token.
    """

    trainer: Float[np.ndarray, " N"]
    engine: Float[np.ndarray, " N"]
    versions: Int[np.ndarray, " N"]
    rollout: Int[np.ndarray, " N"]
    answer: Int[np.ndarray, " N"]
    position: Int[np.ndarray, " N"]
    routed: Bool[np.ndarray, " N"]

    @classmethod
    def read(cls, batch: pa.Table, scores: pa.Table | None) -> Self:
        """From batch.parquet and, if the trainer's log-probs were computed, scores.parquet; else they are NaN.

        Raises:
            RolloutError: a column does not have the length of its rollouts.
        """
        engine = sampled(batch, "logprobs").astype(np.float64)
        known = scores is not None and "old_logprobs" in scores.column_names
        trainer = (
            scores.column("old_logprobs").to_numpy().astype(np.float64)
            if scores is not None and known
            else np.full(len(engine), np.nan)
        )
        lengths = sampled_lengths(batch)
        rollout = np.repeat(np.arange(batch.num_rows), lengths)
        answer, position = _places(batch, rollout)
        return cls(
            trainer, engine, sampled(batch, "weight_versions"), rollout, answer, position,
            np.repeat(_has_routing(batch), lengths),
        )  # fmt: skip

    def of_version(self, version: int) -> Self:
        """Those that were sampled from this weight version."""
        chosen = self.versions == version
        return type(self)(**{name: column[chosen] for name, column in vars(self).items()})

    @property
    def difference(self) -> Float[np.ndarray, " N"]:
        return self.trainer - self.engine

    @property
    def scored(self) -> bool:
        """Whether the trainer's log-probs are there."""
        return len(self.trainer) > 0 and not bool(np.isnan(self.trainer).any())

    def carried(self, chosen: Bool[np.ndarray, " N"]) -> float:
        """How far the mismatch is concentrated in the `chosen` tokens: their part of the sum of |difference|, from
        0, for no more than their number would give, to 1, for all of it. 0 if nothing or everything is chosen."""
        amount = np.abs(self.difference)
        share = float(chosen.mean()) if len(chosen) else 0.0
        if not 0 < share < 1 or not amount.sum() > 0:
            return 0.0
        return max(float(amount[chosen].sum() / amount.sum()) - share, 0.0) / (1 - share)


def _places(batch: pa.Table, rollout: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Number of its answer in the row, and position in the answer, of each sampled token."""
    lists = batch.column("loss_mask").combine_chunks()
    at = np.flatnonzero(np.asarray(lists.flatten().to_numpy(zero_copy_only=False)) == 1)
    if not len(at):
        return at, at
    # an answer begins after a token that was not sampled; rows begin with a prompt, so they are told apart as well
    begins = np.concatenate([[True], np.diff(at) > 1])
    number = np.cumsum(begins) - 1
    first_of_row = number[np.searchsorted(rollout, rollout)]
    return number - first_of_row, at - at[begins][number]


def _has_routing(batch: pa.Table) -> np.ndarray:
    return np.asarray(batch.column("routing_shape").is_valid().to_numpy(), dtype=bool)
