"""Chunked log-probs are those of a full softmax, in value and in gradient."""

import pytest
import torch
from torch import nn

from trainer.learner.logprobs import LogProbHead

TOKENS, WIDTH, VOCABULARY = 13, 8, 50


@pytest.fixture
def head():
    torch.manual_seed(0)
    linear = nn.Linear(WIDTH, VOCABULARY, bias=False)
    nn.init.normal_(linear.weight)
    return linear


def full(head, hidden, target, temperature):
    logprobs = torch.log_softmax(hidden @ head.weight.T / temperature, -1)
    entropy = -(logprobs.exp() * logprobs).sum(-1)
    return logprobs.gather(1, target[:, None])[:, 0], entropy, logprobs.exp().square().sum(-1)


@pytest.mark.parametrize("chunk", [1, 4, 13, 512])
@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_equal_to_the_full_softmax(head, chunk, temperature):
    hidden = torch.randn(TOKENS, WIDTH, requires_grad=True)
    target, weights = torch.randint(0, VOCABULARY, (TOKENS,)), torch.randn(TOKENS)
    chunked = LogProbHead(head, chunk)
    chunked.aim(target, temperature)
    have = chunked(hidden[None])
    assert have.shape == (1, TOKENS, 1)
    want, entropy, squares = full(head, hidden, target, temperature)
    torch.testing.assert_close(have[0, :, 0], want)
    torch.testing.assert_close(chunked.entropy, entropy)
    torch.testing.assert_close(chunked.sum_pi_squared, squares)
    other = torch.randn(TOKENS)
    losses = [
        ((have[0, :, 0] * weights).sum(), (want * weights).sum()),
        ((chunked.entropy * other).sum(), (entropy * other).sum()),
        ((have[0, :, 0] * weights + chunked.entropy * other).sum(), (want * weights + entropy * other).sum()),
    ]
    for have_loss, want_loss in losses:
        have_grads = torch.autograd.grad(have_loss, [hidden, head.weight], retain_graph=True)
        want_grads = torch.autograd.grad(want_loss, [hidden, head.weight], retain_graph=True)
        for have_grad, want_grad in zip(have_grads, want_grads, strict=True):
            torch.testing.assert_close(have_grad, want_grad, atol=5e-5, rtol=1e-4)


def test_no_tokens_give_a_gradient_of_zero(head):
    hidden = torch.randn(1, 0, WIDTH, requires_grad=True)
    chunked = LogProbHead(head, 4)
    chunked.aim(torch.empty(0, dtype=torch.long), 1.0)
    chunked(hidden).sum().backward()
    assert (head.weight.grad == 0).all()


def test_the_weight_is_the_very_parameter(head):
    """Else a head that is tied to the embedding would be trained apart from it."""
    assert LogProbHead(head, 4).weight is head.weight


def test_targets_must_fit_the_hidden_states(head):
    chunked = LogProbHead(head, 4)
    with pytest.raises(ValueError, match="targets None"):
        chunked(torch.randn(1, 2, WIDTH))
    chunked.aim(torch.tensor([1, 2, 3]), 1.0)
    with pytest.raises(ValueError, match="for targets 3"):
        chunked(torch.randn(1, 2, WIDTH))


def test_a_head_with_a_bias_is_refused():
    with pytest.raises(ValueError, match="bias"):
        LogProbHead(nn.Linear(WIDTH, VOCABULARY), 4)
