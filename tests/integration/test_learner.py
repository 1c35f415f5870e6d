"""Real DeepSpeed ZeRO-3 ranks: exact whatever the packing and the number of ranks, restartable, idempotent."""

from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from support.rollouts import batch_of, make_rollout, write_batch
from transformers import AutoModelForCausalLM

from trainer.algorithms.config import AlgorithmConfig
from trainer.batch import sampled_lengths, with_advantages
from trainer.learner.checkpoint import list_checkpoints
from trainer.learner.config import LearnerConfig
from trainer.learner.export import export_checkpoint
from trainer.learner.group import LearnerGroup

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.usefixtures("cluster")]


NAN = float("nan")
LOGPROBS = [NAN, NAN, NAN, -5.5, -5.5, NAN, -5.5]


async def train(model: Path, batch: Path, name: str, **settings: object) -> tuple[list[str], dict[str, float]]:
    """Fingerprints after two updates, and the metrics of the second."""
    config = LearnerConfig(**{"lr": 1e-3, "dtype": "float32"} | settings)  # type: ignore[arg-type]
    group = await LearnerGroup.start(f"learner/{name}", model, config, AlgorithmConfig())
    try:
        records = [await group.update(step, batch, 1.0) for step in (1, 2)]
        return [record.fingerprint for record in records], records[-1].metrics
    finally:
        group.shutdown()


async def test_gradient_depends_on_neither_packing_nor_ranks(models: dict[str, Path], tmp_path: Path) -> None:
    batch = write_batch(tmp_path / "batch.parquet")
    _, one = await train(models["tied"], batch, "one")
    _, small = await train(models["tied"], batch, "small", micro_batch_tokens=64)
    # three groups over two ranks: one of them has fewer rows, and must fill up with rows that train nothing
    _, two = await train(models["tied"], batch, "two", ranks=2, micro_batch_tokens=64)
    for name in ("actor/grad_norm", "actor/entropy", "actor/pg_loss", "rollout_corr/kl"):
        assert small[name] == pytest.approx(one[name], rel=1e-4, abs=1e-6), name
        assert two[name] == pytest.approx(one[name], rel=1e-4, abs=1e-6), name
    assert one["actor/ppo_kl"] == 0.0 and one["actor/pg_clipfrac"] == 0.0, "one on-policy step: the ratio is exactly 1"


async def test_products_in_fp32_train_as_those_in_bf16(models: dict[str, Path], tmp_path: Path) -> None:
    """Also where weights are gathered anew, and what layers are given is computed anew or waits on the host."""
    batch = write_batch(tmp_path / "batch.parquet")
    settings = {"dtype": "bfloat16", "micro_batch_tokens": 64}
    _, want = await train(models["tied"], batch, "bf16", **settings, matmul_dtype="bfloat16")
    anew = {"ranks": 2, "gradient_checkpointing": True, "offload_activations": True}
    _, have = await train(models["tied"], batch, "in-fp32", **settings, **anew, matmul_dtype="float32")
    for name in ("actor/grad_norm", "actor/entropy", "actor/pg_loss", "rollout_corr/kl"):
        assert have[name] == pytest.approx(want[name], rel=0.02, abs=1e-4), name


async def test_no_row_is_lost_on_the_sum_of_many(models: dict[str, Path], tmp_path: Path) -> None:
    """As many copies of one rollout have its gradient on average; in bfloat16 their sum would not grow any more."""
    settings = {"dtype": "bfloat16", "micro_batch_tokens": 1, "share_prompts": "never"}
    config = LearnerConfig(lr=1e-12, **settings)  # type: ignore[arg-type]
    group = await LearnerGroup.start("learner/sum", models["tied"], config, AlgorithmConfig())
    norms = []
    try:
        for step, copies in enumerate((1, 512), start=1):
            rollouts = [make_rollout(f"s-{copy}", logprobs=LOGPROBS) for copy in range(copies)]
            table = with_advantages(batch_of(rollouts), np.ones(3 * copies, np.float32))
            pq.write_table(table, tmp_path / f"{step}.parquet")
            record = await group.update(step, tmp_path / f"{step}.parquet", 1.0)
            norms.append(record.metrics["actor/grad_norm"])
    finally:
        group.shutdown()
    assert norms[1] == pytest.approx(norms[0], rel=0.01)


async def test_sums_in_fp32_survive_a_restore_and_a_turn_of_the_replicas(
    models: dict[str, Path], tmp_path: Path
) -> None:
    batch = write_batch(tmp_path / "batch.parquet")
    config = LearnerConfig(lr=1e-3, dtype="bfloat16", micro_batch_tokens=64)
    group = await LearnerGroup.start("learner/bf16", models["tied"], config, AlgorithmConfig())
    try:
        await group.update(1, batch, 1.0)
        path = await group.save(tmp_path / "checkpoints", 1)
        straight = await group.update(2, batch, 1.0)
        assert await group.load(path) == 1
        await group.offload()
        await group.reload()
        assert (await group.update(2, batch, 1.0)).fingerprint == straight.fingerprint
    finally:
        group.shutdown()


async def test_update_moves_every_tensor_once_and_says_so(models: dict[str, Path], tmp_path: Path) -> None:
    # so many answers to a prompt that threads share the summing up of what they send back
    batch = write_batch(tmp_path / "batch.parquet", groups=2, attempts=64)
    group = await LearnerGroup.start(
        "learner/moves", models["untied"], LearnerConfig(lr=1e-3, dtype="float32"), AlgorithmConfig()
    )
    try:
        before = await group.fingerprint()
        first = await group.update(1, batch, 1.0)
        assert first.fingerprint != before == before
        assert (await group.update(1, batch, 1.0)).fingerprint == first.fingerprint, "asked twice, done once"
        assert await group.updates() == 1
        with pytest.raises(Exception, match="asked for update 3"):
            await group.update(3, batch, 1.0)
        path = await group.save(tmp_path / "checkpoints", 1)
        base = AutoModelForCausalLM.from_pretrained(models["untied"])
        exported = export_checkpoint(path, tmp_path / "exported")
        moved = AutoModelForCausalLM.from_pretrained(exported)
        for (name, old), (_, new) in zip(base.named_parameters(), moved.named_parameters(), strict=True):
            assert not torch.equal(old, new), f"{name} did not move"
        second = await group.update(2, batch, 1.0)
        assert await group.load(path) == 1
        assert (await group.update(2, batch, 1.0)).fingerprint == second.fingerprint, "a resumed run is the same run"
        assert [c.step for c in list_checkpoints(tmp_path / "checkpoints")] == [1]
    finally:
        group.shutdown()


async def test_scores_are_those_of_the_model_and_without_signal_it_stays(
    models: dict[str, Path], tmp_path: Path
) -> None:
    batch = write_batch(tmp_path / "batch.parquet", signal=False)
    group = await LearnerGroup.start(
        "learner/flat", models["tied"], LearnerConfig(lr=1e-3, dtype="float32"), AlgorithmConfig()
    )
    try:
        scores = await group.score(batch, ["old_logprobs"], 0.7, updates=0)
        before = await group.fingerprint()
        record = await group.update(1, batch, 1.0)
        assert record.fingerprint == before and await group.updates() == 1
        assert record.metrics["actor/update_tokens"] == 0
    finally:
        group.shutdown()
    model = AutoModelForCausalLM.from_pretrained(models["tied"])
    table = pq.read_table(batch)
    packed = np.split(scores["old_logprobs"], np.cumsum(sampled_lengths(table))[:-1])
    for row, values in zip(table.to_pylist(), packed, strict=True):
        ids = torch.tensor([row["token_ids"]])
        with torch.no_grad():
            logprobs = (model(ids).logits[0, :-1] / 0.7).log_softmax(-1).gather(-1, ids[0, 1:, None])[:, 0]
        assert torch.allclose(logprobs[row["prompt_length"] - 1 :], torch.tensor(values), atol=1e-5)


async def test_mini_batches_make_several_steps_and_clip(models: dict[str, Path], tmp_path: Path) -> None:
    batch = write_batch(tmp_path / "batch.parquet")
    _, metrics = await train(models["tied"], batch, "mini", mini_batch_size=4)
    assert metrics["actor/ppo_kl"] != 0.0, "later mini-batches are off-policy"
    assert metrics["actor/pg_clipfrac"] > 0.0
