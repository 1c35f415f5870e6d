"""Packed, prefix-shared passes give the log-probs and gradients of one sequence at a time."""

import dataclasses

import pytest
import torch
from support.plain import (
    assert_same_gradients,
    gradients,
    load_packed,
    load_plain,
    plain_logprobs,
    samples_like,
    sharpen,
)
from support.tiny import tiny_model

from trainer.learner.attention import packed_attention
from trainer.learner.config import LearnerConfig
from trainer.learner.packing import PackedRow, Span, TrainSample, pack_rows

TEMPERATURE = 0.8
SAMPLES = samples_like([(17, 3), (9, 1), (6, 2)])


@pytest.fixture(scope="module", params=[True, False], ids=["tied", "untied"])
def folder(request, tmp_path_factory):
    return sharpen(tiny_model(tmp_path_factory.mktemp("model") / "tiny", tied=request.param))


@pytest.fixture(scope="module")
def tied(tmp_path_factory):
    return sharpen(tiny_model(tmp_path_factory.mktemp("model") / "tied"))


def packed_logprobs(model, row: PackedRow) -> torch.Tensor:
    model.lm_head.aim(row.target_ids, TEMPERATURE)
    output = model(
        input_ids=row.token_ids,
        position_ids=row.position_ids,
        logits_to_keep=row.hidden_index,
        spans=row.spans,
        use_cache=False,
    )
    return output.logits[0, :, 0]


def by_sample(model, samples: list[TrainSample], budget: int) -> dict[int, torch.Tensor]:
    """Log-probs of each sample's trained tokens, by its index."""
    found = {}
    for row in pack_rows(samples, budget):
        values = packed_logprobs(model, row)
        for place, sample in enumerate(row.samples):
            found[sample.index] = values[row.sample_index == place]
    return found


def loss(logprobs: dict[int, torch.Tensor]) -> torch.Tensor:
    """A sum in which every token has a weight of its own."""
    generator = torch.Generator().manual_seed(7)
    weights = [torch.randn(len(logprobs[i]), generator=generator) for i in sorted(logprobs)]
    return sum(((logprobs[i] * w).sum() for i, w in zip(sorted(logprobs), weights, strict=True)), torch.zeros(()))


def test_predictions_are_sharp_enough_to_compare(folder):
    values = torch.cat([plain_logprobs(load_plain(folder), s, TEMPERATURE) for s in SAMPLES])
    assert values.std() > 1


@pytest.mark.parametrize("budget", [1, 60, 2048], ids=["alone", "some", "all in one row"])
def test_logprobs_and_gradients_equal_those_of_one_sequence_at_a_time(folder, budget):
    plain, packed = load_plain(folder), load_packed(folder)
    want = {s.index: plain_logprobs(plain, s, TEMPERATURE) for s in SAMPLES}
    have = by_sample(packed, SAMPLES, budget)
    for index in want:
        torch.testing.assert_close(have[index], want[index], atol=1e-5, rtol=1e-5)
    loss(want).backward()
    loss(have).backward()
    assert_same_gradients(gradients(packed), gradients(plain), 1e-5)


@pytest.mark.parametrize("products", ["bfloat16", "float32"])
def test_bf16_is_close_to_fp32(tied, products):
    plain = load_plain(tied, torch.bfloat16).float()
    packed = load_packed(tied, LearnerConfig(matmul_dtype=products))
    found = by_sample(packed, SAMPLES, 2048)
    have = torch.cat([found[s.index] for s in SAMPLES])
    want = torch.cat([plain_logprobs(plain, s, TEMPERATURE) for s in SAMPLES])
    assert torch.corrcoef(torch.stack([have, want]))[0, 1] > 0.99
    assert (have - want).abs().mean() < 0.15


def test_neighbours_in_a_row_change_nothing(tied):
    """A row with another rollout's prompt, answer and log-probs replaced gives the same numbers for this one."""
    model = load_packed(tied)
    mine, other = SAMPLES[0], SAMPLES[3]
    changed = dataclasses.replace(
        other,
        token_ids=[255 - t for t in other.token_ids],
        columns={name: column - 9 for name, column in other.columns.items()},
    )
    results = []
    for neighbour in (other, changed):
        model.zero_grad()
        values = by_sample(model, [neighbour, mine], 2048)
        values[mine.index].sum().backward()
        results.append((values[mine.index].detach(), gradients(model)))
    torch.testing.assert_close(results[0][0], results[1][0], atol=1e-6, rtol=0)
    assert_same_gradients(results[1][1], results[0][1], 1e-6)


def test_what_comes_after_the_last_trained_token_changes_nothing(tied):
    model = load_packed(tied)
    base = SAMPLES[0]
    longer = dataclasses.replace(
        base,
        token_ids=[*base.token_ids, 5, 6],
        loss_mask=[*base.loss_mask, 0, 0],
    )
    have, want = by_sample(model, [longer], 2048)[0], by_sample(model, [base], 2048)[0]
    torch.testing.assert_close(have, want, atol=1e-6, rtol=0)


def test_spans_must_cover_the_row():
    states = torch.randn(1, 2, 6, 4)
    for spans in (None, (Span(0, 5, 0, 0),), (Span(0, 2, 0, 0), Span(3, 6, 0, 0))):
        with pytest.raises(ValueError, match="do not cover the row of 6 tokens"):
            packed_attention(torch.nn.Module(), states, states, states, None, spans=spans)


def test_a_sliding_window_is_refused():
    states = torch.randn(1, 2, 6, 4)
    spans = (Span(0, 6, 0, 0),)
    with pytest.raises(ValueError, match="sliding window"):
        packed_attention(torch.nn.Module(), states, states, states, None, spans=spans, sliding_window=4)
    packed_attention(torch.nn.Module(), states, states, states, None, spans=spans, sliding_window=6)
