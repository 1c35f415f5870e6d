"""The critic's loss, clipped."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support.losses import make_config

from trainer.algorithms.value_loss import value_loss

CONFIG = make_config(value_clip=0.5)
NUMBERS = st.floats(-3, 3)
TOKENS = st.lists(st.tuples(NUMBERS, NUMBERS, NUMBERS), max_size=12)


def columns(tokens: list[tuple[float, float, float]]) -> list[torch.Tensor]:
    return [torch.tensor([token[i] for token in tokens], dtype=torch.float64) for i in range(3)]


@settings(deadline=None, max_examples=60)
@given(TOKENS)
def test_against_the_slow_reference(tokens):
    outputs = value_loss(*columns(tokens), CONFIG)
    for i, (value, old, target) in enumerate(tokens):
        moved = min(max(value, old - 0.5), old + 0.5)
        plain, bounded = (value - target) ** 2, (moved - target) ** 2
        assert outputs.losses[i].item() == pytest.approx(0.5 * max(plain, bounded))
        assert outputs.metrics["critic/vf_clipfrac"][i].item() == (bounded > plain)


@pytest.mark.parametrize(
    ("value", "old", "target", "loss", "gradient"),
    [
        (1.0, 1.0, 3.0, 2.0, -2.0),
        (1.4, 1.0, 3.0, 1.28, -1.6),
        (2.0, 1.0, 3.0, 1.125, 0.0),  # moved 1 towards the target: held at 1.5
        (0.0, 1.0, 3.0, 4.5, -3.0),  # moved 1 away from it: comes back
    ],
)
def test_a_token(value, old, target, loss, gradient):
    values = torch.tensor([value], dtype=torch.float64, requires_grad=True)
    outputs = value_loss(values, torch.tensor([old]), torch.tensor([target]), CONFIG)
    assert outputs.losses.item() == pytest.approx(loss)
    (slope,) = torch.autograd.grad(outputs.losses.sum(), values)
    assert slope.item() == pytest.approx(gradient)
    assert outputs.metrics["critic/vf_clipfrac"].item() == (gradient == 0)


def test_gradcheck():
    generator = torch.Generator().manual_seed(0)
    values, old, returns = (torch.randn(20, generator=generator, dtype=torch.float64) for _ in range(3))
    assert torch.autograd.gradcheck(lambda v: value_loss(v, old, returns, CONFIG).losses, (values.requires_grad_(),))


def test_no_tokens_has_a_gradient():
    values = torch.zeros(0, requires_grad=True)
    loss = value_loss(values, torch.zeros(0), torch.zeros(0), CONFIG).losses.sum()
    loss.backward()
    assert loss.item() == 0.0
