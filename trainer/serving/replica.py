"""One replica: a vLLM engine in a named Ray actor, which serves one weight version at a time."""

import asyncio
import os
import tempfile
from collections.abc import Awaitable, Callable, Sequence
from functools import wraps
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

from trainer.rollout import Generation, Sampling
from trainer.serving.adapters import NUMBER, write_adapters
from trainer.serving.boot import Boot
from trainer.serving.buckets import Manifest
from trainer.serving.cache_gauge import CacheGauge
from trainer.serving.census import Standing
from trainer.serving.config import ServingConfig
from trainer.serving.engine import make_engine
from trainer.serving.errors import ReplicaError, ReplicaLeaving
from trainer.serving.phases import Memory, ReplicaPhase
from trainer.serving.routing import read_routing

P = ParamSpec("P")
T = TypeVar("T")

__all__ = ["INITIAL_VERSION", "Replica", "ReplicaError"]

INITIAL_VERSION = 0
SLEEP_LEVEL = 1
"""Weights wait in host memory, and come back as they were: what wakes up is a version, never an empty shell."""


def _part_of_a_sync(method: Callable[P, Awaitable[T]]) -> Callable[P, Awaitable[T]]:
    """If it raises, requests that wait for the end of the sync need wait no longer."""

    @wraps(method)
    async def run(*args: P.args, **kwargs: P.kwargs) -> T:
        replica = args[0]
        assert isinstance(replica, Replica)
        with replica._phase.failing():
            return await method(*args, **kwargs)

    return run


class Replica:
    """A vLLM engine and the version of the weights that it holds.

    While a sync is under way, and after one that failed, no request is served: an engine with mixed weights would
    sample tokens that no policy version explains. Requests that run when a sync begins are frozen between two tokens,
    and go on under the new weights; those that come meanwhile wait for its end.

    One that is told to leave finishes what is under way, with the weights that it has, and refuses all else.
    """

    def __init__(self, log_file: str | None) -> None:
        self._phase = ReplicaPhase(INITIAL_VERSION)
        self._log_file = log_file
        self._captures = False
        self._adapters: Any = None
        self._keeps_kv = False
        self._patience = 0.0
        self._frozen = 0
        self._running: set[str] = set()
        self._cache = CacheGauge()
        self._booted: Boot | None = None
        self._boot_ended = asyncio.Event()
        self._boot_ended.set()
        self._turns = 0
        self._leaving = False

    async def boot(
        self, model_path: str, config: ServingConfig, extension: str, transport: str, serves: bool = True
    ) -> None:
        """Start the engine on the weights at `model_path`, as version 0; syncs will come by `transport`.

        One that is started in the middle of a run `serves` nothing before a sync: its weights are of long ago.
        """
        self._boot_ended.clear()
        try:
            await self._boot(model_path, config, extension, transport, serves)
        finally:
            self._boot_ended.set()

    async def _boot(self, model_path: str, config: ServingConfig, extension: str, transport: str, serves: bool) -> None:
        self._captures, self._patience = config.capture_routing, config.sync_timeout
        self._keeps_kv = config.kv_after_sync == "keep"
        if not serves:
            self._phase.version = None
        loggers = [self._cache.logger] if config.admission else None
        self._engine = make_engine(model_path, config, extension, transport, self._log_file, loggers)
        await self._engine.update_weight_version(str(INITIAL_VERSION))
        if transport == "shared_memory":
            await self.init_transfer({})
        if self._log_file is not None:
            self._stats = asyncio.create_task(self._log_throughput())
        self._booted = Boot(model_path, config, transport, _gpus(), self._log_file)

    async def generate(self, prompt_ids: Sequence[int], sampling: Sampling, request_id: str) -> Generation:
        """Sample an answer. Cancelling the call aborts the request in the engine.

        Raises:
            ReplicaLeaving: another replica is to be asked.
            ReplicaError: no trustworthy weights are loaded, or the engine returned an incomplete answer.
        """
        if self._leaving:
            raise ReplicaLeaving("this replica leaves, and takes no new turns")
        self._turns += 1
        try:
            return await self._generate(prompt_ids, sampling, request_id)
        finally:
            self._turns -= 1

    async def _generate(self, prompt_ids: Sequence[int], sampling: Sampling, request_id: str) -> Generation:
        from vllm import SamplingParams
        from vllm.sampling_params import RequestOutputKind

        await self._phase.settled(self._patience)
        self._phase.require_serving()
        params = SamplingParams(
            temperature=sampling.temperature,
            top_p=sampling.top_p,
            max_tokens=sampling.max_tokens,
            min_tokens=sampling.min_tokens,
            stop=list(sampling.stop) or None,
            logprobs=0,
            output_kind=RequestOutputKind.FINAL_ONLY,
        )
        final = await self._final_output(prompt_ids, params, request_id)
        if final is None or not final.finished:
            raise ReplicaError(f"{request_id}: the engine ended the request without an answer")
        answer = final.outputs[0]
        token_ids = list(answer.token_ids)
        if answer.logprobs is None or len(answer.logprobs) != len(token_ids):
            raise ReplicaError(f"{request_id}: {len(token_ids)} tokens, but log-probs of {len(answer.logprobs or [])}")
        return Generation(
            token_ids=token_ids,
            # KeyError here means that the engine did not report the sampled token: never take 0.0 for it
            logprobs=[min(entry[token].logprob, 0.0) for token, entry in zip(token_ids, answer.logprobs, strict=True)],
            weight_versions=_spread(answer.weight_versions, len(token_ids)),
            finish_reason=answer.finish_reason if answer.finish_reason in ("stop", "length") else "abort",
            routed_experts=(
                read_routing(answer.routed_experts, len(prompt_ids) + len(token_ids) - 1) if self._captures else None
            ),
        )

    async def prompt_logprobs(self, token_ids: Sequence[int]) -> list[float]:
        """Log-probs [tokens - 1] of each token after the first, at temperature 1, under the loaded weights."""
        from vllm import SamplingParams

        self._phase.require_serving()
        params = SamplingParams(max_tokens=1, temperature=1.0, prompt_logprobs=0)
        final = await self._final_output(token_ids, params, f"score-{os.urandom(8).hex()}")
        assert final is not None and final.prompt_logprobs is not None
        pairs = zip(token_ids[1:], final.prompt_logprobs[1:], strict=True)
        return [entry[token].logprob for token, entry in pairs if entry is not None]

    async def init_transfer(self, info: dict[str, Any]) -> None:
        """Connect the engine to a learner, as its transport says; a connection to an earlier one ends."""
        from vllm.distributed.weight_transfer.base import WeightTransferInitRequest

        await self._engine.collective_rpc("abandon_update")
        await self._engine.shutdown_weight_transfer_engine()
        await self._engine.init_weight_transfer_engine(WeightTransferInitRequest(init_info=info))

    @_part_of_a_sync
    async def start_sync(self) -> None:
        """Freeze running requests, which go on under the new weights, and take no new ones into the engine.

        Raises:
            PhaseError: the replica is asleep.
        """
        if self._phase.start_sync():
            await self._engine.collective_rpc("abandon_update")
        await self._freeze()
        await self._engine.start_weight_update()

    @_part_of_a_sync
    async def receive_bucket(self, bucket: dict[str, Any]) -> None:
        """Load one portion of the weights, or all of them: what the transport hands over at a time."""
        self._phase.require_syncing()
        from vllm.distributed.weight_transfer.base import WeightTransferUpdateRequest

        await self._engine.update_weights(WeightTransferUpdateRequest(update_info=bucket))

    @_part_of_a_sync
    async def finish_sync(self, version: int, sent: Manifest) -> str:
        """Verify that what was loaded is what was `sent`, and serve it as `version`. Returns its fingerprint.

        Raises:
            Exception: from the worker, if names, checksums or computed values differ; the replica then serves nothing.
        """
        self._phase.require_syncing()
        await self._engine.finish_weight_update()
        fingerprints = set(await self._engine.collective_rpc("verified_fingerprint", args=(sent,)))
        if len(fingerprints) != 1:
            raise ReplicaError(f"workers of one replica hold different weights: {fingerprints}")
        # whole weights have those of adapters in them
        self._adapters = None
        await self._serve(version)
        return str(fingerprints.pop())

    @_part_of_a_sync
    async def load_adapters(self, version: int, data: bytes, scaling: float) -> str:
        """A sync of adapters alone, all at once: verify and serve them as `version`. Returns their fingerprint.

        Raises:
            Exception: from the worker, if it does not compute with what was sent; the replica then serves nothing.
        """
        from vllm.lora.request import LoRARequest

        self._phase.start_sync(whole=False)
        await self._freeze()
        with tempfile.TemporaryDirectory(prefix="testgrad-adapters-") as scratch:
            folder = Path(scratch) / "adapters"
            write_adapters(folder, data, scaling)
            await self._engine.add_lora(LoRARequest("policy", NUMBER, str(folder), load_inplace=True))
            fingerprints = set(await self._engine.collective_rpc("verified_adapters", args=(str(folder),)))
            # what requests name is loaded already: they do not look into the folder
            self._adapters = LoRARequest("policy", NUMBER, str(folder))
        if len(fingerprints) != 1:
            raise ReplicaError(f"workers of one replica hold different adapters: {fingerprints}")
        await self._serve(version)
        return str(fingerprints.pop())

    async def frozen(self) -> int:
        """How many requests the last sync froze."""
        return self._frozen

    async def drop_requests(self) -> int:
        """Abort requests whose askers are gone: Ray goes on with what a dead process has called. Returns how many."""
        dropped = set[str]()
        while self._running:
            dropped |= self._running
            # one that is on its way into the engine is not known there yet
            await self._engine.abort(list(self._running))
            await asyncio.sleep(0.05)
        return len(dropped)

    async def sleep(self) -> int:
        """Leave the device to the learner. Returns the bytes of it that are still in use, by whomever.

        Raises:
            PhaseError: requests are running, or a sync is.
        """
        self._phase.sleep()
        await self._engine.sleep(level=SLEEP_LEVEL)
        return await self.memory_used()

    async def wake_weights(self) -> int:
        """Room for the weights again, so that they can be synced. Returns bytes in use, as `sleep` does."""
        with self._phase.wake_weights():
            await self._engine.wake_up(tags=["weights"])
        return await self.memory_used()

    async def wake_cache(self) -> int:
        """Room for the KV cache again, once the learner has left. Returns bytes in use, as `sleep` does."""
        with self._phase.wake_cache():
            await self._engine.wake_up(tags=["kv_cache"])
        return await self.memory_used()

    async def memory(self) -> str:
        """What of the engine is on its device, as a value of `Memory`."""
        return str(self._phase.memory)

    async def memory_used(self) -> int:
        """Bytes in use on the device, or by this process on a CPU."""
        return max(await self._engine.collective_rpc("memory_used"))

    async def version(self) -> int | None:
        """The weight version served, None while there is none to be trusted."""
        version = self._phase.version
        if version is not None and int(await self._engine.get_weight_version()) != version:
            raise ReplicaError(
                f"the engine says version {await self._engine.get_weight_version()}, the replica {version}"
            )
        return version

    async def standing(self) -> Standing:
        """Where this replica stands, once a boot that is under way has ended. Asks nothing of the engine."""
        await self._boot_ended.wait()
        phase = self._phase
        return Standing(self._booted is not None, phase.version, self._turns, self._leaving, phase.syncing)

    async def leave(self) -> int:
        """Take no new turns from now on; those under way are finished. Returns how many those are. Safe to repeat."""
        self._leaving = True
        return self._turns

    async def cache_usage(self) -> float | None:
        """The share of the KV cache that is in use, None if it is not known: nobody measures it without admission."""
        # an engine without work takes no step, and its newest figure is of when it had some
        return self._cache.usage if self._phase.requests else 0.0

    async def probe(self) -> None:
        """Generate one token, which proves more than an open port."""
        await self.generate([1], Sampling(max_tokens=1), f"probe-{os.urandom(8).hex()}")

    async def booted(self) -> Boot:
        """What this replica was started with, once its engine has proven that it lives.

        Raises:
            ReplicaError: its boot has not come to an end.
            Exception: what the engine died of.
        """
        if self._booted is None:
            raise ReplicaError("the boot of this replica was interrupted")
        if self._phase.memory is Memory.AWAKE and self._phase.version is not None and not self._leaving:
            await self.probe()
        else:
            await self.memory_used()
        return self._booted

    async def pid_tree(self) -> list[int]:
        """Process ids of this actor and of the engine's processes."""
        import psutil

        me = psutil.Process()
        return [me.pid, *(child.pid for child in me.children(recursive=True))]

    async def shutdown(self) -> None:
        """Stop the engine and its processes."""
        if self._log_file is not None:
            self._stats.cancel()
        self._engine.shutdown()

    async def _freeze(self) -> None:
        """Stop between two tokens. Requests stay; those whose KV is not kept compute it again when they go on."""
        self._frozen = self._phase.requests
        await self._engine.pause_generation(mode="keep", clear_cache=not self._keeps_kv)

    async def _serve(self, version: int) -> None:
        """End a sync that was verified."""
        await self._engine.update_weight_version(str(version))
        if not self._keeps_kv:
            await self._engine.reset_prefix_cache()
        if self._phase.memory is Memory.AWAKE:
            await self._engine.resume_generation()
        self._phase.finish_sync(version)

    async def _final_output(self, token_ids: Sequence[int], params: Any, request_id: str) -> Any:
        """The engine's last word on a request, None if it said nothing."""
        final = None
        self._phase.requests += 1
        self._running.add(request_id)
        try:
            prompt: dict[str, Any] = {"prompt_token_ids": list(token_ids)}
            if self._keeps_kv:
                # of what older weights computed, only the requests that were frozen go on with their own
                prompt["cache_salt"] = f"version-{self._phase.version}"
            adapters = {} if self._adapters is None else {"lora_request": self._adapters}
            async for output in self._engine.generate(prompt, params, request_id=request_id, **adapters):
                final = output
        finally:
            self._running.discard(request_id)
            self._phase.requests -= 1
        return final

    async def _log_throughput(self) -> None:
        while True:
            await asyncio.sleep(10)
            await self._engine.do_log_stats()


def _gpus() -> int:
    """GPUs that Ray has given to this actor."""
    import ray

    return len(ray.get_gpu_ids()) if ray.is_initialized() else 0


def _spread(spans: Any, tokens: int) -> list[int]:
    """Weight versions [tokens] from vLLM's contiguous spans over output tokens."""
    versions = [-1] * tokens
    for span in spans or ():
        for i in range(span.start, span.end):
            versions[i] = int(span.version)
    return versions
