"""Sums and extremes over each rollout of a flat column, in blocks that stay in the processor's cache.

A column of a step may have tens of millions of tokens. Reading it in blocks, and doing all that is to be done with a
block before the next one, costs about one trip to memory, and temporaries as small as a block.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float, Int
from numpy.typing import NDArray

BLOCK = 32_768
"""Tokens; a dozen float64 temporaries of a block fit into a core's cache."""

_FEW = 8


class SegmentError(ValueError):
    """Tokens that cannot be told apart by rollout."""


@dataclass(frozen=True)
class Segments:
    """Where each rollout's tokens lie. Only the K rollouts that have tokens are here; `owners` are their numbers.

    `bounds` holds the K starts and the end.
    """

    owners: NDArray[np.int64]
    bounds: NDArray[np.int64]
    count: int

    @classmethod
    def of_index(cls, sample_index: Int[torch.Tensor, " N"], count: int) -> "Segments":
        """From the rollout that each token belongs to.

        Raises:
            SegmentError: rollouts are interleaved or not in order, or a number is not below `count`.
        """
        index = sample_index.cpu().numpy()
        for start in range(0, len(index), BLOCK):
            part = index[start : start + BLOCK + 1]
            if bool((part[1:] < part[:-1]).any()):
                raise SegmentError("sample_index must not decrease: tokens of a rollout are next to each other")
        if len(index) and not 0 <= index[0] <= index[-1] < count:
            raise SegmentError(f"sample_index goes from {index[0]} to {index[-1]}, but there are {count} rollouts")
        return cls._of_starts(np.searchsorted(index, np.arange(count + 1)))

    @classmethod
    def of_lengths(cls, lengths: Int[torch.Tensor, " S"]) -> "Segments":
        """From the number of tokens of each rollout."""
        return cls._of_starts(np.concatenate([[0], np.cumsum(lengths.cpu().numpy())]))

    @classmethod
    def _of_starts(cls, starts: NDArray[np.int64]) -> "Segments":
        owners = np.flatnonzero(np.diff(starts))
        return cls(owners, np.append(starts[owners], starts[-1]), len(starts) - 1)

    @property
    def lengths(self) -> NDArray[np.int64]:
        """[K] tokens."""
        return np.diff(self.bounds)

    def blocks(self) -> Iterator["Block"]:
        """All tokens, a block at a time."""
        end = int(self.bounds[-1])
        for start in range(0, end, BLOCK):
            stop = min(start + BLOCK, end)
            first = int(np.searchsorted(self.bounds, start, side="right")) - 1
            last = int(np.searchsorted(self.bounds, stop, side="left"))
            cuts = self.bounds[first:last] - start
            cuts[0] = 0
            yield Block(slice(start, stop), slice(first, last), cuts)

    def spread(self, values: NDArray[np.float64], empty: float = 0.0) -> Float[torch.Tensor, " S"]:
        """Values of the K rollouts at their numbers, `empty` for those without tokens."""
        full = np.full(self.count, empty)
        full[self.owners] = values
        return torch.from_numpy(full)


@dataclass(frozen=True)
class Block:
    """Tokens `tokens` of a column, which belong to the rollouts `rows` of the K; each one's part starts at a cut."""

    tokens: slice
    rows: slice
    cuts: NDArray[np.int64]

    def add_sums(self, values: Float[torch.Tensor, " B"], totals: NDArray[np.float64]) -> None:
        """Add the sums of this block's values to the rollouts' totals."""
        totals[self.rows] += self._reduce(values, np.add)

    def raise_maxima(self, values: Float[torch.Tensor, " B"], maxima: NDArray[np.float64]) -> None:
        """Raise the rollouts' maxima to those of this block's values."""
        np.maximum(maxima[self.rows], self._reduce(values, np.maximum), out=maxima[self.rows])

    def _reduce(self, values: Float[torch.Tensor, " B"], reduction: np.ufunc) -> NDArray[np.float64]:
        if len(self.cuts) > _FEW:
            return np.asarray(reduction.reduceat(values.numpy(), self.cuts), dtype=np.float64)
        # torch reduces a long stretch several times faster, and sums it pairwise
        whole = torch.Tensor.sum if reduction is np.add else torch.Tensor.amax
        ends = [*self.cuts[1:], len(values)]
        return np.array([float(whole(values[start:end])) for start, end in zip(self.cuts, ends, strict=True)])
