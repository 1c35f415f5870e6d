"""Estimators that give all tokens of a rollout one advantage, against slow references."""

import statistics

import pytest
import torch
from hypothesis import given
from hypothesis import settings as examples
from hypothesis import strategies as st
from support.advantages import assert_close, batches, estimate, make_inputs, members, to_inputs, whitened


def mean(numbers):
    return sum(numbers) / len(numbers)


def spread(batch, advantage):
    """`advantage(rollout, scores of its group, its group)` for each token; 0 in a group without a signal."""
    rows = []
    for rollout in batch:
        group = members(batch)[rollout.group]
        scores = [other.score for other in group]
        rows.append([advantage(rollout, scores, group) if len(set(scores)) > 1 else 0.0] * rollout.length)
    return rows


def rloo(batch):
    def leave_one_out(rollout, scores, group):
        return rollout.score - mean([other.score for other in group if other is not rollout])

    return spread(batch, leave_one_out)


def opo(batch):
    def by_length(rollout, scores, group):
        weighted = [other.score for other in group for _ in range(other.length)]
        return rollout.score - mean(weighted)

    return spread(batch, by_length)


def gpg(batch):
    silent = [r for r in batch if len({other.score for other in members(batch)[r.group]}) == 1]
    alpha = len(batch) / max(len(batch) - len(silent), 1)
    return spread(batch, lambda rollout, scores, group: alpha * (rollout.score - mean(scores)) / 2.5)


def passk(batch, by_std):
    def best_only(rollout, scores, group):
        best, second = sorted(scores, reverse=True)[:2]
        if rollout.score < best:
            return 0.0
        return (best - second) / (statistics.stdev(scores) + 1e-6 if by_std else 1)

    return spread(batch, best_only)


def maxrl(batch):
    def by_success(rollout, scores, group):
        success = mean([other.reward for other in group])
        return (rollout.score - mean(scores)) / (success + 1e-6) if success else 0.0

    return spread(batch, by_success)


def reinforce_plus_plus_baseline(batch):
    centred = spread(batch, lambda rollout, scores, group: rollout.score - mean(scores))
    signals = spread(batch, lambda rollout, scores, group: 1.0)
    return [[a * s for a, s in zip(*rows, strict=True)] for rows in zip(whitened(centred), signals, strict=True)]


def gdpo(batch, weights):
    totals, signals = [], []
    for rollout in batch:
        total, signal = 0.0, 0.0
        for i, weight in enumerate(weights):
            rewards = [other.named[i] for other in members(batch)[rollout.group]]
            if len(set(rewards)) > 1:
                total += weight * (rollout.named[i] - mean(rewards)) / (statistics.stdev(rewards) + 1e-6)
                signal = 1.0 if weight else signal
        totals.append([total] * rollout.length)
        signals.append(signal)
    return [[a * s for a in row] for row, s in zip(whitened(totals), signals, strict=True)]


REFERENCES = {
    "rloo": (rloo, {}),
    "opo": (opo, {}),
    "gpg": (gpg, {"gpg_f_norm": 2.5}),
    "maxrl": (maxrl, {}),
    "reinforce_plus_plus_baseline": (reinforce_plus_plus_baseline, {}),
}


@pytest.mark.parametrize("name", REFERENCES)
@pytest.mark.parametrize("penalties", [False, True])
def test_reference(name, penalties):
    reference, changes = REFERENCES[name]

    @examples(max_examples=40, deadline=None)
    @given(batches(penalties))
    def check(batch):
        assert_close(estimate(name, to_inputs(batch, penalties), **changes), reference(batch))

    check()


@examples(max_examples=60, deadline=None)
@given(batches(), st.booleans())
def test_passk_reference(batch, by_std):
    assert_close(estimate("grpo_passk", to_inputs(batch), norm_adv_by_std=by_std), passk(batch, by_std))


@examples(max_examples=60, deadline=None)
@given(batches(penalties=False), st.sampled_from([(1.0, 1.0), (2.0, 0.5), (1.0, 0.0), (0.0, 0.0)]))
def test_gdpo_reference(batch, weights):
    names = dict(zip(("tests", "style"), weights, strict=True))
    actual = estimate("gdpo", to_inputs(batch, penalties=False), reward_weights=names)
    assert_close(actual, gdpo(batch, weights), tolerance=1e-4)


def test_a_reward_without_a_weight_weighs_one():
    inputs = make_inputs([0.0] * 3, ["g"] * 3, named_rewards=named(tests=[1, 0, 0], style=[0, 1, 0.5]))
    some = estimate("gdpo", inputs, reward_weights={"tests": 3.0}).advantages
    both = estimate("gdpo", inputs, reward_weights={"tests": 3.0, "style": 1.0}).advantages
    assert torch.equal(some, both)
    assert not torch.equal(some, estimate("gdpo", inputs).advantages)


def test_a_reward_that_weighs_nothing_is_no_signal():
    inputs = make_inputs(
        [0.0] * 4, list("aabb"), [1, 5, 1, 1], named_rewards=named(tests=[1, 0, 1, 1], style=[0, 0, 1, 0])
    )
    advantages = estimate("gdpo", inputs, reward_weights={"style": 0.0}).advantages
    assert advantages[:6].all() and advantages[6:].tolist() == [0.0, 0.0]


def named(**rewards):
    return {name: torch.tensor(values, dtype=torch.float64) for name, values in rewards.items()}


def test_rloo_by_hand():
    """Rewards 1, 0, 0, 1: a success is measured against 1/3, a failure against 2/3."""
    advantages = estimate("rloo", make_inputs([1.0, 0.0, 0.0, 1.0], ["g"] * 4, [1] * 4)).advantages
    torch.testing.assert_close(advantages, torch.tensor([2.0, -2.0, -2.0, 2.0]) / 3)


def test_opo_by_hand():
    """Lengths 1 and 3 with rewards 1 and 0: the baseline is 1/4."""
    advantages = estimate("opo", make_inputs([1.0, 0.0], ["g", "g"], [1, 3])).advantages
    assert advantages.tolist() == [0.75, -0.25, -0.25, -0.25]


def test_gpg_makes_up_for_groups_without_a_signal():
    """Of six rollouts two have a signal, a failed one with a positive mean among them: alpha is 3."""
    inputs = make_inputs([1.0, 0.0, 1.0, 1.0, 0.0, 0.0], list("aabbcc"), [1] * 6)
    assert estimate("gpg", inputs).advantages.tolist() == [1.5, -1.5, 0.0, 0.0, 0.0, 0.0]


def test_passk_by_hand():
    """The best is worth its lead over the second best; two that share the first place lead by nothing."""
    inputs = make_inputs([0.5, 2.0, 1.0, 1.0, 1.0, 0.0], list("aaabbb"), [1] * 6)
    assert estimate("grpo_passk", inputs, norm_adv_by_std=False).advantages.tolist() == [0.0, 1.0, 0.0, 0.0, 0.0, 0.0]


def test_maxrl_by_hand():
    """K successes among N are worth N/K - 1 each, a failure -1, as the paper has it (arXiv:2602.02710)."""
    inputs = make_inputs([1.0, 0.0, 0.0, 0.0, 1.0, 1.0, 1.0, 0.0], list("aaaabbbb"), [1] * 8)
    expected = torch.tensor([3.0, -1.0, -1.0, -1.0, 1 / 3, 1 / 3, 1 / 3, -1.0])
    torch.testing.assert_close(estimate("maxrl", inputs).advantages, expected, rtol=1e-5, atol=1e-5)


def test_maxrl_without_success_is_zero_even_where_penalties_differ():
    inputs = make_inputs([0.0, 0.0], ["g", "g"], [1, 1], penalties=[0.1, 0.2])
    assert estimate("maxrl", inputs).advantages.tolist() == [0.0, 0.0]


def test_maxrl_refuses_negative_rewards():
    with pytest.raises(ValueError, match=r"at least 0, got -1\.0; shift the rewards, or set adv_estimator"):
        estimate("maxrl", make_inputs([1.0, -1.0], ["g", "g"]))


def test_gdpo_without_named_rewards_names_the_mend():
    with pytest.raises(ValueError, match="return several rewards by name, or set adv_estimator: grpo"):
        estimate("gdpo", make_inputs([1.0, 0.0], ["g", "g"]))


def test_gdpo_refuses_a_weight_of_an_unknown_reward():
    inputs = make_inputs([1.0, 0.0], ["g", "g"], named_rewards=named(tests=[1, 0], style=[0, 1]))
    with pytest.raises(ValueError, match=r"reward_weights names speed, .* it returns style, tests"):
        estimate("gdpo", inputs, reward_weights={"speed": 1.0})


def test_gdpo_refuses_to_lose_penalties():
    inputs = make_inputs([1.0, 0.0], ["g", "g"], [1, 1], named_rewards=named(tests=[1, 0]), penalties=[0.1, 0.0])
    with pytest.raises(ValueError, match=r"set kl\.place: loss"):
        estimate("gdpo", inputs)


def test_whitening_does_not_reach_a_group_without_a_signal():
    """Its tokens' mean is not 0 here, so that a shift of all would hand the third rollout an advantage."""
    inputs = make_inputs([1.0, 0.0, 1.0], list("aab"), [5, 1, 2])
    advantages = estimate("reinforce_plus_plus_baseline", inputs).advantages
    assert advantages[:6].all() and advantages[6:].tolist() == [0.0, 0.0]
