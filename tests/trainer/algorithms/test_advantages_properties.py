"""What holds for every estimator that is registered."""

import inspect

import pytest
import torch
from hypothesis import given
from hypothesis import settings as examples
from hypothesis import strategies as st
from support.advantages import batches, estimate, estimators, make_inputs, permuted, to_inputs

from trainer.algorithms.config import AlgorithmConfig
from trainer.algorithms.registry import ADVANTAGE_ESTIMATORS

UNGROUPED = {"gae", "reinforce_plus_plus", "remax"}
NAMES = estimators()
GROUPED = [name for name in NAMES if name not in UNGROUPED]
NO_PENALTIES = {"gdpo"}
SETTINGS = {"gae": {"gamma": 0.9, "lam": 0.8}, "reinforce_plus_plus": {"gamma": 0.9}}


def run(name, inputs):
    return estimate(name, inputs, **SETTINGS.get(name, {})).advantages


def any_batch(name, **options):
    return st.booleans().flatmap(
        lambda flag: batches(flag and name not in NO_PENALTIES, **options).map(
            lambda batch: to_inputs(batch, flag and name not in NO_PENALTIES)
        )
    )


def test_all_are_there():
    assert set(NAMES) >= {
        "gae", "grpo", "rloo", "reinforce_plus_plus", "reinforce_plus_plus_baseline", "remax", "opo", "gpg",
        "grpo_passk", "gdpo", "maxrl", "optimal_token_baseline",
    }  # fmt: skip


@pytest.mark.parametrize("name", NAMES)
def test_order_of_rollouts_does_not_matter(name):
    @examples(max_examples=30, deadline=None)
    @given(any_batch(name), st.randoms(use_true_random=False))
    def check(inputs, random):
        order = list(range(len(inputs.rewards)))
        random.shuffle(order)
        other, tokens = permuted(inputs, order)
        torch.testing.assert_close(run(name, other), run(name, inputs)[tokens], rtol=1e-4, atol=1e-4)

    check()


@pytest.mark.parametrize("name", NAMES)
def test_numbers_of_groups_do_not_matter(name):
    @examples(max_examples=30, deadline=None)
    @given(any_batch(name), st.permutations(range(6)))
    def check(inputs, numbers):
        before = run(name, inputs)
        renumbered, _ = permuted(inputs, range(len(inputs.rewards)))
        object.__setattr__(renumbered, "group_index", torch.tensor(numbers)[inputs.group_index])
        torch.testing.assert_close(run(name, renumbered), before, rtol=1e-4, atol=1e-4)

    check()


@pytest.mark.parametrize("name", GROUPED)
def test_groups_of_one_get_exactly_zero(name):
    @examples(max_examples=30, deadline=None)
    @given(any_batch(name))
    def check(inputs):
        alone, _ = permuted(inputs, range(len(inputs.rewards)))
        object.__setattr__(alone, "group_index", torch.arange(len(inputs.rewards)))
        assert not run(name, alone).any()

    check()


@pytest.mark.parametrize("name", GROUPED)
def test_a_group_of_one_among_others_gets_exactly_zero(name):
    @examples(max_examples=30, deadline=None)
    @given(any_batch(name, min_size=2))
    def check(inputs):
        mixed, _ = permuted(inputs, range(len(inputs.rewards)))
        groups = mixed.group_index.clone()
        groups[0] = 7
        object.__setattr__(mixed, "group_index", groups)
        assert not run(name, mixed)[: int(mixed.lengths[0])].any()

    check()


@pytest.mark.parametrize("name", GROUPED)
@pytest.mark.parametrize("reward", [0.0, 1.0, 0.1, 1 / 3])
def test_equal_rewards_of_a_group_get_exactly_zero(name, reward):
    """Beside a group with a signal, whose whitening must not reach them."""
    rewards = [reward] * 7 + [1.0, 0.0, 0.5]
    lengths = [1, 2, 3, 4, 5, 6, 7, 9, 1, 2]
    inputs = full_inputs(rewards, ["equal"] * 7 + ["other"] * 3, lengths)
    advantages = run(name, inputs)
    assert not advantages[:28].any() and advantages[28:].any()


def full_inputs(rewards, groups, lengths):
    """All columns but penalties."""
    tokens, given = sum(lengths), torch.tensor(rewards, dtype=torch.float64)
    return make_inputs(
        rewards,
        groups,
        lengths,
        named_rewards={"tests": given, "style": given.clone()},
        baselines=torch.zeros(len(rewards), dtype=torch.float64),
        values=[0.25] * tokens,
        old_logprobs=[-0.5] * tokens,
        sum_pi_squared=[0.5] * tokens,
    )


DEGENERATE = {
    "no rollouts": ([], [], []),
    "one token": ([1.0], ["a"], [1]),
    "one rollout": ([0.1], ["a"], [5]),
    "all fail": ([0.0] * 4, list("aabb"), [1, 2, 3, 4]),
    "all succeed": ([1.0] * 4, list("aabb"), [1, 2, 3, 4]),
    "all but equal": ([0.1, 0.1 + 1e-15], ["a", "a"], [2, 1]),
    "large and small": ([1e8, 1e-8, 0.0], list("aaa"), [1, 1, 1]),
}


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("case", DEGENERATE)
def test_numbers_are_finite(name, case):
    inputs = full_inputs(*DEGENERATE[case])
    advantages = run(name, inputs)
    assert advantages.dtype == torch.float32 and advantages.shape == (inputs.tokens,)
    assert torch.isfinite(advantages).all()


@pytest.mark.parametrize("name", NAMES)
def test_inputs_are_not_changed(name):
    inputs = full_inputs([1.0, 0.0, 1.0], list("aab"), [2, 3, 1])
    copy, _ = permuted(inputs, range(3))
    run(name, inputs)
    for column in ("rewards", "baselines", "values", "old_logprobs", "sum_pi_squared"):
        assert torch.equal(getattr(inputs, column), getattr(copy, column)), column


@pytest.mark.parametrize("name", NAMES)
def test_columns_that_are_not_needed_may_be_missing(name):
    inputs = full_inputs([1.0, 0.0, 1.0], list("aab"), [2, 3, 1])
    columns = {"greedy_baseline": "baselines"}
    needed = {columns.get(need, need) for need in ADVANTAGE_ESTIMATORS[name].needs}
    for column in {"baselines", "values", "old_logprobs", "sum_pi_squared"} - needed:
        object.__setattr__(inputs, column, None)
    assert run(name, inputs).shape == (6,)


@pytest.mark.parametrize("name", NAMES)
def test_settings_are_those_that_it_reads(name):
    entry = ADVANTAGE_ESTIMATORS[name]
    source = inspect.getsource(entry.function)
    assert {field for field in AlgorithmConfig.model_fields if f"config.{field}" in source} == set(entry.settings)


@pytest.mark.parametrize("name", NAMES)
def test_the_listing_has_a_formula_and_a_paper(name):
    entry = ADVANTAGE_ESTIMATORS[name]
    assert entry.source.startswith("arXiv:") and entry.summary.startswith("A") and "=" in entry.summary
    assert entry.source.split(", ")[0] in (inspect.getmodule(entry.function).__doc__ or "")
