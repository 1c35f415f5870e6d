"""Which rows a rank computes: about as many tokens as its peers, in exactly as many rows."""

from collections.abc import Sequence
from dataclasses import dataclass

from trainer.learner.balance import balance
from trainer.learner.packing import PackedRow, Share, Tree, dummy_row, grow_trees, pack_trees
from trainer.learner.samples import TrainSample

_PARTS = (1.25, 1.1, 1.0, 0.5, 0.25)
"""Sizes of trees that are tried, in shares of a rank."""


@dataclass(frozen=True)
class Shares:
    """Rows by rank, and the tokens that each rank computes, dummies left out."""

    rows: list[list[PackedRow]]
    loads: list[int]


def share_out(samples: Sequence[TrainSample], ranks: int, budget: int, share: Share) -> Shares:
    """Pack samples into rows for all ranks. Every rank has the same number of rows, of at most `budget` tokens.

    Each row is a chain of collectives that all ranks must join: one with fewer fills up with rows that train nothing.
    """
    if not samples:
        return Shares([[] for _ in range(ranks)], [0] * ranks)
    parts = min(_splits(samples, ranks, budget, share), key=lambda parts: max(map(_tokens, parts)))
    rows = [pack_trees(part, budget) for part in parts]
    most = max(map(len, rows))
    shortest = min(samples, key=lambda sample: len(sample.token_ids))
    filled = [part + [dummy_row(shortest)] * (most - len(part)) for part in rows]
    return Shares(filled, [_tokens(part) for part in parts])


def _splits(samples: Sequence[TrainSample], ranks: int, budget: int, share: Share) -> list[list[list[Tree]]]:
    """Ways to divide the samples over ranks: small trees balance better, large ones share more."""
    total = sum(tree.tokens for tree in grow_trees(samples, budget, share))
    # parts of a rank's share; a little more than a whole one, since divided groups compute their prompt again
    sizes = [total * part / ranks for part in _PARTS] if ranks > 1 else []
    splits = []
    for limit in sorted({budget, *(min(budget, max(int(size), 1)) for size in sizes)}, reverse=True):
        trees = grow_trees(samples, limit, share)
        splits.append([[trees[i] for i in part] for part in balance([tree.tokens for tree in trees], ranks)])
    return splits


def _tokens(trees: Sequence[Tree]) -> int:
    return sum(tree.tokens for tree in trees)
