"""A batch in numbers, against loops over lists."""

import statistics

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from trainer.algorithms import batch_metrics as module
from trainer.algorithms.batch_metrics import BatchMetricsError, batch_metrics
from trainer.algorithms.rollout_correction import segments as segments_module

ROLLOUT = st.tuples(
    st.sampled_from([0.0, 0.5, 1.0]), st.integers(0, 3), st.integers(1, 7), st.integers(1, 9), st.integers(1, 4)
)


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch):
    for part in (segments_module, module):
        monkeypatch.setattr(part, "BLOCK", 5)
    monkeypatch.setattr(segments_module, "_FEW", 2)


def columns(rollouts):
    rewards, groups, *counts = (torch.tensor(column) for column in zip(*rollouts, strict=True))
    return rewards.double(), groups, *counts


@given(st.lists(ROLLOUT, min_size=1, max_size=15), st.data())
@settings(max_examples=60, deadline=None)
def test_against_loops(rollouts, data):
    lengths = [rollout[2] for rollout in rollouts]
    scale = data.draw(st.lists(st.sampled_from([0.0, -1.0, 0.5]), min_size=len(lengths), max_size=len(lengths)))
    advantages = [a for a, length in zip(scale, lengths, strict=True) for _ in range(length)]
    result = batch_metrics(*columns(rollouts), torch.tensor(advantages))

    for name, column in {
        "critic/score": [r[0] for r in rollouts],
        "critic/rewards": [r[0] for r in rollouts],
        "response_length": lengths,
        "prompt_length": [r[3] for r in rollouts],
        "num_turns": [r[4] for r in rollouts],
        "critic/advantages": advantages,
    }.items():
        assert result[f"{name}/mean"] == pytest.approx(sum(column) / len(column))
        assert (result[f"{name}/max"], result[f"{name}/min"]) == (max(column), min(column))

    groups = {}
    for reward, group, *_ in rollouts:
        groups.setdefault(group, []).append(reward)
    solved = {"none": 0, "some": 0, "all": 0}
    for rewards in groups.values():
        passed = sum(reward > 0 for reward in rewards)
        solved["none" if passed == 0 else "all" if passed == len(rewards) else "some"] += 1
    signal = sum(min(rewards) < max(rewards) for rewards in groups.values())
    assert (result["batch/rollouts"], result["batch/groups"]) == (len(rollouts), len(groups))
    assert result["batch/groups_with_signal"] == signal
    assert result["batch/groups_with_signal_ratio"] == pytest.approx(signal / len(groups))
    for name, count in solved.items():
        assert result[f"batch/solve_{name}"] == count
        assert result[f"batch/solve_{name}_ratio"] == pytest.approx(count / len(groups))

    trained = [i for i, a in enumerate(scale) if a]
    for subset, members in {"all": range(len(rollouts)), "trained": trained}.items():
        assert result[f"batch/{subset}/rollouts"] == len(members)
        if members:
            assert result[f"batch/{subset}/score_mean"] == pytest.approx(
                statistics.mean(rollouts[i][0] for i in members)
            )
            mean_length = statistics.mean(lengths[i] for i in members)
            assert result[f"batch/{subset}/response_length_mean"] == pytest.approx(mean_length)
        else:
            assert f"batch/{subset}/score_mean" not in result
    assert result["batch/zero_advantage_token_ratio"] == pytest.approx(advantages.count(0.0) / len(advantages))


def test_one_signed_token_makes_a_trained_rollout():
    advantages = torch.tensor([0.0] * 6 + [0.0, -0.1, 0.0])
    result = batch_metrics(*columns([(1.0, 0, 6, 1, 1), (0.5, 0, 3, 1, 1)]), advantages)
    assert (result["batch/trained/rollouts"], result["batch/trained/score_mean"]) == (1, 0.5)
    assert result["batch/zero_advantage_token_ratio"] == pytest.approx(8 / 9)


def test_shaped_rewards_make_the_signal_but_not_the_score():
    rollouts = columns([(1.0, 0, 1, 1, 1), (1.0, 0, 1, 1, 1)])
    result = batch_metrics(*rollouts, shaped_rewards=torch.tensor([1.0, 0.5]))
    assert (result["critic/score/mean"], result["critic/rewards/mean"]) == (1.0, 0.75)
    assert (result["batch/groups_with_signal"], result["batch/solve_all"]) == (1, 1)
    assert not any(name.startswith(("critic/advantages", "batch/trained")) for name in result)


def test_a_penalised_failure_is_not_solved():
    rollouts = columns([(0.0, 0, 1, 1, 1), (0.0, 0, 1, 1, 1)])
    result = batch_metrics(*rollouts, shaped_rewards=torch.tensor([0.0, -0.5]))
    assert (result["batch/solve_none"], result["batch/solve_some"]) == (1, 0)


@given(st.lists(st.tuples(st.floats(-3, 3), st.floats(-3, 3)), min_size=2, max_size=30), st.sampled_from([0.0, 1e6]))
@settings(max_examples=40, deadline=None)
def test_explained_variance(pairs, offset):
    pairs = [(a + offset, b + offset) for a, b in pairs]
    returns, values = (torch.tensor(column, dtype=torch.float64) for column in zip(*pairs, strict=True))
    result = batch_metrics(*columns([(1.0, 0, len(pairs), 1, 1)]), returns=returns, values=values)
    errors = statistics.variance([a - b for a, b in pairs])
    expected = 1 - errors / (statistics.variance([a for a, _ in pairs]) + 1e-5)
    assert result["critic/vf_explained_var"] == pytest.approx(expected, rel=1e-4, abs=1e-4)
    assert result["critic/returns/max"] == max(a for a, _ in pairs)
    assert result["critic/values/mean"] == pytest.approx(statistics.mean(b for _, b in pairs), abs=1e-9)


def test_the_order_of_rollouts_does_not_matter():
    rollouts = [(1.0, 0, 2, 5, 1), (0.0, 1, 3, 6, 2), (0.0, 0, 1, 5, 1), (1.0, 1, 9, 6, 3)]
    scale = [0.5, -1.0, 0.0, 1.0]

    def of(order):
        advantages = [scale[i] for i in order for _ in range(rollouts[i][2])]
        return batch_metrics(*columns([rollouts[i] for i in order]), torch.tensor(advantages))

    assert of([2, 0, 3, 1]) == pytest.approx(of([0, 1, 2, 3]))


def test_an_empty_batch_has_counts_only():
    nothing = torch.empty(0, dtype=torch.long)
    result = batch_metrics(torch.empty(0).double(), nothing, nothing, nothing, nothing, torch.empty(0))
    assert result["batch/rollouts"] == result["batch/groups"] == result["batch/trained/rollouts"] == 0
    assert not any(name.startswith("critic/") for name in result)


@pytest.mark.parametrize(
    "rollout, tokens, message", [(1, 2, "advantages has 2 entries for 3"), (2, 3, "num_turns has 2")]
)
def test_columns_that_do_not_fit_raise(rollout, tokens, message):
    one = torch.ones(1, dtype=torch.long)
    with pytest.raises(BatchMetricsError, match=message):
        batch_metrics(one.double(), one, 3 * one, one, torch.ones(rollout), torch.zeros(tokens))
