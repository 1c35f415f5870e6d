"""All ranks of a learner as one: started together, called together."""

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float

from trainer.algorithms.config import AlgorithmConfig
from trainer.learner.config import LearnerConfig
from trainer.learner.rank import LearnerError, LearnerRank, UpdateRecord
from trainer.placement import cpu_threads, find_all, find_or_start


class LearnerGroup:
    """The learner of one run: actors `<run_name>/learner/<rank>`."""

    def __init__(self, actors: Sequence[Any]) -> None:
        self.actors = list(actors)

    @classmethod
    async def start(
        cls, run_name: str, model: Path, config: LearnerConfig, algorithm: AlgorithmConfig, plugins: Sequence[str] = ()
    ) -> "LearnerGroup":
        """Boot the ranks, or find those that are up.

        Raises:
            LearnerError: only some of the ranks are alive.
        """
        threads = config.threads or max(cpu_threads() // config.ranks, 1)
        found = [
            find_or_start(
                f"{run_name}/learner/{rank}", LearnerRank, rank, config, algorithm, list(plugins),
                threads=threads, gpus=config.gpus_per_rank,
            )
            for rank in range(config.ranks)
        ]  # fmt: skip
        group = cls([actor for actor, _ in found])
        new = [is_new for _, is_new in found]
        if all(new):
            address, port = await group.actors[0].open_store.remote(await group.actors[0].address.remote())
            await group._all("boot", str(model), address, port)
        elif any(new):
            raise LearnerError(
                f"{run_name}: {new.count(False)} of {config.ranks} ranks were alive; stop the run and start it again"
            )
        return group

    @classmethod
    def attach(cls, run_name: str) -> "LearnerGroup":
        """The learner of a run that has been started.

        Raises:
            LearnerError: there is none.
        """
        actors = find_all(f"{run_name}/learner")
        if not actors:
            raise LearnerError(f"no learner of {run_name} is alive; start the run again, it goes on where it stopped")
        return cls(actors)

    async def update(self, step: int, batch: Path, temperature: float) -> UpdateRecord:
        """Apply update `step`; see `LearnerRank.update`."""
        records: list[UpdateRecord] = await self._all("update", step, str(batch), temperature)
        if len({record.fingerprint for record in records}) != 1:
            raise LearnerError(
                f"after update {step} the ranks disagree on the weights: {[r.fingerprint[:12] for r in records]}"
            )
        return records[0]

    async def send_weights(self, version: int, replicas: Sequence[Any], dtype: str, bucket_bytes: int) -> str:
        """Sync `replicas` to the present weights as `version`. Returns the fingerprint that they confirmed."""
        results = await self._all("send_weights", version, list(replicas), dtype, bucket_bytes)
        return str(results[0])

    async def score(
        self, batch: Path, columns: Sequence[str], temperature: float, updates: int
    ) -> dict[str, Float[np.ndarray, " N"]]:
        """See `LearnerRank.score`."""
        results: list[dict[str, np.ndarray]] = await self._all("score", str(batch), list(columns), temperature, updates)
        return results[0]

    async def save(self, root: Path) -> Path:
        """Write a checkpoint under `root`."""
        return Path((await self._all("save", str(root)))[0])

    async def load(self, checkpoint: Path) -> int:
        """Restore a checkpoint. Returns the number of updates it holds."""
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

    async def fingerprint(self) -> str:
        """Digest of the present weights."""
        return str((await self._all("fingerprint"))[0])

    def shutdown(self) -> None:
        """Stop the ranks; safe when some are dead already."""
        import ray

        for actor in self.actors:
            ray.kill(actor)

    async def _all(self, method: str, *args: Any) -> list[Any]:
        # gather raises as soon as one rank does: its peers are waiting in a collective and would only time out
        return list(await asyncio.gather(*(getattr(actor, method).remote(*args) for actor in self.actors)))
