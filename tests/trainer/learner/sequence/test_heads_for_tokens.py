"""Attention of ranks that exchange tokens for heads is attention over the whole row, gradients included.

Ranks are threads here; that processes do the same is in tests/integration.
"""

from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

import pytest
import torch
from support.plain import samples_like

from trainer.learner.attention import packed_attention
from trainer.learner.packing import pack_rows
from trainer.learner.sequence.attention import over_heads
from trainer.learner.sequence.group import SequenceGroup
from trainer.learner.sequence.parts import part_of

(ROW,) = pack_rows(samples_like([(18, 3), (9, 1)]), 2048)


class ThreadGroup(SequenceGroup):
    """A rank that is a thread; `channel` is a barrier of all, and what they brought to it."""

    def exchange(self, pieces):
        barrier, brought = self.channel
        brought[self.place] = pieces
        barrier.wait()
        received = torch.stack([brought[sender][self.place] for sender in range(self.size)])
        barrier.wait()
        return received


@pytest.mark.parametrize(("heads", "key_heads", "size"), [(4, 4, 2), (4, 2, 2), (4, 2, 4), (6, 3, 2), (8, 1, 4)])
def test_the_same_as_over_whole_rows(heads, key_heads, size):
    generator = torch.Generator().manual_seed(0)
    part = part_of(ROW, 0, size)
    tokens = size * part.tokens
    assert tokens > ROW.tokens, "it is filled up"
    states = [
        torch.randn(1, count, tokens, 16, generator=generator, requires_grad=True)
        for count in (heads, key_heads, key_heads)
    ]
    want, _ = packed_attention(torch.nn.Module(), *states, None, spans=part.spans)
    direction = torch.randn(want.shape, generator=generator)
    plain = torch.autograd.grad((want * direction).sum(), states)

    channel = (Barrier(size), [None] * size)
    attend = over_heads(packed_attention)

    def rank(place):
        mine = [state.split(part.tokens, 2)[place] for state in states]
        group = ThreadGroup(size, place, channel)
        return attend(torch.nn.Module(), *mine, None, sequence=group, spans=part.spans)[0]

    with ThreadPoolExecutor(size) as pool:
        have = torch.cat(list(pool.map(rank, range(size))), 1)
    torch.testing.assert_close(have, want)
    for mine, theirs in zip(torch.autograd.grad((have * direction).sum(), states), plain, strict=True):
        torch.testing.assert_close(mine, theirs)


def test_without_a_group_or_with_heads_that_do_not_divide():
    states = [torch.zeros(1, 3, 4, 8)] * 3
    attend = over_heads(packed_attention)
    with pytest.raises(ValueError, match="sequence group"):
        attend(torch.nn.Module(), *states, None, spans=ROW.spans)
    with pytest.raises(ValueError, match=r"3 heads do not divide by learner\.sp_size 2"):
        attend(torch.nn.Module(), *states, None, sequence=SequenceGroup(2, 0, None), spans=ROW.spans)
