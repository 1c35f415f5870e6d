"""Every attention of the learner gives the log-probs of the plain model, under ZeRO-3 and NCCL."""

import importlib.util
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from support.rollouts import write_batch
from transformers import AutoModelForCausalLM

from trainer.algorithms.config import AlgorithmConfig
from trainer.batch import sampled_lengths
from trainer.learner.config import LearnerConfig
from trainer.learner.group import LearnerGroup

BACKENDS = [
    ("sdpa", "float32", 1e-4),
    ("flex", "float32", 1e-4),
    ("flex", "bfloat16", 0.1),
    pytest.param(
        "flash", "bfloat16", 0.1,
        marks=pytest.mark.skipif(importlib.util.find_spec("flash_attn") is None, reason="flash_attn is not installed"),
    ),
]  # fmt: skip


@pytest.mark.parametrize(("attention", "dtype", "tolerance"), BACKENDS)
async def test_log_probs_are_those_of_the_plain_model(
    cluster: None, model: Path, tmp_path: Path, attention: str, dtype: str, tolerance: float
) -> None:
    batch = write_batch(tmp_path / "batch.parquet")
    config = LearnerConfig(dtype=dtype, gpus_per_rank=1, attention=attention, lr=1e-3)
    learner = await LearnerGroup.start(f"gpu/{attention}/{dtype}", model, config, AlgorithmConfig())
    try:
        scores = (await learner.score(batch, ["old_logprobs"], 0.7, updates=0))["old_logprobs"]
        record = await learner.update(1, batch, 0.7)
        assert record.metrics["actor/grad_norm"] > 0
    finally:
        learner.shutdown()
    plain = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)
    table = pq.read_table(batch)
    for row, values in zip(table.to_pylist(), np.split(scores, np.cumsum(sampled_lengths(table))[:-1]), strict=True):
        ids = torch.tensor([row["token_ids"]])
        with torch.no_grad():
            logprobs = (plain(ids).logits[0, :-1] / 0.7).log_softmax(-1).gather(-1, ids[0, 1:, None])[:, 0]
        assert torch.allclose(logprobs[row["prompt_length"] - 1 :], torch.tensor(values), atol=tolerance)
