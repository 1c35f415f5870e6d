"""Packing with shared prompts: every trained token once, predicted by a hidden state that sees its own past only."""

from collections import Counter

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support.rollouts import make_rollout, make_sample

from trainer.learner.packing import PackedRow, dummy_row, grow_trees, pack_rows
from trainer.learner.samples import TrainSample


@st.composite
def batches(draw) -> list[TrainSample]:
    """Groups whose prompts agree, agree at first, or do not; answers with any mask and at least one trained token."""
    samples = []
    for group in range(draw(st.integers(1, 4))):
        base = draw(st.lists(st.integers(0, 3), min_size=1, max_size=12))
        for _ in range(draw(st.integers(1, 5))):
            own = draw(st.lists(st.integers(0, 3), min_size=1, max_size=6))
            prompt = draw(st.sampled_from([base, base, base + own, own]))
            answer = draw(st.lists(st.integers(0, 3), min_size=1, max_size=10))
            mask = draw(st.lists(st.integers(0, 1), min_size=len(answer), max_size=len(answer)).filter(any))
            ids = prompt + answer
            samples.append(
                TrainSample(
                    index=len(samples),
                    session_id=f"session-{len(samples)}",
                    group_id=f"group-{group}",
                    token_ids=ids,
                    loss_mask=[0] * len(prompt) + mask,
                    prompt_length=len(prompt),
                    columns={"rollout_logprobs": np.array([-i / 16 for i, m in enumerate(mask) if m], np.float32)},
                )
            )
    return draw(st.permutations(samples))


def seen_from(row: PackedRow, place: int) -> tuple[list[int], list[int]]:
    """Token ids and positions that attention lets the token at `place` see, itself included."""
    (span,) = [span for span in row.spans if span.start <= place < span.end]
    places = [*range(span.prefix_start, span.prefix_end), *range(span.start, place + 1)]
    return row.token_ids[0, places].tolist(), row.position_ids[0, places].tolist()


@settings(deadline=None)
@given(samples=batches(), budget=st.integers(1, 80))
def test_every_trained_token_once_with_its_own_past(samples, budget):
    seen: Counter[tuple[int, int]] = Counter()
    for row in pack_rows(samples, budget):
        for n, place in enumerate(row.hidden_index.tolist()):
            sample = row.samples[row.sample_index[n]]
            past, positions = seen_from(row, place)
            i = len(past)
            assert past == list(sample.token_ids[:i]) and positions == list(range(i))
            assert row.target_ids[n] == sample.token_ids[i]
            assert row.columns["rollout_logprobs"][n] == -(i - sample.prompt_length) / 16
            seen[sample.index, i] += 1
    assert seen == Counter((s.index, i) for s in samples for i, trained in enumerate(s.loss_mask) if trained)


@settings(deadline=None)
@given(samples=batches(), budget=st.integers(1, 80))
def test_rows_keep_to_the_budget_and_rollouts_stay_whole(samples, budget):
    rows = pack_rows(samples, budget)
    for row in rows:
        assert row.tokens <= budget or len(row.samples) == 1
        assert [s.end for s in row.spans[:-1]] == [s.start for s in row.spans[1:]]
        assert row.spans[0].start == 0 and row.spans[-1].end == row.tokens
    assert sorted(s.index for row in rows for s in row.samples) == list(range(len(samples)))


def test_a_group_pays_for_its_prompt_once():
    prompt = range(100)
    samples = [make_sample(make_rollout(prompt=prompt, turns=[(i, i, i)]), i) for i in range(8)]
    (row,) = pack_rows(samples, 2048)
    assert row.tokens == 100 + 8 * 3


def test_other_groups_do_not_share_even_the_same_prompt():
    samples = [make_sample(make_rollout(group_id=f"g-{i}", prompt=range(100), turns=[(i,)]), i) for i in range(2)]
    (row,) = pack_rows(samples, 2048)
    assert row.tokens == 202


def test_a_long_rollout_gets_a_row_of_its_own():
    short, long = make_rollout(group_id="a", turns=[(1,)]), make_rollout(group_id="b", turns=[range(50)])
    rows = pack_rows([make_sample(short, 0), make_sample(long, 1)], 10)
    assert [row.tokens for row in rows] == [53, 4]


def test_sampled_tokens_are_never_shared():
    """Two rollouts with the same answer are trained twice."""
    samples = [make_sample(make_rollout(), i) for i in range(2)]
    assert grow_trees(samples, 2048, "always")[0].prefix == samples[0].prompt_length
    (row,) = pack_rows(samples, 2048)
    assert len(row.target_ids) == 2 * samples[0].trained_tokens


def test_a_row_has_the_columns_that_all_of_its_samples_have():
    samples = [make_sample(make_rollout(group_id=f"g-{i}"), i) for i in range(2)]
    samples[1].columns.pop("advantages")
    (row,) = pack_rows(samples, 2048)
    assert set(row.columns) == {"rollout_logprobs"}


def test_a_dummy_row_computes_and_trains_nothing():
    row = dummy_row(make_sample(make_rollout()))
    assert row.tokens == 1 and row.spans
    assert not row.samples
    assert [len(x) for x in (row.hidden_index, row.target_ids, row.sample_index)] == [0] * 3
    assert row.hidden_index.dtype == torch.long


def test_a_prompt_is_shared_where_it_pays():
    long = [make_sample(make_rollout(group_id="a", prompt=range(100), turns=[range(20)]), i) for i in range(2)]
    short = [make_sample(make_rollout(group_id="b", prompt=range(2), turns=[range(100)]), i) for i in range(2)]
    trees = grow_trees(long + short, 2048, "auto")
    assert [(len(tree.samples), tree.prefix) for tree in trees] == [(2, 100), (1, 0), (1, 0)]
    assert [tree.prefix for tree in grow_trees(long + short, 2048, "always")] == [100, 2]
    assert [tree.prefix for tree in grow_trees(long + short, 2048, "never")] == [0] * 4


def test_rows_are_filled():
    """Longest first, each into the first row with room for it."""
    lengths = (40, 30, 20, 10)
    samples = [
        make_sample(make_rollout(group_id=f"g-{i}", prompt=[1], turns=[range(n - 1)]), i) for i, n in enumerate(lengths)
    ]
    assert [row.tokens for row in pack_rows(samples, 50)] == [50, 50]
