"""Chunked log-probs are those of a full softmax, in value and in gradient."""

import pytest
import torch
from torch import nn

from trainer.learner import logprobs
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
    top1 = (logprobs.argmax(-1) == target).float()
    return logprobs.gather(1, target[:, None])[:, 0], entropy, logprobs.exp().square().sum(-1), top1


@pytest.mark.parametrize("chunk", [1, 4, 13, 512])
@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_equal_to_the_full_softmax(head, chunk, temperature):
    hidden = torch.randn(TOKENS, WIDTH, requires_grad=True)
    target, weights = torch.randint(0, VOCABULARY, (TOKENS,)), torch.randn(TOKENS)
    target[::2] = (hidden @ head.weight.T).argmax(-1)[::2]
    chunked = LogProbHead(head, chunk)
    chunked.aim(target, temperature)
    have = chunked(hidden[None])
    assert have.shape == (1, TOKENS, 1)
    want, entropy, squares, top1 = full(head, hidden, target, temperature)
    torch.testing.assert_close(have[0, :, 0], want)
    torch.testing.assert_close(chunked.entropy, entropy)
    torch.testing.assert_close(chunked.sum_pi_squared, squares)
    assert torch.equal(chunked.top1, top1) and 0 < top1.mean() < 1
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


def test_a_head_in_bf16_that_multiplies_in_fp32_rounds_no_logits(head, monkeypatch):
    """With its weight brought to fp32 in parts that do not divide it."""
    monkeypatch.setattr(logprobs, "_ROWS", 7)
    head = head.bfloat16()
    hidden = torch.randn(TOKENS, WIDTH).bfloat16().requires_grad_()
    target = torch.randint(0, VOCABULARY, (TOKENS,))
    chunked = LogProbHead(head, 4, in_fp32=True)
    chunked.aim(target, 0.7)
    have = chunked(hidden[None])[0, :, 0]
    exact = nn.Linear(WIDTH, VOCABULARY, bias=False)
    exact.load_state_dict(head.state_dict())
    wide = hidden.detach().float().requires_grad_()
    want, *_ = full(exact, wide, target, 0.7)
    torch.testing.assert_close(have, want)
    have.sum().backward()
    want.sum().backward()
    for found, wanted in ((hidden.grad, wide.grad), (head.weight.grad, exact.weight.grad)):
        assert found.dtype == torch.bfloat16
        torch.testing.assert_close(found, wanted, atol=1e-4, rtol=2.0**-8, check_dtype=False)


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


def test_never_as_many_logits_as_there_are_tokens(head, monkeypatch):
    """Forward and backward make them part by part, the backward pass by vocabulary."""
    made = []
    logits = logprobs._logits

    def counted(hidden, weight, temperature):
        made.append(len(hidden) * len(weight))
        return logits(hidden, weight, temperature)

    monkeypatch.setattr(logprobs, "_logits", counted)
    hidden = torch.randn(1, TOKENS, WIDTH, requires_grad=True)
    chunked = LogProbHead(head, 4)
    chunked.aim(torch.zeros(TOKENS, dtype=torch.long), 1.0)
    chunked(hidden).sum().backward()
    assert max(made) <= 4 * VOCABULARY
    assert sum(made) == 2 * TOKENS * VOCABULARY


def test_a_frozen_weight_gets_no_gradient(head):
    head.weight.requires_grad_(False)
    hidden = torch.randn(1, TOKENS, WIDTH, requires_grad=True)
    chunked = LogProbHead(head, 4)
    chunked.aim(torch.zeros(TOKENS, dtype=torch.long), 1.0)
    chunked(hidden).sum().backward()
    assert head.weight.grad is None and hidden.grad.abs().sum() > 0
