"""Which sessions may ask a replica whose KV cache is nearly full: those that cost it little, the others later.

When the cache overflows the engine preempts sequences and computes them again, which costs everybody more than a short
wait costs one. A session that was let in keeps its place between its turns for a while: what it left in the cache is
what its next turn needs.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any

from pydantic import BaseModel, ConfigDict, Field


class AdmissionConfig(BaseModel):
    """When requests wait before a replica."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    high_water: float = Field(
        0.85, gt=0, le=1, description="Share of a replica's KV cache in use below which everybody is let in"
    )
    prefix_hit: float = Field(
        0.8, ge=0, le=1, description="Share of a prompt that its session has left in the cache, from which it is let in"
    )
    look_seconds: float = Field(5.0, gt=0, description="Seconds until a request that waits is looked at again")
    lease_seconds: float = Field(
        60.0, ge=0, description="Seconds after an answer for which a session that was let in keeps its place"
    )


class Admission:
    """The door of one process to all replicas.

    Args:
        usage: The share of a replica's KV cache that is in use; None if it does not say.
    """

    def __init__(
        self,
        config: AdmissionConfig,
        usage: Callable[[Any], Awaitable[float | None]],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.waits = 0
        """How often a request was sent back to wait."""
        self._config, self._usage, self._clock = config, usage, clock
        self._leases: dict[str, float] = {}
        """Until when each session keeps its place."""
        self._cached: dict[str, tuple[Any, int]] = {}
        """Replica and length in tokens of what each session left in a cache."""

    async def admit(self, replica: Any, session_id: str, prompt_tokens: int) -> None:
        """Return once the session may send a prompt of this length to the replica."""
        while not await self._may(replica, session_id, prompt_tokens):
            self.waits += 1
            await asyncio.sleep(self._config.look_seconds)
        # while it is answered, it has its place
        self._leases[session_id] = float("inf")

    def answered(self, replica: Any, session_id: str, tokens: int) -> None:
        """The replica has answered, or given up, and `tokens` of the session are in its cache."""
        self._leases[session_id] = self._clock() + self._config.lease_seconds
        self._cached[session_id] = replica, tokens

    def release(self, session_id: str) -> None:
        """The session has ended."""
        self._leases.pop(session_id, None)
        self._cached.pop(session_id, None)

    async def _may(self, replica: Any, session_id: str, prompt_tokens: int) -> bool:
        home, cached = self._cached.get(session_id, (None, 0))
        here = home is replica
        if here and self._leases.get(session_id, 0.0) >= self._clock():
            return True
        if here and cached >= self._config.prefix_hit * prompt_tokens:
            return True
        usage = await self._usage(replica)
        # one that does not say how full it is must not keep anybody waiting for ever
        return usage is None or usage < self._config.high_water
