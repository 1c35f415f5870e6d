"""The parts of a row are the row, whatever its length; what fills it up trains nothing and sees itself alone."""

import numpy as np
import pytest
import torch
from support.mixture import tiny_mixture
from support.plain import load_packed, samples_like

from trainer.learner.attention import visible
from trainer.learner.moe.replay import RoutingReplay
from trainer.learner.packing import dummy_row, pack_rows
from trainer.learner.sequence.parts import part_of

SAMPLES = samples_like([(17, 3), (9, 2)])
(SHARED,) = pack_rows(SAMPLES, 2048)


@pytest.mark.parametrize("size", [2, 3, 4, 7])
@pytest.mark.parametrize(
    "row", [SHARED, pack_rows(SAMPLES, 2048, "never")[0], dummy_row(SAMPLES[0])], ids=["shared", "alone", "dummy"]
)
def test_parts_are_the_row(row, size):
    parts = [part_of(row, place, size) for place in range(size)]
    assert len({part.tokens for part in parts}) == 1 and 0 <= size * parts[0].tokens - row.tokens < size
    for name in ("token_ids", "position_ids"):
        assert torch.equal(torch.cat([getattr(part, name) for part in parts], 1)[:, : row.tokens], getattr(row, name))
    order = torch.cat([part.trained for part in parts])
    assert torch.equal(order.sort().values, torch.arange(len(row.target_ids))), "each trained token is in one part"
    assert torch.equal(torch.cat([part.hidden_index + part.start for part in parts]), row.hidden_index[order])
    assert torch.equal(torch.cat([part.target_ids for part in parts]), row.target_ids[order])
    assert all(0 <= i < part.tokens for part in parts for i in part.hidden_index.tolist())


def test_attention_sees_the_whole_row_and_nothing_of_what_fills_it_up():
    part = part_of(SHARED, 1, 7)
    sees, tokens = visible(part.spans), SHARED.tokens
    assert len(sees) == 7 * part.tokens > tokens
    assert torch.equal(sees[:tokens, :tokens], visible(SHARED.spans))
    assert not sees[:tokens, tokens:].any() and not sees[tokens:, :tokens].any()


def test_records_of_routing_are_cut_as_tokens_are(tmp_path):
    """Each rank replays its part, and together they count what one would."""
    samples = [
        type(s)(**vars(s) | {"experts": np.tile(np.array([[[0, 1], [2, 3]]], "<i2"), (len(s.token_ids) - 1, 1, 1))})
        for s in SAMPLES
    ]
    (row,) = pack_rows(samples, 2048)
    whole = RoutingReplay(load_packed(tiny_mixture(tmp_path / "mixture")))
    whole.aim(row)
    records, counts = [], []
    for place in range(4):
        replay = RoutingReplay(load_packed(tmp_path / "mixture"))
        replay.aim(row, "cpu", part_of(row, place, 4))
        records.append(replay._record)
        counts.append(replay.counts())
    together = torch.cat(records)
    assert torch.equal(together[: row.tokens], whole._record) and (together[row.tokens :] == -1).all()
    assert tuple(map(sum, zip(*counts, strict=True))) == whole.counts()
