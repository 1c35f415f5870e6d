"""All replicas as one policy: sessions stick to a replica, and replicas carry about equally many."""

import asyncio
import os
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from trainer.placement import cpu_threads, find_all, find_or_start, on_node
from trainer.rollout import Generation, Sampling
from trainer.serving.config import ServingConfig
from trainer.serving.phases import Memory
from trainer.serving.replica import Replica, ReplicaError
from trainer.serving.routing import require_capture
from trainer.serving.transports import transport_of

PROBE_SECONDS = 120.0
EXTENSION = "trainer.serving.extension.WorkerExtension"


class ReplicaPool:
    """The replicas of one run. Implements `trainer.rollout.Policy`."""

    def __init__(self, actors: Sequence[Any]) -> None:
        self.actors = list(actors)
        self._home: dict[str, int] = {}
        self._load: Counter[int] = Counter()
        self._requests = 0

    @classmethod
    async def start(
        cls,
        run_name: str,
        model: Path,
        config: ServingConfig,
        gpus: int = 0,
        log_file: Path | None = None,
        devices: Sequence[tuple[str, str]] = (),
    ) -> "ReplicaPool":
        """Boot the replicas as actors `<run_name>/replica/<i>`, or find those that are up.

        Args:
            gpus: GPUs of a device that a replica is sharded over; 0 for CPUs.
            devices: Node and visible GPUs for each replica that is to share them with a learner's rank, which Ray has
                given them to.
        """
        require_capture(config, bool(gpus))
        _require_eager(config, bool(gpus))
        actors, boots = [], []
        for i in range(config.replicas):
            actor, is_new = find_or_start(
                f"{run_name}/replica/{i}",
                Replica,
                str(log_file) if log_file else None,
                threads=config.threads or cpu_threads(),
                gpus=0 if devices else gpus * config.tensor_parallel,
                place=on_node(devices[i][0]) if devices else None,
                VLLM_CPU_KVCACHE_SPACE=str(config.kv_cache_gib),
                **({"CUDA_VISIBLE_DEVICES": devices[i][1]} if devices else {}),
                # on CPUs vLLM refuses one process unless told so here
                VLLM_ENABLE_V1_MULTIPROCESSING="0",
                # the only model runner of vLLM's that tells which experts it chose
                **({"VLLM_USE_V2_MODEL_RUNNER": "1"} if config.capture_routing else {}),
            )
            actors.append(actor)
            if is_new:
                boots.append(actor.boot.remote(str(model), config, EXTENSION, transport_of(config, bool(gpus))))
        await asyncio.gather(*boots)
        return cls(actors)

    @classmethod
    def attach(cls, run_name: str) -> "ReplicaPool":
        """The replicas of a run that has been started.

        Raises:
            ReplicaError: there are none.
        """
        actors = find_all(f"{run_name}/replica")
        if not actors:
            raise ReplicaError(f"no replica of {run_name} is alive; start the run again, it goes on where it stopped")
        return cls(actors)

    async def generate(self, prompt_ids: Sequence[int], sampling: Sampling, session_id: str) -> Generation:
        """Sample an answer on the session's replica; cancelling the call stops the generation."""
        import ray

        home = self._home.get(session_id)
        if home is None:
            home = min(range(len(self.actors)), key=lambda i: self._load[i])
            self._home[session_id] = home
            self._load[home] += 1
        self._requests += 1
        reference = self.actors[home].generate.remote(
            prompt_ids, sampling, f"{session_id}-{os.getpid()}-{self._requests}"
        )
        try:
            generation: Generation = await reference
        except asyncio.CancelledError:
            ray.cancel(reference)
            raise
        return generation

    def release(self, session_id: str) -> None:
        """Forget a session, so that its replica counts as less loaded."""
        home = self._home.pop(session_id, None)
        if home is not None:
            self._load[home] -= 1

    async def versions(self) -> list[int | None]:
        """The weight version of each replica, None for one that serves nothing."""
        return list(await asyncio.gather(*(actor.version.remote() for actor in self.actors)))

    async def require_version(self, version: int) -> None:
        """Raises ReplicaError unless all replicas serve `version`."""
        versions = await self.versions()
        if any(have != version for have in versions):
            raise ReplicaError(
                f"replicas serve weight versions {versions}, the run is at {version}: a sync was skipped or failed"
            )

    async def require_serving(self) -> None:
        """Raises an error unless every replica answers a one-token probe: a dead engine may still say its version."""
        versions = await self.versions()
        if None in versions:
            raise ReplicaError(f"replicas serve weight versions {versions}: a sync failed")
        await asyncio.wait_for(asyncio.gather(*(actor.probe.remote() for actor in self.actors)), PROBE_SECONDS)

    async def frozen(self) -> int:
        """Requests that the last sync froze, which then went on."""
        return sum(await asyncio.gather(*(actor.frozen.remote() for actor in self.actors)))

    async def memories(self) -> list[Memory]:
        """What of each replica is on its device."""
        return [Memory(value) for value in await asyncio.gather(*(actor.memory.remote() for actor in self.actors))]

    async def memory_used(self) -> int:
        """Bytes in use on the fullest device of a replica, by whomever."""
        return await self._most("memory_used")

    async def sleep(self) -> int:
        """All leave their devices; see `Replica.sleep`. Returns what `memory_used` does."""
        return await self._most("sleep")

    async def wake_weights(self) -> int:
        """All take room for weights; see `Replica.wake_weights`. Returns what `memory_used` does."""
        return await self._most("wake_weights")

    async def wake_cache(self) -> int:
        """All take room for their KV cache; see `Replica.wake_cache`. Returns what `memory_used` does."""
        return await self._most("wake_cache")

    async def _most(self, method: str) -> int:
        return max(await asyncio.gather(*(getattr(actor, method).remote() for actor in self.actors)))

    async def shutdown(self) -> None:
        """Stop engines and actors; safe when some are dead already."""
        import ray

        await asyncio.gather(*(actor.shutdown.remote() for actor in self.actors), return_exceptions=True)
        for actor in self.actors:
            ray.kill(actor)


def _require_eager(config: ServingConfig, gpus: bool) -> None:
    """Raises ReplicaError where a sync would not reach what the engine computes with."""
    if not config.enforce_eager and not gpus:
        raise ReplicaError(
            "serving.enforce_eager is false, but on CPUs a compiled engine keeps hold of the packed weights it was "
            "compiled with, whatever is synced; set serving.enforce_eager: true"
        )
