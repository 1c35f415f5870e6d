"""A few tokens whose log-probs tell whether two models compute the same."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch

from trainer.learner.checkpoint import Probe
from trainer.learner.packing import pack_rows
from trainer.learner.samples import TrainSample

TOKENS = 33
_STRIDE = 7919
"""A prime: ids from all over the vocabulary."""


def measure(model: Any) -> Probe:
    """What a `PackedModel` says. A collective."""
    (row,) = pack_rows([sample(model.engine.module.config.get_text_config().vocab_size)], TOKENS)
    with at_rest(model):
        logprobs = model.forward(row)
    return Probe(row.token_ids[0].tolist(), logprobs.float().cpu().tolist())


@contextmanager
def at_rest(model: Any) -> Iterator[None]:
    """A `PackedModel` without dropout or gradients."""
    network = model.engine.module
    network.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        network.train()


def differences(model: Any, probe: Probe) -> np.ndarray:
    """By how much a transformers model differs from the probe, token by token, in nats."""
    ids = torch.tensor([probe.token_ids])
    with torch.no_grad():
        logits = model(input_ids=ids, use_cache=False).logits[0, :-1].float()
    logprobs = logits.log_softmax(-1).gather(-1, ids[0, 1:, None])[:, 0]
    return np.abs(logprobs.numpy() - np.array(probe.logprobs, dtype=np.float32))


def sample(vocabulary: int, index: int = 0, seed: int = 0) -> TrainSample:
    """A rollout without meaning; of another `seed`, with other tokens."""
    nothing = np.zeros(TOKENS - 1, dtype=np.float32)
    return TrainSample(
        index=index,
        session_id=f"probe-{index}",
        group_id=f"probe-{index}",
        token_ids=[_STRIDE * (i + 1 + seed * TOKENS) % vocabulary for i in range(TOKENS)],
        loss_mask=[0] + [1] * (TOKENS - 1),
        prompt_length=1,
        columns={"rollout_logprobs": nothing, "advantages": nothing},
    )
