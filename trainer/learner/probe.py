"""A few tokens whose log-probs tell whether two models compute the same."""

from typing import Any

import numpy as np
import torch

from trainer.learner.checkpoint import Probe
from trainer.learner.packing import PackedRow, pack_rows
from trainer.learner.samples import TrainSample

_TOKENS = 33
_STRIDE = 7919
"""A prime: ids from all over the vocabulary."""


def measure(model: Any) -> Probe:
    """What a `PackedModel` says. A collective."""
    network = model.engine.module
    row = _row(network.config.get_text_config().vocab_size)
    network.eval()
    try:
        with torch.no_grad():
            logprobs = model.forward(row)
    finally:
        network.train()
    return Probe(row.token_ids[0].tolist(), logprobs.float().cpu().tolist())


def differences(model: Any, probe: Probe) -> np.ndarray:
    """By how much a transformers model differs from the probe, token by token, in nats."""
    ids = torch.tensor([probe.token_ids])
    with torch.no_grad():
        logits = model(input_ids=ids, use_cache=False).logits[0, :-1].float()
    logprobs = logits.log_softmax(-1).gather(-1, ids[0, 1:, None])[:, 0]
    return np.abs(logprobs.numpy() - np.array(probe.logprobs, dtype=np.float32))


def _row(vocabulary: int) -> PackedRow:
    nothing = np.zeros(_TOKENS - 1, dtype=np.float32)
    sample = TrainSample(
        index=0,
        session_id="probe",
        group_id="probe",
        token_ids=[_STRIDE * (i + 1) % vocabulary for i in range(_TOKENS)],
        loss_mask=[0] + [1] * (_TOKENS - 1),
        prompt_length=1,
        columns={"rollout_logprobs": nothing, "advantages": nothing},
    )
    return pack_rows([sample], _TOKENS)[0]
