"""The state of the random generators of this process, as plain values that a file can hold."""

import random
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch


def rng_state() -> dict[str, Any]:
    """Of Python, numpy, torch, and of this process's GPU if it uses one. Plain lists, numbers and tensors."""
    version, numbers, gauss = random.getstate()
    # the legacy form is a tuple; numpy's type says it may be a dict
    kind, keys, position, has_gauss, cached = np.random.get_state(legacy=True)
    state: dict[str, Any] = {
        "python": [version, list(numbers), gauss],
        "numpy": [str(kind), torch.from_numpy(np.asarray(keys).astype(np.int64)), position, has_gauss, cached],
        "torch": torch.get_rng_state(),
    }
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        state["cuda"] = torch.cuda.get_rng_state()
    return state


def restore_rng(state: Mapping[str, Any]) -> None:
    """Go on where `rng_state` was taken."""
    version, numbers, gauss = state["python"]
    random.setstate((version, tuple(numbers), gauss))
    kind, keys, position, has_gauss, cached = state["numpy"]
    np.random.set_state((kind, keys.numpy().astype(np.uint32), position, has_gauss, cached))
    torch.set_rng_state(state["torch"])
    if "cuda" in state and torch.cuda.is_available():
        torch.cuda.set_rng_state(state["cuda"])


def branch_rng(state: Mapping[str, Any], rank: int) -> None:
    """A state for a rank that there was none of when `state` was taken: the same at each call, and unlike the others'.

    `state` is that of another rank.
    """
    restore_rng(state)
    seed = int(torch.randint(2**31, (1,)).item()) ^ rank
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)
