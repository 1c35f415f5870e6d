"""Freezing by pattern."""

import pytest
import torch
from support.plain import gradients, load_packed
from support.tiny import tiny_model
from torch import nn

from trainer.learner.freeze import FreezeError, freeze
from trainer.learner.packing import pack_rows


def model():
    return nn.ModuleDict({"embed": nn.Embedding(4, 3), "layers": nn.ModuleList([nn.Linear(3, 3), nn.Linear(3, 3)])})


def test_what_matches_is_not_trained():
    net = model()
    assert freeze(net, [r"embed", r"layers\.0\.w"]) == ["embed.weight", "layers.0.weight"]
    assert [name for name, p in net.named_parameters() if p.requires_grad] == [
        "layers.0.bias", "layers.1.weight", "layers.1.bias"
    ]  # fmt: skip


def test_a_pattern_that_matches_nothing_is_an_error():
    with pytest.raises(FreezeError, match=r"learner.freeze: 'layers\\\\.7' is found in no .* like embed.weight, "):
        freeze(model(), ["embed", r"layers\.7"])


def test_freezing_everything_is_an_error():
    with pytest.raises(FreezeError, match="leave nothing to train"):
        freeze(model(), ["embed", "layers"])


def test_a_frozen_head_costs_no_gradient_and_layers_before_it_keep_theirs(tmp_path):
    from support.plain import samples_like

    net = load_packed(tiny_model(tmp_path / "tied"))
    freeze(net, ["lm_head"])
    (row,) = pack_rows(samples_like([(5, 2)]), 2048)
    net.lm_head.aim(row.target_ids, 1.0)
    output = net(
        input_ids=row.token_ids, position_ids=row.position_ids, logits_to_keep=row.hidden_index, spans=row.spans
    )
    output.logits.sum().backward()
    found = gradients(net)
    assert not any("embed" in name or "lm_head" in name for name in found), "the embedding is tied to the head"
    assert all(bool(torch.isfinite(g).all()) and g.abs().max() > 0 for g in found.values()) and len(found) > 10
