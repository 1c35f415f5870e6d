"""Which tensors a sync sends, and in which portions."""

from types import SimpleNamespace

import torch
from support.plain import load_packed
from support.tiny import tiny_model

from trainer.learner.weights import _buckets, largest_tensor_bytes


def test_a_tied_tensor_is_sent_under_both_names(tmp_path):
    model = load_packed(tiny_model(tmp_path / "tiny"))
    sent = [name for bucket in _buckets(model, 2**20) for name, _ in bucket]
    assert {"model.embed_tokens.weight", "lm_head.weight"} <= set(sent)
    assert len(set(sent)) == len(sent)
    assert set(sent) == {name for name, _ in model.named_parameters(remove_duplicate=False)}


def test_buckets_are_bounded(tmp_path):
    model = load_packed(tiny_model(tmp_path / "tiny"))
    limit = 40_000
    buckets = list(_buckets(model, limit))
    assert len(buckets) > 2
    for bucket in buckets:
        assert len(bucket) == 1 or sum(p.numel() * p.element_size() for _, p in bucket) <= limit


def test_the_largest_tensor_is_measured_in_the_type_it_travels_in():
    engine = SimpleNamespace(module=torch.nn.Sequential(torch.nn.Linear(3, 5), torch.nn.Linear(2, 2)))
    assert largest_tensor_bytes(engine, torch.bfloat16) == 30
    assert largest_tensor_bytes(engine, torch.float32) == 60
