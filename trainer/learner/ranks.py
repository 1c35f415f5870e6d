"""Work that some ranks may fail at: all of them learn what came out, and none waits for one that failed."""

from collections.abc import Callable
from typing import Any, TypeVar

T = TypeVar("T")


def rank_and_world() -> tuple[int, int]:
    """This rank, and how many there are; (0, 1) where no group was joined."""
    import torch.distributed as dist

    return (dist.get_rank(), dist.get_world_size()) if dist.is_initialized() else (0, 1)


def on_all_ranks(act: Callable[[], T], failure: type[Exception]) -> list[T]:
    """What `act` returned on each rank. A collective.

    Raises:
        failure: on all ranks, if `act` raised an OSError or a `failure` on one.
    """
    from trainer.learner.collective import gather

    mine: tuple[Any, str | None]
    try:
        mine = (act(), None)
    except (OSError, failure) as error:
        mine = (None, str(error))
    outcomes = gather(mine)
    for rank, (_, said) in enumerate(outcomes):
        if said is not None:
            raise failure(said if len(outcomes) == 1 else f"rank {rank}: {said}")
    return [value for value, _ in outcomes]


def on_first_rank(act: Callable[[], object], failure: type[Exception]) -> None:
    """Rank 0 acts, the others wait for it. A collective. Raises as `on_all_ranks` does."""
    rank, _ = rank_and_world()
    on_all_ranks(act if rank == 0 else lambda: None, failure)
