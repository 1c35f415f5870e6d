"""In which order a replica may do things: a small state machine, asked before each of them.

A replica that takes turns with a learner on one GPU goes round: it serves, sleeps while the learner works, wakes its
weights, is synced, and once the learner has left the GPU wakes its KV cache and serves again. One that has a GPU of its
own only serves and is synced.
"""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from enum import StrEnum

from trainer.serving.errors import PhaseError


class Memory(StrEnum):
    """What of the engine is on its device."""

    AWAKE = "awake"
    WEIGHTS = "awake, but for its KV cache"
    ASLEEP = "asleep"


@dataclass
class ReplicaPhase:
    """Where a replica stands. `version` is None while it has no weights to be trusted."""

    version: int | None
    memory: Memory = Memory.AWAKE
    syncing: bool = False
    requests: int = 0
    mixed: bool = False
    """Whether some of the whole weights are of a sync that was not verified."""
    failed: bool = False
    """Whether the sync that is under way has failed, so that only another one leads on."""
    _settled: asyncio.Event = field(default_factory=asyncio.Event, compare=False, repr=False)

    async def settled(self, patience: float) -> None:
        """Wait while a sync is under way that may yet succeed, but no longer than `patience` seconds."""
        if not self.syncing or self.failed:
            return
        with suppress(TimeoutError):
            await asyncio.wait_for(self._settled.wait(), patience)

    def require_serving(self) -> None:
        """Raises PhaseError unless requests can be answered."""
        if self.memory is not Memory.AWAKE:
            raise PhaseError(f"the replica is {self.memory}; wake it before sampling")
        if self.version is None:
            raise PhaseError("the last weight sync did not complete; sync again before sampling")

    def sleep(self) -> None:
        """Give up the device; the weights go to host memory and come back."""
        if self.memory is not Memory.AWAKE:
            raise PhaseError(f"asked to sleep, but the replica is {self.memory} already")
        if self.syncing:
            raise PhaseError("asked to sleep in the middle of a weight sync; finish or repeat the sync first")
        if self.requests:
            raise PhaseError(f"asked to sleep with {self.requests} requests running; end them first")
        self.memory = Memory.ASLEEP

    @contextmanager
    def wake_weights(self) -> Iterator[None]:
        """Take room for the weights, which the block does, so that they can be synced."""
        if self.memory is not Memory.ASLEEP:
            raise PhaseError(f"asked to wake its weights, but the replica is {self.memory}")
        yield
        # only now: where there was no room, weights that came would be written to nowhere
        self.memory = Memory.WEIGHTS

    @contextmanager
    def wake_cache(self) -> Iterator[None]:
        """Take room for the KV cache as well, which the block does."""
        if self.memory is not Memory.WEIGHTS:
            raise PhaseError(f"asked to wake its KV cache, but the replica is {self.memory}; its weights come first")
        if self.syncing:
            raise PhaseError("asked to wake its KV cache in the middle of a weight sync; the learner is still there")
        yield
        self.memory = Memory.AWAKE

    def start_sync(self, whole: bool = True) -> bool:
        """From now on nothing is served until `finish_sync`. Returns whether an earlier sync was never finished.

        `whole`: all weights will come, not only adapters, which mend nothing.
        """
        if self.memory is Memory.ASLEEP:
            raise PhaseError("asked to sync weights, but the replica is asleep; wake its weights first")
        if self.mixed and not whole:
            raise PhaseError("asked to sync adapters, but a sync of whole weights did not complete; repeat that first")
        self.mixed = whole
        unfinished, self.syncing, self.version, self.failed = self.syncing, True, None, False
        self._settled.clear()
        return unfinished

    @contextmanager
    def failing(self) -> Iterator[None]:
        """A part of a sync: if it raises, those who wait for the sync need wait no longer."""
        try:
            yield
        except BaseException:
            self.failed = True
            self._settled.set()
            raise

    def require_syncing(self) -> None:
        """Raises PhaseError unless weights are expected."""
        if not self.syncing:
            raise PhaseError("weights arrived outside of a sync; start one first")

    def finish_sync(self, version: int) -> None:
        """The weights are verified to be those of `version`."""
        self.require_syncing()
        self.syncing, self.mixed, self.version = False, False, version
        self._settled.set()
