"""Batches whose engine and trainer disagree for a known reason; logits are drawn, so the reason is exact."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
from support.rollouts import batch_of, make_rollout

VOCABULARY = 40


def log_softmax(logits: np.ndarray) -> np.ndarray:
    """Over the last axis."""
    shifted = logits - logits.max(axis=-1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True))


def mismatched_batch(
    engine: Callable[[np.ndarray, dict[str, np.ndarray]], np.ndarray] = lambda logits, places: logits,
    versions: Callable[[dict[str, np.ndarray]], np.ndarray] | None = None,
    rollouts: int = 16,
    answers: int = 3,
    length: int = 20,
    seed: int = 0,
) -> tuple[pa.Table, pa.Table]:
    """batch.parquet and scores.parquet of rollouts whose tokens the engine draws from `engine(logits, places)`.

    The trainer has `logits` [N, vocabulary] itself. `places` has, for each token, `rollout`, `answer` and `position`.
    """
    rng = np.random.default_rng(seed)
    n = rollouts * answers * length
    places = {
        "rollout": np.repeat(np.arange(rollouts), answers * length),
        "answer": np.tile(np.repeat(np.arange(answers), length), rollouts),
        "position": np.tile(np.arange(length), rollouts * answers),
        "noise": rng.normal(size=(n, VOCABULARY)),
        "other": rng.normal(scale=3, size=(n, VOCABULARY)),
    }
    logits = rng.normal(scale=3, size=(n, VOCABULARY))
    sampling = log_softmax(engine(logits, places))
    tokens = (sampling + rng.gumbel(size=sampling.shape)).argmax(axis=-1)
    at = np.arange(n), tokens
    served = sampling[at].astype(np.float32)
    version = np.full(n, 7) if versions is None else versions(places)
    made = []
    for number in range(rollouts):
        mine = np.flatnonzero(places["rollout"] == number).reshape(answers, length)
        rollout = make_rollout(f"s{number:02d}", f"g{number // 4}", turns=tokens[mine].tolist())
        fields: dict[str, Any] = {name: list(getattr(rollout, name)) for name in ("logprobs", "weight_versions")}
        trained = [i for i, m in enumerate(rollout.loss_mask) if m]
        for i, token in zip(trained, mine.ravel().tolist(), strict=True):
            fields["logprobs"][i], fields["weight_versions"][i] = min(float(served[token]), 0.0), int(version[token])
        assert all(math.isfinite(fields["logprobs"][i]) for i in trained)
        made.append(make_rollout(f"s{number:02d}", f"g{number // 4}", turns=tokens[mine].tolist(), **fields))
    scores = pa.table({"old_logprobs": log_softmax(logits)[at].astype(np.float32)})
    return batch_of(made), scores
