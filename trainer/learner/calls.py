"""A call to all ranks at once, which ends when one of them fails."""

import asyncio
import re
from collections.abc import Sequence
from typing import Any

from trainer.learner.errors import LearnerError

GRACE = 10.0
"""Seconds that the other ranks are given to answer once one has failed."""

_COLOUR = re.compile(r"\x1b\[\d*m")
_COLLECTIVE = ("gloo", "nccl", "connection closed by peer", "connection reset by peer", "socket timeout")
"""Words in the error of a rank whose peer went away in the middle of a collective."""


class RankFailure(LearnerError):
    """A rank failed. `stuck` are those that gave no answer, `dead` those whose process is gone."""

    def __init__(self, message: str, stuck: Sequence[int], dead: Sequence[int], cause: BaseException) -> None:
        super().__init__(message)
        self.stuck, self.dead, self.cause = list(stuck), list(dead), cause

    @property
    def group_is_lost(self) -> bool:
        """No further call can succeed: some rank will not join its collectives."""
        return bool(self.stuck or self.dead)


async def answers(references: Sequence[Any], what: str, grace: float = GRACE) -> list[Any]:
    """What every rank returned from the same call, `what`.

    Raises:
        RankFailure: a rank raised or died. It tells of that rank, with its own traceback, not of peers that failed
            because of it; those get `grace` seconds to answer.
    """
    futures = [asyncio.ensure_future(_awaited(reference)) for reference in references]
    await asyncio.wait(futures, return_when=asyncio.FIRST_EXCEPTION)
    if any(future.done() and future.exception() for future in futures):
        await asyncio.wait(futures, timeout=grace)
    errors = {rank: future.exception() for rank, future in enumerate(futures) if future.done()}
    failed = {rank: error for rank, error in errors.items() if error is not None}
    if not failed:
        return [future.result() for future in futures]
    stuck = [rank for rank in range(len(futures)) if rank not in errors]
    for rank in stuck:
        futures[rank].cancel()
    rank = min(failed, key=lambda rank: (_blame(failed[rank]), rank))
    dead = [rank for rank, error in failed.items() if _is_dead(error)]
    raise RankFailure(_message(rank, len(futures), what, failed[rank], stuck), stuck, dead, failed[rank])


async def _awaited(reference: Any) -> Any:
    return await reference


def _is_dead(error: BaseException) -> bool:
    from ray.exceptions import RayActorError

    return isinstance(error, RayActorError)


def _blame(error: BaseException) -> int:
    """0 for a rank that raised of itself, 1 for one that died, 2 for one that lost a peer."""
    if _is_dead(error):
        return 1
    return 2 if any(word in str(error).lower() for word in _COLLECTIVE) else 0


def _message(rank: int, ranks: int, what: str, error: BaseException, stuck: Sequence[int]) -> str:
    who = f"rank {rank} of {ranks}" if ranks > 1 else "the learner"
    text = _COLOUR.sub("", str(error)).strip()
    # Ray puts the remote traceback into the text, and keeps the error itself beside it
    cause = getattr(error, "cause", None) or error
    first = (text if _is_dead(error) else f"{type(cause).__name__}: {cause}").partition("\n")[0]
    waiting = f"; ranks {list(stuck)} were waiting for it" if stuck else ""
    head = f"{who} {'died' if _is_dead(error) else 'failed'} in {what}: {first}{waiting}"
    return f"{head}\n{text}" if "\n" in text else head
