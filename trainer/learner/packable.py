"""Whether a model computes a rollout in a packed row as it computes it alone, and as the engine does.

Layers that carry a state from token to token do not see where one rollout ends, and what a model does to the logits of
its head is lost on log-probs. Neither raises anything: the gradient would be that of another policy.
"""

from typing import Any

import torch

from trainer.learner.errors import LearnerError
from trainer.learner.moe.mixtures import mixture_of
from trainer.learner.packing import pack_rows
from trainer.learner.probe import TOKENS, at_rest, sample

_TOLERANCE = 1e-3
"""Nats, on average, by which log-probs may differ; they do not where sums are always added up in the same order."""


def require_packable(model: Any) -> None:
    """Compute two rollouts in a row with a `PackedModel`, twice: the second must not notice when the first changes.

    A collective. Of a mixture of experts that is not asked: an expert that gets other tokens besides adds up in another
    order, and two experts that are nearly tied change places; the families that are known attend.

    Raises:
        LearnerError: it does, or the model changes what its head says.
    """
    network = model.engine.module
    vocabulary = network.config.get_text_config().vocab_size
    heard: list[torch.Tensor] = []
    hooks = [
        model.head.register_forward_hook(lambda module, inputs, said: heard.append(said.detach())),
        network.register_forward_hook(lambda module, inputs, said: heard.append(said.logits.detach())),
    ]
    try:
        with at_rest(model):
            first, second = (_beside(model, vocabulary, neighbour) for neighbour in (1, 2))
    finally:
        for hook in hooks:
            hook.remove()
    if not all(torch.equal(head, logits) for head, logits in zip(heard[::2], heard[1::2], strict=True)):
        raise LearnerError(
            "the model changes what its output head says, as by a softcap or a scale of logits, and log-probs, which "
            "are computed in the head, do not go through that; train another one"
        )
    change = float((first - second).abs().mean())
    if mixture_of(network) is None and not change <= _TOLERANCE:
        raise LearnerError(
            f"the log-probs of a rollout change by {change:.2g} nats with what stands beside it in a packed row: the "
            "model has layers that see more than their own rollout; train another one"
        )


def _beside(model: Any, vocabulary: int, neighbour: int) -> torch.Tensor:
    """Log-probs of the same rollout, beside one or another that comes before it in the row."""
    other, same = sample(vocabulary, 0, seed=neighbour), sample(vocabulary, 1, seed=0)
    (row,) = pack_rows([other, same], 2 * TOKENS)
    place = [packed.index for packed in row.samples].index(1)
    said: torch.Tensor = model.forward(row)[row.sample_index.to(model.device) == place]
    return said
