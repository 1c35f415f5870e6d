"""Mixtures of experts and LoRA with real engines: replay under ZeRO-3, what replicas are sent, what is exported.

`TESTGRAD_ALL_SYNCS=1` also trains adapters, syncs an engine with them alone, and has learners of two ranks and without
replay.
"""

import os
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from safetensors.torch import load_file
from support.mixture import disturb_routers, record_routing, tiny_mixture
from support.plain import load_plain
from support.rollouts import batch_of, make_rollout, write_batch
from transformers import AutoModelForCausalLM

from trainer.algorithms.config import AlgorithmConfig
from trainer.batch import sampled_lengths, with_advantages
from trainer.learner.config import LearnerConfig
from trainer.learner.export import export_adapters, export_checkpoint
from trainer.learner.group import LearnerGroup
from trainer.serving.buckets import SharedBuffer
from trainer.serving.config import ServingConfig
from trainer.serving.pool import ReplicaPool
from trainer.serving.sender import ReplicaActors, send_weights

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.usefixtures("cluster")]
ALL = bool(os.environ.get("TESTGRAD_ALL_SYNCS"))
PROMPT = list(range(40, 100))
PEARSON = "training/rollout_actor_probs_pearson_corr"


@pytest.fixture(scope="module")
def mixture(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_mixture(tmp_path_factory.mktemp("mixture") / "qwen3_moe")


def routed_batch(path: Path, mixture: Path, routing: bool = True) -> Path:
    """Rollouts of an engine whose routers have drifted away from the learner's, and the experts that it chose."""
    engine, rollouts = load_plain(mixture), []
    disturb_routers(engine)
    rng = np.random.default_rng(0)
    for group in range(2):
        prompt = rng.integers(0, 256, 20).tolist()
        for number in range(3):
            answer = rng.integers(0, 256, 30).tolist()
            ids = prompt + answer
            with torch.no_grad():
                logits = engine(input_ids=torch.tensor([ids])).logits[0, len(prompt) - 1 : -1].log_softmax(-1)
            logprobs = [float("nan")] * len(prompt) + logits.gather(1, torch.tensor(answer)[:, None])[:, 0].tolist()
            experts = record_routing(engine, ids)[:-1]
            told = {"routed_experts": experts.tobytes(), "routing_shape": list(experts.shape)} if routing else {}
            rollouts.append(
                make_rollout(f"s{group}-{number}", f"g{group}", prompt, [answer], logprobs=logprobs, **told)
            )
    batch = batch_of(rollouts)
    signs = [2 * reward - 1 for reward in batch.column("reward").to_pylist()]
    pq.write_table(with_advantages(batch, np.repeat(signs, sampled_lengths(batch))), path)
    return path


def logprobs(model: Any, ids: list[int]) -> np.ndarray:
    """Of all tokens but the first, as transformers computes them."""
    tokens = torch.tensor([ids])
    with torch.no_grad():
        found = model(tokens).logits[0, :-1].log_softmax(-1).gather(-1, tokens[0, 1:, None])[:, 0]
    return np.asarray(found.numpy())


async def engine_logprobs(pool: ReplicaPool, ids: list[int]) -> np.ndarray:
    return np.array(await pool.actors[0].prompt_logprobs.remote(ids))


async def test_a_mixture_is_trained_by_replay_synced_and_exported(mixture: Path, tmp_path: Path) -> None:
    batch = routed_batch(tmp_path / "batch.parquet", mixture)
    config = LearnerConfig(lr=1e-3, dtype="float32", moe={"replay": True})  # type: ignore[arg-type]
    serving = ServingConfig(dtype="float32", window=256)
    group = await LearnerGroup.start("mixture/replay", mixture, config, AlgorithmConfig())
    try:
        record = await group.update(1, batch, 1.0)
        assert record.metrics["actor/routing_replay/coverage"] == 1.0
        assert record.metrics["actor/routing_replay/changed"] > 0.2
        assert record.metrics[PEARSON] > 0.999
        unrecorded = routed_batch(tmp_path / "unrecorded.parquet", mixture, routing=False)
        with pytest.raises(Exception, match=r"none of the 6 rollouts.*serving\.capture_routing: true"):
            await group.update(2, unrecorded, 1.0)
        exported = export_checkpoint(await group.save(tmp_path / "checkpoints", 1), tmp_path / "exported")
        before, after = load_file(mixture / "model.safetensors"), load_file(exported / "model.safetensors")
        assert before.keys() == after.keys() and any(".experts.7.gate_proj." in name for name in after)
        still = {name for name in before if torch.equal(before[name], after[name])}
        assert not {name for name in still if ".mlp.gate." in name}, "routers learn although their choice is forced"
        assert len(still) < len(before) / 4, "all but experts that no token was sent to"
        pool = await ReplicaPool.start("mixture/replay", mixture, serving)
        try:
            plain = AutoModelForCausalLM.from_pretrained(exported).eval()
            assert np.abs(await engine_logprobs(pool, PROMPT) - logprobs(plain, PROMPT)).max() > 1e-2
            assert await group.send_weights(1, pool.actors, serving) == record.fingerprint
            assert np.abs(await engine_logprobs(pool, PROMPT) - logprobs(plain, PROMPT)).max() < 1e-3
            name = "model.layers.1.mlp.experts.3.down_proj.weight"
            with pytest.raises(Exception, match=name):
                left = {key: tensor for key, tensor in after.items() if key != name}
                send_weights(left.items(), ReplicaActors(pool.actors), 2, SharedBuffer(2**20))
            assert await pool.versions() == [None]
        finally:
            await pool.shutdown()
    finally:
        group.shutdown()


@pytest.mark.skipif(not ALL, reason="TESTGRAD_ALL_SYNCS=1 runs it")
async def test_without_replay_the_same_batch_is_off_policy(mixture: Path, tmp_path: Path) -> None:
    batch = routed_batch(tmp_path / "batch.parquet", mixture)
    group = await LearnerGroup.start("mixture/native", mixture, LearnerConfig(dtype="float32"), AlgorithmConfig())
    try:
        metrics = (await group.update(1, batch, 1.0)).metrics
    finally:
        group.shutdown()
    assert metrics[PEARSON] < 0.9
    assert "actor/routing_replay/coverage" not in metrics


@pytest.mark.skipif(not ALL, reason="TESTGRAD_ALL_SYNCS=1 runs it")
async def test_replay_depends_on_neither_packing_nor_ranks(mixture: Path, tmp_path: Path) -> None:
    batch = routed_batch(tmp_path / "batch.parquet", mixture)
    found = []
    for name, settings in {"one": {}, "two": {"ranks": 2, "micro_batch_tokens": 64, "share_prompts": "never"}}.items():
        config = LearnerConfig(lr=1e-3, dtype="float32", moe={"replay": True}, **settings)  # type: ignore[arg-type]
        group = await LearnerGroup.start(f"mixture/{name}", mixture, config, AlgorithmConfig())
        try:
            found.append((await group.update(1, batch, 1.0)).metrics)
        finally:
            group.shutdown()
    for name in ("actor/grad_norm", "actor/pg_loss", "actor/routing_replay/coverage", PEARSON):
        assert found[1][name] == pytest.approx(found[0][name], rel=1e-3, abs=1e-6), name


@pytest.mark.skipif(not ALL, reason="TESTGRAD_ALL_SYNCS=1 runs it")
async def test_adapters_are_trained_merged_and_exported(models: dict[str, Path], tmp_path: Path) -> None:
    base, batch = models["untied"], write_batch(tmp_path / "batch.parquet")
    lora: dict[str, Any] = {"rank": 4, "alpha": 16, "sync": "adapters"}
    config = LearnerConfig(lr=2e-2, dtype="float32", lora=lora)  # type: ignore[arg-type]
    algorithm = AlgorithmConfig(kl={"place": "loss", "coef": 0.1})  # type: ignore[arg-type]
    group = await LearnerGroup.start("lora/train", base, config, algorithm)
    pool = None
    try:
        scores = await group.score(batch, ["old_logprobs", "ref_logprobs"], 1.0, updates=0)
        assert np.array_equal(scores["old_logprobs"], scores["ref_logprobs"]), "adapters begin without effect"
        table = with_reference(batch, scores["ref_logprobs"])
        record = await group.update(1, table, 1.0)
        again = await group.score(batch, ["old_logprobs", "ref_logprobs"], 1.0, updates=1)
        assert np.array_equal(again["ref_logprobs"], scores["ref_logprobs"]), "the base is never changed"
        assert np.abs(again["old_logprobs"] - scores["old_logprobs"]).max() > 1e-2
        checkpoint = await group.save(tmp_path / "checkpoints", 1)
        merged = export_checkpoint(checkpoint, tmp_path / "merged")
        adapters = export_adapters(checkpoint, tmp_path / "adapters")
        second = await group.update(2, table, 1.0)
        assert await group.load(checkpoint) == 1
        assert (await group.update(2, table, 1.0)).fingerprint == second.fingerprint != record.fingerprint
        assert await group.load(checkpoint) == 1
        plain = AutoModelForCausalLM.from_pretrained(merged).eval()
        assert np.abs(logprobs(peft_model(base, adapters), PROMPT) - logprobs(plain, PROMPT)).max() < 1e-4
        before, after = load_file(base / "model.safetensors"), load_file(merged / "model.safetensors")
        changed = {name for name in before if not torch.equal(before[name], after[name])}
        assert changed == {name for name in before if "_proj." in name}
        serving = ServingConfig(dtype="float32", window=256, lora_rank=4)
        pool = await ReplicaPool.start("lora/train", base, serving)
        assert np.abs(await engine_logprobs(pool, PROMPT) - logprobs(plain, PROMPT)).max() > 1e-2
        for version in (1, 2):
            if version == 2:
                await group.update(2, table, 1.0)
                moved = export_checkpoint(await group.save(tmp_path / "checkpoints", 2), tmp_path / "moved")
                plain = AutoModelForCausalLM.from_pretrained(moved).eval()
                assert np.abs(await engine_logprobs(pool, PROMPT) - logprobs(plain, PROMPT)).max() > 1e-3
            await group.send_weights(version, pool.actors, serving)
            await pool.require_version(version)
            assert np.abs(await engine_logprobs(pool, PROMPT) - logprobs(plain, PROMPT)).max() < 1e-4
    finally:
        if pool is not None:
            await pool.shutdown()
        group.shutdown()


def with_reference(batch: Path, ref_logprobs: np.ndarray) -> Path:
    """The batch, with the log-probs of the reference."""
    table = pq.read_table(batch)
    mask = np.concatenate([np.array(m) for m in table.column("loss_mask").to_pylist()]) == 1
    flat = np.concatenate([np.array(a) for a in table.column("advantages").to_pylist()])
    path = batch.with_name("with_reference.parquet")
    pq.write_table(with_advantages(table, flat[mask], ref_logprobs=ref_logprobs), path)
    return path


def peft_model(base: Path, adapters: Path) -> Any:
    from peft import PeftModel

    return PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(base), str(adapters)).eval()
