"""Where ranks meet: a store on rank 0, on a port that the kernel picks, so that nobody can have taken it before."""

from datetime import timedelta

import torch.distributed as dist

from trainer.learner.errors import RendezvousError

_SECONDS = 60


def open_store(address: str, ranks: int) -> dist.TCPStore:
    """The store, on rank 0."""
    return dist.TCPStore(address, 0, ranks, is_master=True, wait_for_workers=False, timeout=timedelta(seconds=_SECONDS))


def reach_store(address: str, port: int, ranks: int) -> dist.TCPStore:
    """The store of rank 0, on another rank.

    Raises:
        RendezvousError: nobody answers there.
    """
    try:
        return dist.TCPStore(address, port, ranks, is_master=False, timeout=timedelta(seconds=_SECONDS))
    except dist.DistError as error:
        raise RendezvousError(f"rank 0 does not answer at {address}:{port}: {error}") from error


def meet(store: dist.TCPStore, rank: int, ranks: int, seconds: float = _SECONDS) -> None:
    """Wait until every rank has come to the store.

    Raises:
        RendezvousError: some did not come; says which.
    """
    store.set(f"here/{rank}", "yes")
    keys = [f"here/{other}" for other in range(ranks)]
    try:
        store.wait(keys, timedelta(seconds=seconds))
    except dist.DistError as error:
        absent = [other for other, key in enumerate(keys) if not store.check([key])]
        raise RendezvousError(f"rank {rank} waited {seconds:g} s in vain for ranks {absent}") from error
