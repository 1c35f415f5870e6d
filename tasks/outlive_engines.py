"""A run outlives its engines: those that died are started again, brought to where the journal is, and it goes on."""

from collections.abc import Awaitable, Callable
from typing import TypeVar

from tasks.policy import PERMANENT
from tasks.progress import Event, emit
from tasks.run import RunRef
from trainer.fidelity.gate import FidelityError

T = TypeVar("T")

STARTS = 2
"""How often engines are started again before a step has to come to its end in between."""


async def outliving_engines(
    run: RunRef,
    work: Callable[[], Awaitable[T]],
    faults: Callable[[], Awaitable[list[str]]],
    start: Callable[[], Awaitable[object]],
) -> T:
    """What `work` returns, which is done again from the journal on after engines of it have died.

    Args:
        work: Begins with `recover`, and repeats nothing that the journal has.
        faults: What is wrong with the engines now.
        start: Boots those that are missing, in the place of those that are ill.

    Raises:
        Exception: what `work` raised while no engine had died, or when they die time and again.
    """
    starts, step = 0, -1
    while True:
        try:
            return await work()
        except (*PERMANENT, FidelityError):
            raise
        except Exception as error:
            newest = max(run.journal.finished_steps(), default=0)
            starts, step = (starts + 1 if newest == step else 1), newest
            found = await _told(faults)
            if not found or starts > STARTS:
                raise
            lost = "; ".join(found)
            first = str(error).strip().partition("\n")[0]
            emit(Event("note", "", f"engines were lost ({lost}): {first}. They are started again"))
        await start()


async def _told(faults: Callable[[], Awaitable[list[str]]]) -> list[str]:
    """The faults; none that could be mended if the cluster itself is gone."""
    try:
        return await faults()
    except Exception:
        return []
