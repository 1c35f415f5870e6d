"""Packs rollouts into rows without padding; rollouts of a group share the computation of their common prompt.

A row is a sequence of trees. A tree is a prefix and branches; the prefix attends to itself, a branch to the prefix and
to itself, positions go on after the prefix. The eight attempts at a task thus cost one prompt instead of eight, with
the same gradient. A rollout that shares nothing is a tree with an empty prefix and one branch.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float, Int

from trainer.learner.samples import TrainSample


@dataclass(frozen=True)
class Span:
    """Tokens [start, end) of a row that attend to [prefix_start, prefix_end) and causally to themselves."""

    start: int
    end: int
    prefix_start: int
    prefix_end: int


@dataclass(frozen=True)
class PackedRow:
    """One forward pass. T tokens, N trained tokens of S rollouts.

    `hidden_index` says whose hidden state predicts each trained token, `sample_index` whose rollout it belongs to (into
    `samples`). Trained tokens are in the order of `samples`, and of `columns`, which are those that all samples have.
    """

    token_ids: Int[torch.Tensor, "1 T"]
    position_ids: Int[torch.Tensor, "1 T"]
    spans: tuple[Span, ...]
    hidden_index: Int[torch.Tensor, " N"]
    target_ids: Int[torch.Tensor, " N"]
    sample_index: Int[torch.Tensor, " N"]
    columns: Mapping[str, Float[torch.Tensor, " N"]]
    samples: tuple[TrainSample, ...]

    @property
    def tokens(self) -> int:
        return self.token_ids.shape[1]


def pack_rows(samples: Sequence[TrainSample], budget: int) -> list[PackedRow]:
    """Rows of at most `budget` tokens (more only where one rollout alone is longer); each trained token is in one.

    Raises:
        AssertionError: a trained token was lost or doubled; a fault of this module.
    """
    rows: list[PackedRow] = []
    trees: list[list[TrainSample]] = []
    used = 0
    for tree in _trees(samples, budget):
        cost = _tree_tokens(tree)
        if trees and used + cost > budget:
            rows.append(_row(trees))
            trees, used = [], 0
        trees.append(tree)
        used += cost
    if trees:
        rows.append(_row(trees))
    expected = sum(sample.trained_tokens for sample in samples)
    packed = sum(len(row.target_ids) for row in rows)
    assert packed == expected, f"{expected} trained tokens became {packed} in packing"
    return rows


def dummy_row(like: TrainSample) -> PackedRow:
    """A row that trains nothing, for a rank with fewer rows than its peers: all ranks must join each collective."""
    row = _row([[like]])
    nothing = torch.empty(0, dtype=torch.long)
    return PackedRow(row.token_ids, row.position_ids, row.spans, nothing, nothing, nothing, {}, ())


def split_over_ranks(rows: Sequence[PackedRow], ranks: int) -> list[list[PackedRow]]:
    """Rows dealt so that ranks carry about equal numbers of tokens: longest first, each to the lightest rank."""
    shares: list[list[PackedRow]] = [[] for _ in range(ranks)]
    loads = [0] * ranks
    for row in sorted(rows, key=lambda row: -row.tokens):
        lightest = loads.index(min(loads))
        shares[lightest].append(row)
        loads[lightest] += row.tokens
    return shares


def common_prefix(samples: Sequence[TrainSample]) -> int:
    """Number of leading tokens that all samples share and none of them trains."""
    limit = min(sample.prompt_length for sample in samples)
    first = samples[0].token_ids
    for i in range(limit):
        if any(sample.token_ids[i] != first[i] for sample in samples[1:]):
            return i
    return limit


def _trees(samples: Iterable[TrainSample], budget: int) -> list[list[TrainSample]]:
    groups: dict[str, list[TrainSample]] = {}
    for sample in samples:
        groups.setdefault(sample.group_id, []).append(sample)
    trees = []
    for group in groups.values():
        tree: list[TrainSample] = []
        for sample in sorted(group, key=lambda s: len(s.token_ids)):
            if tree and _tree_tokens([*tree, sample]) > budget:
                trees.append(tree)
                tree = []
            tree.append(sample)
        trees.append(tree)
    return trees


def _tree_tokens(tree: Sequence[TrainSample]) -> int:
    prefix = common_prefix(tree) if len(tree) > 1 else 0
    return prefix + sum(len(sample.token_ids) - prefix for sample in tree)


def _row(trees: Sequence[Sequence[TrainSample]]) -> PackedRow:
    ids: list[int] = []
    positions: list[int] = []
    spans: list[Span] = []
    hidden: list[int] = []
    targets: list[int] = []
    owners: list[int] = []
    samples: list[TrainSample] = []
    for tree in trees:
        prefix = common_prefix(tree) if len(tree) > 1 else 0
        prefix_start = len(ids)
        ids += tree[0].token_ids[:prefix]
        positions += range(prefix)
        if prefix:
            spans.append(Span(prefix_start, prefix_start + prefix, prefix_start, prefix_start))
        for sample in tree:
            start = len(ids)
            ids += sample.token_ids[prefix:]
            positions += range(prefix, len(sample.token_ids))
            spans.append(Span(start, len(ids), prefix_start, prefix_start + prefix))
            for i, trained in enumerate(sample.loss_mask):
                if trained:
                    # token i is predicted by the hidden state of token i - 1, which may be the prefix's last
                    hidden.append(prefix_start + i - 1 if i - 1 < prefix else start + i - 1 - prefix)
                    targets.append(sample.token_ids[i])
                    owners.append(len(samples))
            samples.append(sample)
    names = set.intersection(*(set(sample.columns) for sample in samples))
    return PackedRow(
        token_ids=torch.tensor([ids]),
        position_ids=torch.tensor([positions]),
        spans=tuple(spans),
        hidden_index=torch.tensor(hidden, dtype=torch.long),
        target_ids=torch.tensor(targets, dtype=torch.long),
        sample_index=torch.tensor(owners, dtype=torch.long),
        columns={name: torch.from_numpy(np.concatenate([s.columns[name] for s in samples])) for name in names},
        samples=tuple(samples),
    )
