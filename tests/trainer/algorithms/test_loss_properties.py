"""What holds of every policy loss: on policy, however rows are cut, with nothing to learn from, and far off policy."""

import itertools
from dataclasses import replace

import pytest
import torch
from support.losses import make_config, make_inputs, one_rollout, take

from trainer.algorithms.aggregation import GlobalCounts, aggregate
from trainer.algorithms.config import AlgorithmConfig
from trainer.algorithms.registry import KL_ESTIMATORS, LOSS_AGGREGATIONS, POLICY_LOSSES, load_builtin

load_builtin()

LOSSES = sorted(name for name, entry in POLICY_LOSSES.items() if entry.function.__module__.startswith("trainer."))
SEQUENCE_LOSSES = ("gmpo", "gspo")
"""Whose gradient is that of a rollout's mean advantage."""


@pytest.mark.parametrize("name", LOSSES)
def test_on_policy(name):
    """Ratio 1: no divergence, nothing clipped, and the gradient of the policy gradient."""
    inputs = make_inputs((4, 1, 3, 7), spread=0.0, by_token=name not in SEQUENCE_LOSSES)
    inputs = replace(inputs, selected=torch.zeros_like(inputs.selected))
    outputs = POLICY_LOSSES[name].function(inputs, make_config())
    for metric, values in outputs.metrics.items():
        assert values.shape == inputs.logprobs.shape and not values.requires_grad
        assert (values == 0).all(), metric
    (gradient,) = torch.autograd.grad(outputs.losses.sum(), inputs.logprobs)
    torch.testing.assert_close(gradient, -inputs.advantages)


@pytest.mark.parametrize("aggregation", sorted(LOSS_AGGREGATIONS))
@pytest.mark.parametrize("name", LOSSES)
def test_rows_and_order_do_not_matter(name, aggregation):
    config = make_config(loss_agg=aggregation)
    inputs = make_inputs((4, 1, 3, 7), spread=0.6, seed=1, by_token=True)
    counts = GlobalCounts(rollouts=5, tokens=16)  # one more rollout, of one token, is in no row

    def share(row):
        outputs = POLICY_LOSSES[name].function(row, config)
        loss = aggregate(outputs.losses, row.sample_index, row.sample_count, counts, config)
        return loss, {metric: values.sum() for metric, values in outputs.metrics.items()}

    whole, metrics = share(inputs)
    (expected_gradient,) = torch.autograd.grad(whole, inputs.logprobs, retain_graph=True)
    for rows in ([[0, 1, 2, 3]], [[3, 0], [2, 1]], [[2], [], [0], [3, 1]]):
        shares = [share(take(inputs, rollouts)) for rollouts in rows]
        loss = sum(loss for loss, _ in shares)
        torch.testing.assert_close(loss, whole)
        for metric, expected in metrics.items():
            torch.testing.assert_close(sum(sums[metric] for _, sums in shares), expected)
        (gradient,) = torch.autograd.grad(loss, inputs.logprobs)
        torch.testing.assert_close(gradient, expected_gradient)


@pytest.mark.parametrize("aggregation", sorted(LOSS_AGGREGATIONS))
@pytest.mark.parametrize("name", LOSSES)
def test_a_row_without_tokens(name, aggregation):
    """Its loss is 0, and backward reaches the model: a rank must take part in every step."""
    config = make_config(loss_agg=aggregation)
    weight = torch.ones(3, dtype=torch.float64, requires_grad=True)
    none, index = torch.zeros(0, dtype=torch.float64), torch.zeros(0, dtype=torch.long)
    inputs = replace(
        make_inputs(), logprobs=weight[:0] * 2, old_logprobs=none, advantages=none, sample_index=index, sample_count=2,
        selected=index.bool(),
    )  # fmt: skip
    outputs = POLICY_LOSSES[name].function(inputs, config)
    loss = aggregate(outputs.losses, index, 2, GlobalCounts(4, 9), config)
    loss.backward()
    assert loss.item() == 0.0
    assert weight.grad.tolist() == [0.0] * 3


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", LOSSES)
def test_far_off_policy_stays_finite(name, dtype):
    distances = ([1e4], [-1e4], [90.0, -90.0], [25.0, 1e4, -1e4], [15.0], [-15.0])
    for far, advantage, selected in itertools.product(distances, (1.5, -1.5, 0.0), (False, True)):
        inputs = one_rollout(far, advantage, dtype, selected)
        outputs = POLICY_LOSSES[name].function(inputs, make_config())
        (gradient,) = torch.autograd.grad(outputs.losses.sum(), inputs.logprobs)
        for values in (outputs.losses, gradient, *outputs.metrics.values()):
            assert values.isfinite().all(), (far, advantage, selected)


@pytest.mark.parametrize("advantage", [1.0, -1.0])
@pytest.mark.parametrize("name", LOSSES)
def test_stability_clamps_take_no_gradient(name, advantage):
    """With bounds out of reach each token learns in the direction of its advantage, at any ratio up to e^8."""
    config = make_config(
        clip_ratio_low=0.9999, clip_ratio_high=1e4, clip_ratio_c=1e4, sapo_tau_pos=1e-3, sapo_tau_neg=1e-3
    )
    if name in ("gmpo", "dppo_kl"):  # whose bounds are nats
        config = config.model_copy(update={"clip_ratio_low": 9.0})
    for log_ratio in (-8.0, -1.0, -0.19, 0.0, 0.25, 1.0, 2.0, 8.0):
        inputs = one_rollout([log_ratio] * 3, advantage)
        losses = POLICY_LOSSES[name].function(inputs, config).losses
        (gradient,) = torch.autograd.grad(losses.sum(), inputs.logprobs)
        assert (gradient * -advantage > 0).all(), log_ratio


@pytest.mark.parametrize("name", ["gspo", "gspo_token"])
def test_far_tokens_of_a_sequence_near_its_old_policy_keep_their_gradient(name):
    inputs = one_rollout([25.0, -25.0, 0.0], 1.0)
    (gradient,) = torch.autograd.grad(POLICY_LOSSES[name].function(inputs, make_config()).losses.sum(), inputs.logprobs)
    torch.testing.assert_close(gradient, -torch.ones(3, dtype=torch.float64))


class Recorded:
    """A config that remembers which fields were read."""

    def __init__(self, config: AlgorithmConfig) -> None:
        self.config = config
        self.read: set[str] = set()

    def __getattr__(self, field: str) -> object:
        self.read.add(field)
        return getattr(self.config, field)


@pytest.mark.parametrize("name", LOSSES)
def test_settings_are_the_fields_that_are_read(name):
    entry, config = POLICY_LOSSES[name], Recorded(make_config())
    inputs = make_inputs()
    entry.function(inputs, config)
    if "select" in entry.options:
        entry.options["select"](inputs.advantages, inputs.old_logprobs, config, 0)
    assert config.read == set(entry.settings)


@pytest.mark.parametrize("name", LOSSES)
def test_entries_can_be_listed(name):
    entry = POLICY_LOSSES[name]
    assert entry.summary.startswith(("-A", "max("))
    assert entry.source
    assert entry.options["clip_scale"] in ("token", "sequence", None)
    assert set(entry.options.get("loss_aggs", ())) <= set(LOSS_AGGREGATIONS)


def test_what_the_validator_reads():
    required = {name: e.options["loss_aggs"] for name, e in POLICY_LOSSES.items() if "loss_aggs" in e.options}
    assert required == dict.fromkeys(SEQUENCE_LOSSES, ("seq-mean-token-mean",))
    scales = {name: POLICY_LOSSES[name].options["clip_scale"] for name in LOSSES}
    assert {name for name, scale in scales.items() if scale == "sequence"} == {"gspo", "gspo_token"}
    assert {name for name, scale in scales.items() if scale is None} == {"gpg", "kl_cov", "reinforce", "sapo"}
    assert {name for name in LOSSES if not POLICY_LOSSES[name].options.get("ratio", True)} == {"gpg", "reinforce"}
    assert {name for name in LOSSES if POLICY_LOSSES[name].options.get("averages")} == {"gmpo", "gspo"}


@pytest.mark.parametrize("registry", [KL_ESTIMATORS, LOSS_AGGREGATIONS])
def test_others_have_a_line_too(registry):
    assert all(entry.summary for entry in registry.values())
