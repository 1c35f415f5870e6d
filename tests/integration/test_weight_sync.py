"""A real vLLM engine and the sync through shared memory: right ones are exact, wrong ones are caught."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import pytest_asyncio
import torch
from transformers import AutoModelForCausalLM

from trainer.rollout import Generation, Sampling
from trainer.serving.config import ServingConfig
from trainer.serving.pool import ReplicaPool
from trainer.serving.replica import ReplicaError
from trainer.serving.sender import ReplicaActors, send_weights

pytestmark = pytest.mark.asyncio(loop_scope="module")
PROMPT = list(range(40, 140))


@pytest.fixture(scope="module", params=["tied", "untied"])
def model_folder(request: pytest.FixtureRequest, models: dict[str, Path]) -> Path:
    return models[request.param]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def pool(cluster: None, model_folder: Path) -> AsyncIterator[ReplicaPool]:
    config = ServingConfig(dtype="float32", window=512)
    pool = await ReplicaPool.start(f"sync/{model_folder.name}", model_folder, config)
    yield pool
    await pool.shutdown()


@pytest.fixture(scope="module")
def policy(model_folder: Path) -> torch.nn.Module:
    """The trainer's copy of the policy; tests change it and sync it."""
    return AutoModelForCausalLM.from_pretrained(model_folder, dtype=torch.float32)


def tensors(policy: torch.nn.Module) -> dict[str, torch.Tensor]:
    return {name: p.detach() for name, p in policy.named_parameters(remove_duplicate=False)}


def perturb(policy: torch.nn.Module, *names: str) -> None:
    with torch.no_grad():
        for name, parameter in policy.named_parameters(remove_duplicate=False):
            if not names or name in names:
                parameter.add_(torch.randn_like(parameter) * 0.05)


async def sync(pool: ReplicaPool, named: dict[str, torch.Tensor], version: int) -> str:
    # a buffer of one largest tensor, so that layers come in several buckets
    largest = max(tensor.nbytes for tensor in named.values())
    return await asyncio.to_thread(send_weights, named.items(), ReplicaActors(pool.actors), version, largest, largest)


async def difference(pool: ReplicaPool, policy: torch.nn.Module, temperature: float = 0.8) -> tuple[float, Generation]:
    """Largest difference between the engine's log-probs of what it sampled and the trainer's."""
    answer = await pool.generate(PROMPT, Sampling(temperature=temperature, max_tokens=48), "s")
    ids = torch.tensor([PROMPT + list(answer.token_ids)])
    with torch.no_grad():
        logprobs = (policy(ids).logits[0, len(PROMPT) - 1 : -1] / temperature).log_softmax(-1)
    mine = logprobs.gather(-1, ids[0, len(PROMPT) :, None])[:, 0].numpy()
    return float(np.abs(mine - np.array(answer.logprobs)).max()), answer


async def test_engine_samples_from_what_was_synced(pool: ReplicaPool, policy: torch.nn.Module) -> None:
    before, answer = await difference(pool, policy)
    assert before < 1e-4 and set(answer.weight_versions) == {0}
    perturb(policy)
    stale, _ = await difference(pool, policy)
    assert stale > 0.05, "the perturbation must be visible, or this test shows nothing"
    await sync(pool, tensors(policy), 1)
    # the same prompt as before: cached keys of the old weights would show
    after, answer = await difference(pool, policy)
    assert after < 1e-4 and set(answer.weight_versions) == {1}
    await pool.require_version(1)


@pytest.mark.parametrize("missing", ["lm_head.weight", "model.layers.1.self_attn.k_proj.weight", "model.norm.weight"])
async def test_a_sync_that_lacks_a_tensor_is_caught_and_nothing_is_served(
    pool: ReplicaPool, policy: torch.nn.Module, missing: str
) -> None:
    perturb(policy)
    named = tensors(policy)
    named.pop(missing)
    with pytest.raises(Exception, match=missing):
        await sync(pool, named, 7)
    assert await pool.versions() == [None]
    with pytest.raises(ReplicaError):
        await pool.require_version(7)
    with pytest.raises(Exception, match="sync again"):
        await pool.generate(PROMPT, Sampling(max_tokens=1), "s")
    await sync(pool, tensors(policy), 8)
    assert (await difference(pool, policy))[0] < 1e-4


async def test_a_damaged_tensor_is_caught(
    pool: ReplicaPool, policy: torch.nn.Module, monkeypatch: pytest.MonkeyPatch
) -> None:
    from trainer.serving import sender

    honest: Any = sender.record_fields

    def damaged(records: Any) -> Any:
        fields = honest(records)
        fields[0]["crc32"] ^= 1
        return fields

    monkeypatch.setattr(sender, "record_fields", damaged)
    with pytest.raises(Exception, match="checksum"):
        await sync(pool, tensors(policy), 9)
    monkeypatch.undo()
    await sync(pool, tensors(policy), 10)
    assert (await difference(pool, policy))[0] < 1e-4


async def test_a_skipped_sync_is_caught_by_version(pool: ReplicaPool, policy: torch.nn.Module) -> None:
    await sync(pool, tensors(policy), 11)
    with pytest.raises(ReplicaError, match="version"):
        await pool.require_version(12)


async def test_a_generation_goes_on_across_a_sync_and_says_which_weights_made_which_token(
    pool: ReplicaPool, policy: torch.nn.Module
) -> None:
    await sync(pool, tensors(policy), 20)
    running = asyncio.create_task(pool.generate(PROMPT, Sampling(max_tokens=400, min_tokens=400), "long"))
    await asyncio.sleep(0.1)
    await sync(pool, tensors(policy), 21)
    versions = (await running).weight_versions
    assert sorted(set(versions)) == [20, 21] and list(versions) == sorted(versions)


async def test_stop_strings_end_an_answer_with_the_tokens_that_complete_them(pool: ReplicaPool) -> None:
    answer = await pool.generate(PROMPT, Sampling(max_tokens=200, stop=("a", "b", "c", "d", "e", "f")), "s")
    assert answer.finish_reason in ("stop", "length")
    assert len(answer.token_ids) == len(answer.logprobs)


async def test_a_cancelled_call_stops_the_generation(pool: ReplicaPool) -> None:
    running = asyncio.create_task(pool.generate(PROMPT, Sampling(max_tokens=400, min_tokens=400), "gone"))
    await asyncio.sleep(0.1)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    await pool.require_serving()
