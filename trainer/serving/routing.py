"""The experts that an engine chose, from vLLM's array to the record of an answer."""

from typing import Any

import numpy as np

from trainer.rollout import Routing
from trainer.serving.config import ServingConfig
from trainer.serving.errors import ReplicaError


def require_capture(config: ServingConfig, gpus: bool) -> None:
    """Raises ReplicaError if experts are to be captured where vLLM cannot."""
    if config.capture_routing and not gpus:
        raise ReplicaError(
            "serving.capture_routing needs a GPU: vLLM's CPU engine does not tell which experts it chose; serve on "
            "GPUs (learner.gpus_per_rank: 1), or set serving.capture_routing: false and learner.moe.replay: false"
        )


def read_routing(experts: Any, positions: int) -> Routing:
    """The record of an answer whose prompt and tokens but the newest are so many.

    Args:
        experts: [positions, layers, k] of uint8 or uint16 as vLLM returns them, or None.

    Raises:
        ReplicaError: there is none, or it covers other positions: replaying it would train through wrong experts.
    """
    if experts is None:
        raise ReplicaError(
            "serving.capture_routing is on, but the engine told no experts; is the policy a mixture of experts? "
            "If not, set serving.capture_routing: false and learner.moe.replay: false"
        )
    if experts.ndim != 3 or len(experts) != positions:
        raise ReplicaError(f"the engine told experts of shape {experts.shape} for {positions} positions that it read")
    rows, layers, chosen = (int(size) for size in experts.shape)
    return Routing(np.ascontiguousarray(experts).astype("<i2").tobytes(), (rows, layers, chosen))
