"""What the replicas of a run say of themselves, whoever asks and from whatever process."""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from trainer.serving.boot import Boot

LOOK_SECONDS = 5.0
"""How long one may take to say where it stands, and the time between two looks for those that are absent."""
PROBE_SECONDS = 120.0
"""How long one may take to prove that its engine lives: it may have much to do."""


@dataclass(frozen=True)
class Standing:
    """Where a replica stands, by its own words.

    Args:
        up: Its boot came to its end.
        version: The weights that it serves, None while there are none to be trusted.
        turns: Requests that are under way.
        leaving: It takes no new ones, and ends once those are answered.
        syncing: Weights are on their way to it.
    """

    up: bool
    version: int | None
    turns: int = 0
    leaving: bool = False
    syncing: bool = False

    @property
    def serves(self) -> bool:
        """Whether it takes new requests."""
        return self.up and self.version is not None and not self.leaving

    @property
    def may_end(self) -> bool:
        """Whether it is leaving and nobody waits for it any more."""
        return self.leaving and not self.turns and not self.syncing


async def standings_of(
    actors: Mapping[int, Any], seconds: float | None = LOOK_SECONDS
) -> dict[int, Standing | Exception]:
    """By number, where each of these replicas stands, or why it does not say so within so many `seconds`.

    One that boots says so once that has ended.
    """
    return await _ask(actors, "standing", seconds)


async def boots_of(actors: Mapping[int, Any]) -> dict[int, Boot | Exception]:
    """By number, what each of these replicas was booted with, or why it does not answer."""
    return await _ask(actors, "booted", PROBE_SECONDS)


async def serves(actor: Any) -> bool:
    """Whether a replica answers, has weights to be trusted, and does not leave."""
    standing = await _answer(actor.standing.remote(), LOOK_SECONDS)
    if not isinstance(standing, Standing) or not standing.serves:
        return False
    # which asks the engine as well
    return not isinstance(await _answer(actor.version.remote(), LOOK_SECONDS), Exception)


async def _ask(actors: Mapping[int, Any], question: str, seconds: float | None) -> dict[int, Any]:
    told = await asyncio.gather(*(_answer(getattr(actor, question).remote(), seconds) for actor in actors.values()))
    return dict(zip(actors, told, strict=True))


async def _answer(reference: Any, seconds: float | None) -> Any:
    """What is answered in time, or why nothing is."""
    try:
        return await asyncio.wait_for(reference, seconds)
    except Exception as error:
        return error
