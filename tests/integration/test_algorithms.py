"""Algorithms with models of their own, on real ZeRO-3 ranks: critic, reference, selection over ranks, replay."""

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from support.rollouts import write_batch

from trainer.algorithms.config import AlgorithmConfig
from trainer.batch import sampled, sampled_lengths, with_advantages
from trainer.learner.config import LearnerConfig
from trainer.learner.group import LearnerGroup

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.usefixtures("cluster")]

TOKEN_CLIP = {"clip_ratio_low": 0.2, "clip_ratio_high": 0.2, "loss_agg": "token-mean"}


async def start(model: Path, name: str, algorithm: dict[str, Any], **settings: Any) -> LearnerGroup:
    config = LearnerConfig(**{"lr": 1e-3, "dtype": "float32"} | settings)
    return await LearnerGroup.start(f"algorithms/{name}", model, config, AlgorithmConfig(**algorithm))


async def scored(group: LearnerGroup, path: Path, columns: list[str], updates: int) -> Path:
    """The batch with columns that the learner computes, and with returns of 1."""
    scores = await group.score(path, columns, 1.0, updates=updates)
    table = pq.read_table(path)
    returns = np.ones(int(sampled_lengths(table).sum()))
    target = path.with_name(f"scored-{updates}.parquet")
    pq.write_table(with_advantages(table, sampled(table, "advantages"), returns=returns, **scores), target)
    return target


async def test_a_critic_is_trained_saved_and_restored(models: dict[str, Path], tmp_path: Path) -> None:
    batch = write_batch(tmp_path / "batch.parquet")
    group = await start(models["tied"], "critic", {"adv_estimator": "gae"}, critic={"lr": 1e-2})
    try:
        losses = []
        for step in (1, 2, 3):
            table = await scored(group, batch, ["values"], step - 1)
            losses.append((await group.update(step, table, 1.0)).metrics["critic/vf_loss"])
            if step == 2:
                checkpoint = await group.save(tmp_path / "checkpoints", 2)
                values = await group.score(batch, ["values"], 1.0, updates=2)
        assert losses[0] == pytest.approx(0.5, rel=1e-6), "a fresh critic says 0, and all returns are 1"
        assert losses[2] < losses[1] < losses[0]
        assert await group.load(checkpoint) == 2
        restored = await group.score(batch, ["values"], 1.0, updates=2)
        np.testing.assert_array_equal(restored["values"], values["values"])
    finally:
        group.shutdown()


async def test_the_reference_stays_where_the_policy_began(models: dict[str, Path], tmp_path: Path) -> None:
    batch = write_batch(tmp_path / "batch.parquet")
    algorithm = {"kl": {"place": "loss", "coef": 0.1}}
    group = await start(models["untied"], "reference", algorithm)
    try:
        before = await group.score(batch, ["old_logprobs", "ref_logprobs"], 1.0, updates=0)
        np.testing.assert_array_equal(before["old_logprobs"], before["ref_logprobs"])
        first = await group.update(1, await scored(group, batch, ["ref_logprobs"], 0), 1.0)
        assert first.metrics["actor/kl_loss"] == pytest.approx(0.0, abs=1e-7)
        after = await group.score(batch, ["old_logprobs", "ref_logprobs"], 1.0, updates=1)
        np.testing.assert_array_equal(after["ref_logprobs"], before["ref_logprobs"])
        assert np.abs(after["old_logprobs"] - after["ref_logprobs"]).max() > 1e-3
        second = await group.update(2, await scored(group, batch, ["ref_logprobs"], 1), 1.0)
        assert second.metrics["actor/kl_loss"] > 0
    finally:
        group.shutdown()


async def test_selection_and_scores_are_the_same_on_one_rank_and_two(models: dict[str, Path], tmp_path: Path) -> None:
    batch = write_batch(tmp_path / "batch.parquet")
    algorithm = {"policy_loss": "kl_cov", "kl_cov_ratio": 0.2, "entropy_coeff": 0.01, **TOKEN_CLIP}
    metrics, scores = [], []
    for ranks in (1, 2):
        group = await start(
            models["tied"], f"select{ranks}", algorithm, ranks=ranks, micro_batch_tokens=64, ppo_epochs=2
        )
        try:
            scores.append(await group.score(batch, ["sum_pi_squared", "old_logprobs"], 1.0, updates=0))
            metrics.append((await group.update(1, batch, 1.0)).metrics)
        finally:
            group.shutdown()
    for name, column in scores[0].items():
        np.testing.assert_allclose(scores[1][name], column, atol=1e-5, err_msg=name)
    shared = [{name for name in found if "/rank_" not in name} for found in metrics]  # memory has one for each rank
    assert shared[0] == shared[1]
    for name in ("actor/pg_loss", "actor/grad_norm", "actor/entropy_loss", "rollout_corr/rollout_is_mean"):
        assert metrics[1][name] == pytest.approx(metrics[0][name], rel=1e-3, abs=1e-6), name
    assert metrics[0]["actor/ppo_kl"] != 0.0, "the second epoch is off-policy"
