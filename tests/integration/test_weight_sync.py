"""A real vLLM engine and the sync through shared memory: right ones are exact, wrong ones are caught and named."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import pytest_asyncio
import ray
import torch
from support.in_flight import copy_of, differences, differences_on_kept_kv, sampled_across_syncs
from support.rollouts import write_batch
from transformers import AutoModelForCausalLM

from trainer.algorithms.config import AlgorithmConfig
from trainer.colocation import learner_turn, replicas_turn
from trainer.learner.config import LearnerConfig
from trainer.learner.group import LearnerGroup
from trainer.placement import find_or_start
from trainer.rollout import Generation, Sampling
from trainer.serving.admission import AdmissionConfig
from trainer.serving.buckets import SharedBuffer
from trainer.serving.config import ServingConfig
from trainer.serving.pool import ReplicaPool
from trainer.serving.replica import ReplicaError
from trainer.serving.sender import ReplicaActors, send_weights

pytestmark = pytest.mark.asyncio(loop_scope="module")
PROMPT = list(range(40, 140))


@pytest.fixture(scope="module", params=["tied", "untied"] if os.environ.get("TESTGRAD_ALL_SYNCS") else ["tied"])
def model_folder(request: pytest.FixtureRequest, models: dict[str, Path]) -> Path:
    """The tied one, with which more can go wrong; TESTGRAD_ALL_SYNCS=1 takes the untied one too."""
    return models[request.param]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def pool(cluster: None, model_folder: Path) -> AsyncIterator[ReplicaPool]:
    # so long do requests wait for a sync whose sender may have died
    config = ServingConfig(dtype="float32", window=512, sync_timeout=5, admission=AdmissionConfig())
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
    return await sync_by(ReplicaActors(pool.actors), named.items(), version)


async def sync_by(target: ReplicaActors, named: Iterable[tuple[str, torch.Tensor]], version: int) -> str:
    # a buffer of two largest tensors, so that layers come in several portions and memory is used again
    named = list(named)
    largest = max(tensor.nbytes for _, tensor in named)
    with closing(SharedBuffer(2 * largest)) as buffer:
        return await asyncio.to_thread(send_weights, named, target, version, buffer)


async def refuses_until_a_whole_sync(pool: ReplicaPool, policy: torch.nn.Module, version: int) -> None:
    assert await pool.versions() == [None]
    with pytest.raises(ReplicaError):
        await pool.require_version(version)
    with pytest.raises(Exception, match="sync again"):
        await pool.generate(PROMPT, Sampling(max_tokens=1), "s")
    await sync(pool, tensors(policy), version)
    assert (await difference(pool, policy))[0] < 1e-4


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


async def test_greedy_log_probs_follow_one_tensor(pool: ReplicaPool, policy: torch.nn.Module) -> None:
    """Every value is compared, not only that of the sampled token: what the engine scores is what the trainer does."""
    perturb(policy, "model.layers.1.mlp.down_proj.weight")
    await sync(pool, tensors(policy), 2)
    ids = torch.tensor([PROMPT])
    with torch.no_grad():
        mine = policy(ids).logits[0, :-1].log_softmax(-1).gather(-1, ids[0, 1:, None])[:, 0]
    theirs = torch.tensor(await pool.actors[0].prompt_logprobs.remote(PROMPT))
    assert (mine - theirs).abs().max() < 1e-4
    answer = await pool.generate(PROMPT, Sampling(temperature=0.0, max_tokens=8), "s")
    with torch.no_grad():
        expected = policy(torch.tensor([PROMPT + list(answer.token_ids)])).logits[0].argmax(-1)
    assert expected[len(PROMPT) - 1 : -1].tolist() == list(answer.token_ids)


@pytest.mark.parametrize("missing", ["lm_head.weight", "model.layers.1.self_attn.k_proj.weight", "model.norm.weight"])
async def test_a_sync_that_lacks_a_tensor_is_caught_and_nothing_is_served(
    pool: ReplicaPool, policy: torch.nn.Module, missing: str
) -> None:
    perturb(policy)
    named = tensors(policy)
    named.pop(missing)
    with pytest.raises(Exception, match=missing):
        await sync(pool, named, 7)
    await refuses_until_a_whole_sync(pool, policy, 8)


class Meddler(ReplicaActors):
    """Changes one byte of a tensor between the learner's writing and the replica's reading."""

    name = "model.layers.0.mlp.up_proj.weight"

    def receive_bucket(self, bucket: dict[str, Any]) -> Callable[[], object]:
        for record in bucket["records"]:
            if record["name"] == self.name:
                with open(bucket["path"], "r+b", buffering=0) as memory:
                    memory.seek(record["offset"] + 1234)
                    byte = memory.read(1)[0]
                    memory.seek(record["offset"] + 1234)
                    memory.write(bytes([byte ^ 4]))
        return super().receive_bucket(bucket)


async def test_one_byte_that_changes_on_the_way_is_caught(pool: ReplicaPool, policy: torch.nn.Module) -> None:
    perturb(policy)
    with pytest.raises(Exception, match=rf"{Meddler.name}: received bytes have another checksum"):
        await sync_by(Meddler(pool.actors), tensors(policy).items(), 9)
    await refuses_until_a_whole_sync(pool, policy, 10)


async def test_a_name_that_comes_twice_is_caught(pool: ReplicaPool, policy: torch.nn.Module) -> None:
    named = tensors(policy)
    again = "model.layers.0.self_attn.q_proj.weight"
    with pytest.raises(Exception, match=f"{again} was sent twice in one sync"):
        await sync_by(ReplicaActors(pool.actors), [*named.items(), (again, named[again])], 11)
    await refuses_until_a_whole_sync(pool, policy, 12)


class Liar(ReplicaActors):
    """Says at the end that other tensors were sent than came through."""

    def finish_sync(self, version: int, sent: dict[str, str]) -> list[str]:
        return super().finish_sync(version, sent | {"model.norm.weight": "float32 [64] 00000000deadbeef"})


async def test_what_was_sent_must_be_what_arrived(pool: ReplicaPool, policy: torch.nn.Module) -> None:
    with pytest.raises(Exception, match=r"model\.norm\.weight: the learner sent float32 \[64\] 00000000deadbeef"):
        await sync_by(Liar(pool.actors), tensors(policy).items(), 13)
    await refuses_until_a_whole_sync(pool, policy, 14)


def sender_that_dies() -> type:
    """A learner that is killed in the middle of a sync; made here, so that an actor need not import this file."""

    class Sender:
        def send(self, named: dict[str, torch.Tensor], replicas: list[Any]) -> None:
            largest = max(tensor.nbytes for tensor in named.values())

            def until_the_end() -> Iterator[tuple[str, torch.Tensor]]:
                for place, item in enumerate(named.items()):
                    if place == len(named) // 2:
                        os.kill(os.getpid(), signal.SIGKILL)
                    yield item

            send_weights(until_the_end(), ReplicaActors(replicas), 15, SharedBuffer(largest))

    return Sender


async def test_a_sender_that_dies_in_the_middle_leaves_nothing_that_is_served(
    pool: ReplicaPool, policy: torch.nn.Module
) -> None:
    perturb(policy)
    sender, _ = find_or_start("sync/sender", sender_that_dies(), threads=1)
    with pytest.raises(ray.exceptions.RayActorError):
        await sender.send.remote(tensors(policy), pool.actors)
    await refuses_until_a_whole_sync(pool, policy, 16)


async def test_a_learner_of_two_ranks_syncs_leaves_its_memory_and_comes_back(
    pool: ReplicaPool, model_folder: Path, tmp_path: Path
) -> None:
    """The turns of learner and replicas on one device. On CPUs vLLM frees nothing, but every call is the real one."""
    batch = write_batch(tmp_path / "batch.parquet")
    config = LearnerConfig(lr=1e-3, dtype="float32", ranks=2, threads=1)
    serving = ServingConfig(dtype="float32", window=512, bucket_mib=1)
    learner = await LearnerGroup.start(f"sync/{model_folder.name}", model_folder, config, AlgorithmConfig())
    try:

        async def send() -> None:
            assert await learner.send_weights(version, pool.actors, serving) == await learner.fingerprint()

        fingerprints = []
        for version in (1, 2):
            record = await learner.update(version, batch, 1.0)
            fingerprints.append(record.fingerprint)
            metrics = await replicas_turn(learner, pool, send)
            assert metrics["memory_gib/learner_offloaded"] > 0
            assert await pool.versions() == [version]
            with pytest.raises(Exception, match="asked to update, but the learner is offloaded"):
                await learner.update(version + 1, batch, 1.0)
            await pool.generate(PROMPT, Sampling(max_tokens=4), "s")
            await learner_turn(learner, pool)
            with pytest.raises(Exception, match="the replica is asleep; wake it before sampling"):
                await pool.generate(PROMPT, Sampling(max_tokens=1), "s")
            assert await learner.fingerprint() == record.fingerprint
        await replicas_turn(learner, pool)
        assert (await pool.generate(PROMPT, Sampling(max_tokens=4, min_tokens=4), "s")).weight_versions == [2] * 4
    finally:
        learner.shutdown()
    stayed = await LearnerGroup.start(f"sync/{model_folder.name}/stayed", model_folder, config, AlgorithmConfig())
    try:
        assert [(await stayed.update(step, batch, 1.0)).fingerprint for step in (1, 2)] == fingerprints
    finally:
        stayed.shutdown()


async def test_a_skipped_sync_is_caught_by_version(pool: ReplicaPool, policy: torch.nn.Module) -> None:
    await sync(pool, tensors(policy), 17)
    with pytest.raises(ReplicaError, match="version"):
        await pool.require_version(18)


async def test_each_token_is_of_the_weights_it_names_however_often_a_sync_froze_its_generation(
    pool: ReplicaPool, policy: torch.nn.Module
) -> None:
    """Twenty syncs while four conversations are sampled, two of which begin alike: no KV of other weights is used."""
    weights, differ, seen = {}, [], []

    async def change() -> None:
        version = 20 + len(weights)
        perturb(policy)
        await sync(pool, tensors(policy), version)
        weights[version] = copy_of(policy)

    await change()
    prompts = [PROMPT, [*PROMPT[:64], *range(40, 80)], PROMPT[:50], list(range(60, 90))]
    finished = await sampled_across_syncs(pool, prompts, 300, change, 20)
    newest = copy_of(policy)
    for prompt, answer in finished:
        assert list(answer.weight_versions) == sorted(answer.weight_versions)
        differ.append(differences(policy, weights, prompt, answer).max().item())
        seen.append(set(answer.weight_versions))
    policy.load_state_dict(newest)
    # a version that was followed at once by the next may have sampled nothing
    assert len(set.union(*seen)) > 12 and max(map(len, seen)) > 2, "generations went on across syncs"
    assert max(differ) < 1e-4


async def test_kept_kv_is_what_older_weights_computed_and_only_frozen_requests_use_it(
    cluster: None, model_folder: Path, policy: torch.nn.Module
) -> None:
    """`kv_after_sync: keep`: new weights on the very keys and values that old ones left, and no other."""
    config = ServingConfig(dtype="float32", window=512, kv_after_sync="keep")
    keeping = await ReplicaPool.start(f"sync/{model_folder.name}/keep", model_folder, config)
    weights: dict[int, dict[str, torch.Tensor]] = {}
    kept, recomputed = [], []

    async def change() -> None:
        version = 1 + len(weights)
        perturb(policy)
        await sync(keeping, tensors(policy), version)
        weights[version] = copy_of(policy)

    try:
        await change()
        # asked for again and again, so that later requests begin like those whose KV is old
        prompts = [PROMPT, list(range(60, 130))]
        finished = await sampled_across_syncs(keeping, prompts, 60, change, 12, begun_in_time=True)
    finally:
        await keeping.shutdown()
    newest = copy_of(policy)
    for prompt, answer in finished:
        kept.append(differences_on_kept_kv(policy, weights, prompt, answer).max().item())
        recomputed.append(differences(policy, weights, prompt, answer).max().item())
    policy.load_state_dict(newest)
    assert finished and max(kept) < 1e-3
    assert max(recomputed) > 0.1, "a generation must have gone on across a sync, or this test shows nothing"


async def test_stop_strings_end_an_answer_with_the_tokens_that_complete_them(pool: ReplicaPool) -> None:
    answer = await pool.generate(PROMPT, Sampling(max_tokens=200, stop=("a", "b", "c", "d", "e", "f")), "s")
    assert answer.finish_reason in ("stop", "length")
    assert len(answer.token_ids) == len(answer.logprobs)


async def test_an_engine_says_how_full_its_cache_is_while_it_works(pool: ReplicaPool) -> None:
    (replica,) = pool.actors
    asked = asyncio.create_task(pool.generate(list(range(1, 100)), Sampling(max_tokens=400, min_tokens=400), "long"))
    async with asyncio.timeout(60):
        while not (usage := await replica.cache_usage.remote()):
            await asyncio.sleep(0.01)
    assert 0 < usage < 1
    await asked
    assert await replica.cache_usage.remote() == 0.0


async def test_a_cancelled_call_stops_the_generation(pool: ReplicaPool) -> None:
    running = asyncio.create_task(pool.generate(PROMPT, Sampling(max_tokens=400, min_tokens=400), "gone"))
    while not (await pool.actors[0].standing.remote()).turns:
        await asyncio.sleep(0.01)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    await pool.require_serving()
