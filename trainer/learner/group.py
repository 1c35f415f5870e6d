"""All ranks of a learner as one: started together, called together."""

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float

from trainer.algorithms.config import AlgorithmConfig
from trainer.learner.bundles import place_of, release, reserve
from trainer.learner.calls import RankFailure, answers
from trainer.learner.checkpoint import CheckpointError
from trainer.learner.config import LearnerConfig
from trainer.learner.errors import LearnerError, RendezvousError
from trainer.learner.rank import LearnerRank, UpdateRecord
from trainer.placement import cpu_threads, find_all, find_or_start
from trainer.serving.config import ServingConfig

_TRIES = 3
"""How often ranks try to meet."""


class LearnerGroup:
    """The learner of one run: actors `<run_name>/learner/<rank>`, in the placement group `<run_name>/learner`.

    A rank that dies takes the others with it: none can go on without it, and a new start finds no remains. What fails
    on all ranks alike leaves them as they are.
    """

    def __init__(self, run_name: str, actors: Sequence[Any]) -> None:
        self.run_name, self.actors = run_name, list(actors)

    @classmethod
    async def start(
        cls, run_name: str, model: Path, config: LearnerConfig, algorithm: AlgorithmConfig, plugins: Sequence[str] = ()
    ) -> "LearnerGroup":
        """Boot the ranks, or find those that are up.

        Raises:
            LearnerError: only some of the ranks are alive, the cluster has no room for them, or one fails to boot.
        """
        threads = config.threads or max(cpu_threads() // config.ranks_per_node, 1)
        bundles = await asyncio.to_thread(reserve, _bundles(run_name), config)
        # else DeepSpeed would take the GPUs of a machine for ranks that were meant to do without
        hidden: dict[str, Any] = {} if config.gpus_per_rank else {"CUDA_VISIBLE_DEVICES": ""}
        found = [
            find_or_start(
                f"{run_name}/learner/{rank}", LearnerRank, rank, config, algorithm, list(plugins),
                threads=threads, gpus=config.gpus_per_rank, place=place_of(bundles, rank, config), **hidden,
            )
            for rank in range(config.ranks)
        ]  # fmt: skip
        group = cls(run_name, [actor for actor, _ in found])
        new = [is_new for _, is_new in found]
        if all(new):
            try:
                await group._meet()
                await group._all("boot", str(model))
            except LearnerError:
                group.shutdown()
                raise
        else:
            alive = new.count(False) if any(new) else len(find_all(f"{run_name}/learner"))
            if alive != config.ranks:
                raise LearnerError(
                    f"{run_name}: {alive} ranks were alive, learner.ranks is {config.ranks}; "
                    "stop the run and start it again"
                )
        return group

    async def _meet(self) -> None:
        """Bring the ranks together, on a fresh store and port each time that they miss each other."""
        for left in reversed(range(_TRIES)):
            (address,) = await self._answers("boot", [self.actors[0].address.remote()])
            ((address, port),) = await self._answers("boot", [self.actors[0].open_store.remote(address)])
            try:
                await self._all("meet", address, port)
                return
            except RankFailure as failure:
                if not left or failure.group_is_lost or not isinstance(failure.cause, RendezvousError):
                    raise

    @classmethod
    def attach(cls, run_name: str) -> "LearnerGroup":
        """The learner of a run that has been started.

        Raises:
            LearnerError: there is none.
        """
        actors = find_all(f"{run_name}/learner")
        if not actors:
            raise LearnerError(f"no learner of {run_name} is alive; start the run again, it goes on where it stopped")
        return cls(run_name, actors)

    async def update(
        self,
        step: int,
        batch: Path,
        temperature: float,
        lr_total_steps: int | None = None,
        fresh: int | None = None,
    ) -> UpdateRecord:
        """Apply update `step`; see `LearnerRank.update`."""
        records: list[UpdateRecord] = await self._all("update", step, str(batch), temperature, lr_total_steps, fresh)
        if len({(record.fingerprint, record.adapters) for record in records}) != 1:
            raise LearnerError(
                f"after update {step} the ranks disagree on the weights: {[r.fingerprint[:12] for r in records]}"
            )
        return records[0]

    async def send_weights(self, version: int, replicas: Sequence[Any], serving: ServingConfig) -> str:
        """Sync `replicas` to the present weights as `version`. Returns the fingerprint that they confirmed."""
        results = await self._all("send_weights", version, list(replicas), serving)
        return str(results[0])

    async def score(
        self, batch: Path, columns: Sequence[str], temperature: float, updates: int
    ) -> dict[str, Float[np.ndarray, " N"]]:
        """See `LearnerRank.score`."""
        results: list[dict[str, np.ndarray]] = await self._all("score", str(batch), list(columns), temperature, updates)
        return results[0]

    async def save(
        self, root: Path, step: int, notes: Mapping[str, str] | None = None, asked: asyncio.Event | None = None
    ) -> Path:
        """Write a checkpoint of the weights after update `step` under `root`; `notes` are kept with it.

        `asked` is set once the ranks have been asked: what they are asked from then on they do afterwards.

        Raises:
            CheckpointError: it cannot be written; the learner is as it was.
        """
        calls = [actor.save.remote(str(root), step, dict(notes or {})) for actor in self.actors]
        if asked is not None:
            asked.set()
        with _checkpoint_errors():
            return Path((await self._answers("save", calls))[0])

    async def load(self, checkpoint: Path) -> int:
        """Restore a checkpoint. Returns the number of updates it holds.

        Raises:
            CheckpointError: it is damaged.
        """
        with _checkpoint_errors():
            return int((await self._all("load", str(checkpoint)))[0])

    async def updates(self) -> int:
        """Number of updates applied.

        Raises:
            LearnerError: ranks disagree.
        """
        states = await self._all("state")
        if len(set(states)) != 1:
            raise LearnerError(f"ranks have applied different numbers of updates: {states}")
        return int(states[0])

    async def resident(self) -> bool:
        """Whether weights and optimizer are on the ranks' devices.

        Raises:
            LearnerError: on some of them only.
        """
        states = set(await self._all("resident"))
        if len(states) != 1:
            raise LearnerError("some ranks are offloaded and some are not; stop the run and start it again")
        return bool(states.pop())

    async def trim(self) -> None:
        """Keep no more of the devices than is in use."""
        await self._all("trim")

    async def offload(self) -> int:
        """Leave the devices to replicas; see `LearnerRank.offload`. Returns the most of any device."""
        return max(await self._all("offload"))

    async def reload(self) -> int:
        """Come back; see `LearnerRank.reload`. Returns the most of any device."""
        return max(await self._all("reload"))

    async def devices(self) -> list[tuple[str, str]]:
        """Node and visible GPUs of each rank."""
        return await self._all("device")

    async def fingerprint(self) -> str:
        """Digest of the present weights."""
        return str((await self._all("fingerprint"))[0])

    def shutdown(self) -> None:
        """Stop the ranks and give their place back; safe when some are dead already."""
        import ray

        for actor in self.actors:
            ray.kill(actor)
        release(_bundles(self.run_name))

    async def _all(self, method: str, *args: Any) -> list[Any]:
        return await self._answers(method, [getattr(actor, method).remote(*args) for actor in self.actors])

    async def _answers(self, method: str, calls: Sequence[Any]) -> list[Any]:
        """What all ranks return from `method`, which has been called.

        Raises:
            RankFailure: one failed; see `answers`.
        """
        try:
            return await answers(calls, method)
        except RankFailure as failure:
            if failure.group_is_lost:
                self.shutdown()
            raise


@contextmanager
def _checkpoint_errors() -> Iterator[None]:
    """What all ranks say of a checkpoint is no failure of theirs, and no other try mends it."""
    try:
        yield
    except RankFailure as failure:
        cause = getattr(failure.cause, "cause", None) or failure.cause
        if isinstance(cause, CheckpointError) and not failure.group_is_lost:
            raise cause from None
        raise


def _bundles(run_name: str) -> str:
    return f"{run_name}/learner"
