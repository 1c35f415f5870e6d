"""All replicas as one policy: sessions stick to a replica, and replicas carry about equally many.

Replicas have numbers from 0. They may join and leave while trials run: which ones there are the cluster says by their
names, and whether one serves or leaves it says itself.
"""

import asyncio
import logging
import os
import time
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from trainer.nodes import ROLLOUT
from trainer.placement import cpu_threads, find_numbered, find_or_start, on_node
from trainer.rollout import Generation, Sampling
from trainer.serving.admission import Admission, AdmissionConfig
from trainer.serving.boot import Boot
from trainer.serving.census import LOOK_SECONDS, PROBE_SECONDS, Standing, standings_of
from trainer.serving.config import ServingConfig
from trainer.serving.errors import ReplicaLeaving
from trainer.serving.joining import find_or_place
from trainer.serving.phases import Memory
from trainer.serving.replica import Replica, ReplicaError
from trainer.serving.routing import require_capture
from trainer.serving.seats import Seats
from trainer.serving.transports import transport_of

SHUTDOWN_SECONDS = 60.0
"""How long an engine may take to end in order; one that boots, or waits for room, is killed then."""
CALLS = 100_000
"""Calls that a replica takes at once. Requests wait in it, and must not keep a sync or a question out."""
EXTENSION = "trainer.serving.extension.WorkerExtension"

_log = logging.getLogger(__name__)


class ReplicaPool:
    """The replicas of one run. Implements `trainer.rollout.Policy`."""

    def __init__(
        self,
        actors: Mapping[int, Any],
        run_name: str | None = None,
        admission: AdmissionConfig | None = None,
    ) -> None:
        self._seats = Seats(actors, run_name)
        self._admission = Admission(admission, _cache_usage) if admission else None
        self._requests = 0

    @property
    def actors(self) -> list[Any]:
        """The replicas that are there."""
        return self._seats.actors

    @classmethod
    async def start(
        cls,
        run_name: str,
        model: Path,
        config: ServingConfig,
        gpus: int = 0,
        log_file: Path | None = None,
        devices: Sequence[tuple[str, str]] = (),
        wanted: int | None = None,
    ) -> "ReplicaPool":
        """Boot the replicas as actors `<run_name>/replica/<i>`, or find those that are up.

        Args:
            gpus: GPUs of a device that a replica is sharded over; 0 for CPUs.
            devices: Node and visible GPUs for each replica that is to share them with a learner's rank, which Ray has
                given them to.
            wanted: How many there are to be, if not as many as `config` says. Those beyond it are left out if the
                cluster has no room for them.
        """
        require_capture(config, bool(gpus))
        _require_eager(config, bool(gpus))
        own = 0 if devices else gpus * config.tensor_parallel
        boot = Boot(str(model), config, transport_of(config, bool(gpus)), own, str(log_file) if log_file else None)
        wanted = config.replicas if wanted is None else wanted
        started = {
            number: _find_or_start(run_name, number, boot, devices[number] if devices else None)
            for number in range(min(wanted, config.replicas))
        }
        more = partial(_find_or_start, run_name, boot=boot)
        beyond = range(config.replicas, wanted)
        started |= await find_or_place(beyond, more, own, find_numbered(f"{run_name}/replica") if beyond else ())
        await asyncio.gather(*(_boot(actor, boot) for actor, is_new in started.values() if is_new))
        return cls({number: actor for number, (actor, _) in started.items()}, run_name)

    @classmethod
    async def start_again(cls, run_name: str, boot: Boot, numbers: Iterable[int]) -> list[int]:
        """Boot replicas beside those that serve. They serve nothing before a sync.

        Returns the numbers of those that were booted: for the others the cluster has no room.
        """
        more = partial(_find_or_start, run_name, boot=boot)
        placed = await find_or_place(numbers, more, boot.gpus)
        await asyncio.gather(*(_boot(actor, boot, serves=False) for actor, is_new in placed.values() if is_new))
        return list(placed)

    @classmethod
    def attach(cls, run_name: str) -> "ReplicaPool":
        """All replicas of a run that has been started, also those that leave.

        Raises:
            ReplicaError: there are none.
        """
        found = find_numbered(f"{run_name}/replica")
        if not found:
            raise ReplicaError(f"no replica of {run_name} is alive; start the run again, it goes on where it stopped")
        return cls(found, run_name)

    @classmethod
    async def attach_staying(cls, run_name: str) -> "ReplicaPool":
        """Those that weights are to reach: not one that leaves, nor one whose boot failed. Waits for boots to end.

        One that leaves is among them if it stands in the middle of a sync that failed: its turns are frozen until the
        next.

        Raises:
            ReplicaError: there are none.
        """
        found = find_numbered(f"{run_name}/replica")
        told = await standings_of(found, None)
        staying = {number: found[number] for number, standing in told.items() if _needs_weights(standing)}
        if not staying:
            raise ReplicaError(f"no replica of {run_name} is alive; start the run again, it goes on where it stopped")
        return cls(staying, run_name)

    @classmethod
    async def attach_serving(cls, run_name: str, admission: AdmissionConfig | None = None) -> "ReplicaPool":
        """Those of a run that serve; others get sessions once they do as well.

        Raises:
            ReplicaError: none is alive, or none serves.
        """
        pool = cls({}, run_name, admission)
        await pool._seats.look()
        if not pool.actors:
            raise ReplicaError(f"no replica of {run_name} serves: they died, or a sync failed")
        return pool

    async def generate(self, prompt_ids: Sequence[int], sampling: Sampling, session_id: str) -> Generation:
        """Sample an answer on the session's replica; cancelling the call stops the generation.

        A session whose replica has died, or leaves, goes on with another: what it has been told is all in `prompt_ids`.

        Raises:
            ReplicaError: no replica is left.
        """
        from ray.exceptions import RayActorError

        while True:
            actor = await self._seats.home_of(session_id)
            try:
                return await self._sample(actor, prompt_ids, sampling, session_id)
            except RayActorError as death:
                _log.warning("session %s goes on elsewhere, its replica died: %s", session_id, _first_line(death))
                self._seats.lose(actor)
            except ReplicaLeaving as leaving:
                _log.info("session %s goes on elsewhere: %s", session_id, _first_line(leaving))
                self._seats.lose(actor)

    async def _sample(self, actor: Any, prompt_ids: Sequence[int], sampling: Sampling, session_id: str) -> Generation:
        import ray

        if self._admission is not None:
            await self._admission.admit(actor, session_id, len(prompt_ids))
        self._requests += 1
        started, tokens = time.monotonic(), 0
        reference = actor.generate.remote(prompt_ids, sampling, f"{session_id}-{os.getpid()}-{self._requests}")
        try:
            generation: Generation = await reference
            tokens = len(generation.token_ids)
        except asyncio.CancelledError:
            ray.cancel(reference)
            raise
        finally:
            self._seats.answered(actor, tokens, time.monotonic() - started)
            if self._admission is not None:
                self._admission.answered(actor, session_id, len(prompt_ids) + tokens)
        return generation

    def release(self, session_id: str) -> None:
        """Forget a session, so that its replica counts as less loaded."""
        self._seats.release(session_id)
        if self._admission is not None:
            self._admission.release(session_id)

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
        """A dead engine may still say its version: those that answer no one-token probe get no more sessions.

        Raises:
            ReplicaError: one has no version to serve, as after a sync that failed.
            Exception: what the first of them died of, if none answers.
        """
        actors = self.actors
        probes = await asyncio.gather(*map(_probe, actors), return_exceptions=True)
        errors = [(actor, error) for actor, error in zip(actors, probes, strict=True) if error is not None]
        if len(errors) == len(actors):
            # where all are late they have too much to do: a probe waits behind all that was asked before
            errors = [(actor, error) for actor, error in errors if not isinstance(error, TimeoutError)]
        for actor, _ in errors:
            self._seats.lose(actor)
        if not self.actors and any(isinstance(error, ReplicaLeaving) for _, error in errors):
            await self._seats.look()
        if not self.actors:
            raise next((error for _, error in errors), ReplicaError("no replica is left"))
        versions = await self.versions()
        if None in versions:
            # a sync may have begun after the probes: further ones wait until it is over
            await asyncio.gather(*map(_probe, self.actors), return_exceptions=True)
            versions = await self.versions()
        if None in versions:
            raise ReplicaError(f"replicas serve weight versions {versions}: a sync failed")

    async def drop_requests(self) -> None:
        """Abort what is running, where nobody waits for it any more."""
        await asyncio.gather(*(actor.drop_requests.remote() for actor in self.actors))

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

        actors = self.actors
        shutdowns = [asyncio.wait_for(actor.shutdown.remote(), SHUTDOWN_SECONDS) for actor in actors]
        await asyncio.gather(*shutdowns, return_exceptions=True)
        for actor in actors:
            ray.kill(actor)


def _find_or_start(run_name: str, number: int, boot: Boot, device: tuple[str, str] | None = None) -> tuple[Any, bool]:
    """The actor of a replica, on the node and GPUs of `device` if given, and whether it had to be started."""
    return find_or_start(
        f"{run_name}/replica/{number}",
        Replica,
        boot.log_file,
        threads=boot.config.threads or cpu_threads(),
        gpus=boot.gpus,
        # as many nodes as there are, so that one that is lost takes few replicas along
        place=on_node(device[0]) if device else "SPREAD",
        role=None if device else ROLLOUT,
        at_once=CALLS,
        VLLM_CPU_KVCACHE_SPACE=str(boot.config.kv_cache_gib),
        **({"CUDA_VISIBLE_DEVICES": device[1]} if device else {}),
        # on CPUs vLLM refuses one process unless told so here
        VLLM_ENABLE_V1_MULTIPROCESSING="0",
        # the only model runner of vLLM's that tells which experts it chose
        **({"VLLM_USE_V2_MODEL_RUNNER": "1"} if boot.config.capture_routing else {}),
    )


async def _boot(actor: Any, boot: Boot, serves: bool = True) -> None:
    await actor.boot.remote(boot.model, boot.config, EXTENSION, boot.transport, serves)


def _needs_weights(standing: Standing | Exception) -> bool:
    from ray.exceptions import RayActorError

    if isinstance(standing, Exception):
        # one that has died since need not be reached; whatever else is wrong with one must come out
        return not isinstance(standing, RayActorError)
    return standing.up and (standing.syncing or not standing.leaving)


def _first_line(error: Exception) -> str:
    return str(error).partition("\n")[0]


async def _cache_usage(actor: Any) -> float | None:
    """How full a replica is; one that does not say so in time keeps nobody waiting."""
    try:
        usage: float | None = await asyncio.wait_for(actor.cache_usage.remote(), LOOK_SECONDS)
    except Exception:
        return None
    return usage


async def _probe(actor: Any) -> None:
    await asyncio.wait_for(actor.probe.remote(), PROBE_SECONDS)


def _require_eager(config: ServingConfig, gpus: bool) -> None:
    """Raises ReplicaError where a sync would not reach what the engine computes with."""
    if not config.enforce_eager and not gpus:
        raise ReplicaError(
            "serving.enforce_eager is false, but on CPUs a compiled engine keeps hold of the packed weights it was "
            "compiled with, whatever is synced; set serving.enforce_eager: true"
        )
