"""Is the served policy the trained one? Log-probs of engine and learner after ten updates with a large learning rate.

Tied and untied embeddings in fp32 on tiny models, and the built-in policy in bf16. Two faults are then committed on
purpose, a sync that never happens and one that lacks the tied output head; version and name checks must catch both.
"""

import asyncio
import math
import random
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq

from bench.output import arguments, report, say, scratch
from bench.tiny import tiny_model
from flows.environment import prepare

UPDATES = 10


def main() -> None:
    """Measure the three models, then the two faults."""
    options = arguments(__doc__ or "")
    with scratch(options.root) as root:
        prepare(root)
        figures, rows = asyncio.run(_measure(root, options.quick))
    report(
        "fidelity: engine against learner", ["model", "tokens", "max |diff|", "Pearson", "faults caught"], rows, figures
    )


async def _measure(root: Path, quick: bool) -> tuple[dict[str, float], list[list[object]]]:
    from trainer.model import ModelConfig, resolve_model
    from trainer.placement import ray_cluster

    updates = 2 if quick else UPDATES
    with ray_cluster():
        tied = await _compare("tied, fp32", tiny_model(root / "tied", tied=True), "float32", 1e-2, updates)
        untied = await _compare("untied, fp32", tiny_model(root / "untied", tied=False), "float32", 1e-2, updates)
        big = tiny_model(root / "tied", tied=True) if quick else resolve_model(ModelConfig(), root)
        bf16 = await _compare("built-in, bf16", big, "bfloat16", 1e-4, updates)
    figures = {
        "fp32_max_abs_diff": max(tied["diff"], untied["diff"]),
        "fp32_pearson": min(tied["pearson"], untied["pearson"]),
        "bf16_pearson": bf16["pearson"],
        "skipped_sync_caught": int(all(result["caught"] for result in (tied, untied, bf16))),
    }
    rows: list[list[object]] = [
        [r["name"], r["tokens"], f"{r['diff']:.2e}", f"{r['pearson']:.6f}", "yes" if r["caught"] else "NO"]
        for r in (tied, untied, bf16)
    ]
    return figures, rows


async def _compare(name: str, model: Path, dtype: Any, lr: float, updates: int) -> dict[str, Any]:
    from trainer.algorithms.config import AlgorithmConfig
    from trainer.learner.config import LearnerConfig
    from trainer.learner.group import LearnerGroup
    from trainer.serving.config import ServingConfig
    from trainer.serving.pool import ReplicaPool

    say(f"{name}: starting engine and learner")
    run = f"fidelity/{model.name}-{dtype}"
    serving = ServingConfig(dtype=dtype, window=256, bucket_mib=8)
    pool, learner = await asyncio.gather(
        ReplicaPool.start(run, model, serving),
        LearnerGroup.start(run, model, LearnerConfig(dtype=dtype, lr=lr), AlgorithmConfig()),
    )
    try:
        for step in range(1, updates + 1):
            batch = await _sample_batch(pool, model, step, temperature=1.0)
            await learner.update(step, batch, 1.0)
            await learner.send_weights(step, pool.actors, serving)
            await pool.require_version(step)
        batch = await _sample_batch(pool, model, updates + 1, temperature=0.8)
        trained = (await learner.score(batch, ["old_logprobs"], 0.8, updates=updates))["old_logprobs"]
        sampled = np.concatenate(
            [np.array(r["logprobs"])[np.array(r["loss_mask"]) == 1] for r in pq.read_table(batch).to_pylist()]
        )
        caught = await _faults_caught(pool, learner, model, batch, updates + 1, serving)
    finally:
        learner.shutdown()
        await pool.shutdown()
    pearson = float(np.corrcoef(np.exp(trained), np.exp(sampled))[0, 1])
    say(f"{name}: max |diff| {np.abs(trained - sampled).max():.2e}, Pearson {pearson:.6f}, faults caught: {caught}")
    return {
        "name": name,
        "tokens": len(trained),
        "diff": float(np.abs(trained - sampled).max()),
        "pearson": pearson,
        "caught": caught,
    }


async def _sample_batch(pool: Any, model: Path, step: int, temperature: float) -> Path:
    """Random prompts, two answers each with opposite advantages: an update that goes somewhere."""
    from trainer.batch import BatchRow, make_batch, sampled_lengths, with_advantages
    from trainer.rollout import NO_VERSION, Outcome, Rollout, Sampling

    rng = random.Random(step)
    prompts = [[rng.randrange(32, 200) for _ in range(24)] for _ in range(4)]
    sampling = Sampling(temperature=temperature, max_tokens=32)
    answers = await asyncio.gather(
        *(pool.generate(ids, sampling, f"s{step}-{g}-{k}") for g, ids in enumerate(prompts) for k in range(2))
    )
    rollouts = [
        Rollout(
            session_id=f"s{step}-{i}", task_id=f"t{i // 2}", group_id=f"g{i // 2}", step=step,
            outcome=Outcome.COMPLETED,
            token_ids=[*prompts[i // 2], *answer.token_ids],
            loss_mask=[0] * 24 + [1] * len(answer.token_ids),
            logprobs=[math.nan] * 24 + list(answer.logprobs),
            weight_versions=[NO_VERSION] * 24 + list(answer.weight_versions),
            prompt_length=24, num_turns=1,
        )
        for i, answer in enumerate(answers)
    ]  # fmt: skip
    batch = make_batch([BatchRow(r, float(i % 2), float(i % 2)) for i, r in enumerate(rollouts)])
    signs = [2 * reward - 1 for reward in batch.column("reward").to_pylist()]
    path = model / f"batch-{step}.parquet"
    pq.write_table(with_advantages(batch, np.repeat(signs, sampled_lengths(batch))), path)
    return path


async def _faults_caught(pool: Any, learner: Any, model: Path, batch: Path, step: int, serving: Any) -> bool:
    """A skipped sync and an incomplete one; both must raise, and a right one must mend them."""
    import torch
    from transformers import AutoModelForCausalLM

    from trainer.serving.buckets import SharedBuffer
    from trainer.serving.replica import ReplicaError
    from trainer.serving.sender import ReplicaActors, send_weights

    await learner.update(step, batch, 0.8)
    try:
        await pool.require_version(step)
        return False
    except ReplicaError:
        pass
    tensors = dict(
        AutoModelForCausalLM.from_pretrained(model, dtype=getattr(torch, serving.dtype)).named_parameters(
            remove_duplicate=False
        )
    )
    tensors.pop("lm_head.weight")
    try:
        with closing(SharedBuffer(max(tensor.nbytes for tensor in tensors.values()))) as buffer:
            await asyncio.to_thread(send_weights, tensors.items(), ReplicaActors(pool.actors), step, buffer)
        return False
    except Exception as error:
        if "lm_head.weight" not in str(error):
            raise
    try:
        await pool.generate([40] * 8, _one_token(), "after-fault")
        return False
    except Exception as error:
        if "sync" not in str(error):
            raise
    await learner.send_weights(step, pool.actors, serving)
    await pool.require_version(step)
    return True


def _one_token() -> Any:
    from trainer.rollout import Sampling

    return Sampling(max_tokens=1)


if __name__ == "__main__":
    main()
