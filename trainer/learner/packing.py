"""Packs rollouts into rows without padding; rollouts of a group share the computation of their common prompt.

A row is a sequence of trees. A tree is a prefix and branches; the prefix attends to itself, a branch to the prefix and
to itself, positions go on after the prefix. The eight attempts at a task thus cost one prompt instead of eight, with
the same gradient. A rollout that shares nothing is a tree with an empty prefix and one branch.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from jaxtyping import Float, Int

from trainer.learner.samples import TrainSample

Share = Literal["auto", "always", "never"]
"""Whether rollouts of a group share the computation of their common prompt; `auto` where that pays."""

_PAYS = 0.05
"""Part of a tree's tokens that sharing must spare."""


@dataclass(frozen=True)
class Span:
    """Tokens [start, end) of a row that attend to [prefix_start, prefix_end) and causally to themselves."""

    start: int
    end: int
    prefix_start: int
    prefix_end: int


@dataclass(frozen=True)
class Source:
    """Tokens of a row from `place` on are the tokens [start, end) of the rollout `sample`."""

    place: int
    sample: int
    start: int
    end: int


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
    sources: tuple[Source, ...] = ()

    @property
    def tokens(self) -> int:
        return self.token_ids.shape[1]


@dataclass(frozen=True)
class Tree:
    """Rollouts that are computed together, and how many leading tokens of theirs are computed once."""

    samples: tuple[TrainSample, ...]
    prefix: int

    @property
    def tokens(self) -> int:
        """How many it takes to compute them."""
        return self.prefix + sum(len(sample.token_ids) - self.prefix for sample in self.samples)


def pack_rows(samples: Sequence[TrainSample], budget: int, share: Share = "always") -> list[PackedRow]:
    """Rows of at most `budget` tokens (more only where one rollout alone is longer); each trained token is in one."""
    return pack_trees(grow_trees(samples, budget, share), budget)


def pack_trees(trees: Sequence[Tree], budget: int) -> list[PackedRow]:
    """As few rows of at most `budget` tokens as it takes to put the longest tree first into the first row with room.

    Raises:
        AssertionError: a trained token was lost or doubled; a fault of this module.
    """
    rows: list[list[Tree]] = []
    used: list[int] = []
    for tree in sorted(trees, key=lambda tree: -tree.tokens):
        place = next((i for i, tokens in enumerate(used) if tokens + tree.tokens <= budget), None)
        if place is None:
            rows.append([tree])
            used.append(tree.tokens)
        else:
            rows[place].append(tree)
            used[place] += tree.tokens
    packed = [_row(row) for row in rows]
    expected = sum(sample.trained_tokens for tree in trees for sample in tree.samples)
    have = sum(len(row.target_ids) for row in packed)
    assert have == expected, f"{expected} trained tokens became {have} in packing"
    return packed


def dummy_row(like: TrainSample) -> PackedRow:
    """A row of one token that trains nothing, for a rank with fewer rows: all ranks must join each collective."""
    nothing = torch.empty(0, dtype=torch.long)
    return PackedRow(
        torch.tensor([[like.token_ids[0]]]), torch.tensor([[0]]), (Span(0, 1, 0, 0),), nothing, nothing, nothing, {}, ()
    )


def _agree(first: TrainSample, second: TrainSample, limit: int) -> int:
    """Number of leading tokens, of `limit` at most, that are the same and the prompt of both."""
    limit = min(limit, second.prompt_length)
    if first.token_ids[:limit] == second.token_ids[:limit]:
        return limit
    return next(i for i in range(limit) if first.token_ids[i] != second.token_ids[i])


def grow_trees(samples: Iterable[TrainSample], budget: int, share: Share) -> list[Tree]:
    """The samples as trees of at most `budget` tokens, none of more than one group."""
    groups: dict[str, list[TrainSample]] = {}
    for sample in samples:
        groups.setdefault(sample.group_id, []).append(sample)
    trees: list[Tree] = []
    for group in groups.values():
        if share == "never":
            trees += [Tree((sample,), 0) for sample in group]
            continue
        for tree in _group_trees(group, budget):
            if share == "always" or _pays(tree):
                trees.append(tree)
            else:
                trees += [Tree((sample,), 0) for sample in tree.samples]
    return trees


def _group_trees(group: Sequence[TrainSample], budget: int) -> Iterator[Tree]:
    tree: tuple[TrainSample, ...] = ()
    prefix = total = 0
    for sample in sorted(group, key=lambda sample: len(sample.token_ids)):
        size = len(sample.token_ids)
        agreed = _agree(tree[0], sample, prefix) if tree else sample.prompt_length
        if tree and total + size - len(tree) * agreed > budget:
            yield Tree(tree, prefix if len(tree) > 1 else 0)
            tree, total, agreed = (), 0, sample.prompt_length
        tree, prefix, total = (*tree, sample), agreed, total + size
    yield Tree(tree, prefix if len(tree) > 1 else 0)


def _pays(tree: Tree) -> bool:
    """Whether what sharing spares outweighs that branches attend through a mask, to a prefix that is copied to each."""
    spared = (len(tree.samples) - 1) * tree.prefix
    return spared >= _PAYS * (tree.tokens + spared)


def _row(trees: Sequence[Tree]) -> PackedRow:
    ids: list[int] = []
    positions: list[int] = []
    spans: list[Span] = []
    sources: list[Source] = []
    hidden: list[int] = []
    targets: list[int] = []
    owners: list[int] = []
    samples: list[TrainSample] = []
    for tree in trees:
        prefix = tree.prefix
        prefix_start = len(ids)
        ids += tree.samples[0].token_ids[:prefix]
        positions += range(prefix)
        if prefix:
            spans.append(Span(prefix_start, prefix_start + prefix, prefix_start, prefix_start))
            # computed once, the prefix can follow one record: of the first rollout that has one
            told = next((i for i, sample in enumerate(tree.samples) if sample.experts is not None), 0)
            sources.append(Source(prefix_start, len(samples) + told, 0, prefix))
        for sample in tree.samples:
            start = len(ids)
            ids += sample.token_ids[prefix:]
            positions += range(prefix, len(sample.token_ids))
            spans.append(Span(start, len(ids), prefix_start, prefix_start + prefix))
            sources.append(Source(start, len(samples), prefix, len(sample.token_ids)))
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
        sources=tuple(sources),
    )
