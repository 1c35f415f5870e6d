"""Every attention of the learner gives the log-probs of the plain model, under ZeRO-3 and NCCL."""

from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
import torch.nn.functional as F
from support.rollouts import write_batch
from transformers import AutoModelForCausalLM

from trainer.algorithms.config import AlgorithmConfig
from trainer.batch import sampled_lengths
from trainer.learner.attention import visible
from trainer.learner.attention_backends import BACKENDS as BY_NAME
from trainer.learner.attention_backends import has_flash
from trainer.learner.attention_flash import flash_attention
from trainer.learner.attention_flex import flex
from trainer.learner.config import LearnerConfig
from trainer.learner.group import LearnerGroup
from trainer.learner.packing import Span

FLASH = pytest.mark.skipif(not has_flash(), reason="flash_attn is not installed")
BACKENDS = [
    ("sdpa", "float32", 1e-4),
    ("flex", "float32", 1e-4),
    ("flex", "bfloat16", 0.1),
    pytest.param("flash", "bfloat16", 0.1, marks=FLASH),
]
ROWS = {
    "shorter than a block": (Span(0, 20, 0, 0), Span(20, 33, 0, 20)),
    "of two rollouts": (Span(0, 100, 0, 0), Span(100, 127, 100, 100)),
    "of several blocks": (Span(0, 150, 0, 0), Span(150, 300, 0, 150), Span(300, 350, 0, 150), Span(350, 400, 350, 350)),
}


@pytest.mark.parametrize("keys", [8, 2, 1], ids=["8 of 8 heads", "2 of 8 heads", "1 of 8 heads"])
@pytest.mark.parametrize("kind", ["flex", pytest.param("flash", marks=FLASH)])
def test_kernels_are_the_definition_with_its_gradients(kind: str, keys: int) -> None:
    """Rows of all lengths through one compiled kernel, the shortest first."""
    gpu, attend = torch.device("cuda"), {"flex": flex, "flash": flash_attention}[kind]
    for name, spans in ROWS.items():
        torch.manual_seed(0)
        shapes = [(1, heads, spans[-1].end, 32) for heads in (8, keys, keys)]
        states = [torch.randn(shape, dtype=torch.bfloat16) for shape in shapes]
        there = [state.to(gpu).requires_grad_() for state in states]
        here = [state.float().requires_grad_() for state in states]
        out, _ = attend(torch.nn.Module(), *there, None, scaling=0.2, **BY_NAME[kind].arguments(spans, gpu))
        want = F.scaled_dot_product_attention(*here, attn_mask=visible(spans), scale=0.2, enable_gqa=True)
        weights = torch.randn_like(want)
        (out.transpose(1, 2).cpu() * weights).sum().backward()
        (want * weights).sum().backward()
        torch.testing.assert_close(out.transpose(1, 2).cpu().float(), want, atol=0.03, rtol=0.03, msg=name)
        for mine, theirs in zip(there, here, strict=True):
            assert mine.grad is not None and theirs.grad is not None
            apart = (mine.grad.cpu().float() - theirs.grad).norm() / theirs.grad.norm()
            assert apart < 0.02, name


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
