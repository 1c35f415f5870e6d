"""The learner's end of a weight sync: streams tensors through a bounded shared buffer to every replica."""

from collections.abc import Callable, Iterable, Sequence
from contextlib import closing
from typing import Any, Protocol

import torch

from trainer.serving.buckets import (
    SharedBuffer,
    TensorRecord,
    WeightSyncError,
    fill_buckets,
    fingerprint,
    record_fields,
)


class SyncTarget(Protocol):
    """The replicas, all at once; each call returns when every replica has done it."""

    def start_sync(self) -> None: ...

    def receive_bucket(self, bucket: dict[str, Any]) -> None: ...

    def finish_sync(self, version: int) -> list[str]: ...


class ReplicaActors:
    """`SyncTarget` over Ray actors."""

    def __init__(self, actors: Sequence[Any]) -> None:
        self._actors = actors

    def start_sync(self) -> None:
        self._all(lambda actor: actor.start_sync.remote())

    def receive_bucket(self, bucket: dict[str, Any]) -> None:
        self._all(lambda actor: actor.receive_bucket.remote(bucket))

    def finish_sync(self, version: int) -> list[str]:
        return self._all(lambda actor: actor.finish_sync.remote(version))

    def _all(self, call: Callable[[Any], Any]) -> Any:
        import ray

        return ray.get([call(actor) for actor in self._actors])


def send_weights(
    tensors: Iterable[tuple[str, torch.Tensor]], target: SyncTarget, version: int, largest: int, bucket_bytes: int
) -> str:
    """Send all `tensors` as weight `version`. Returns their fingerprint, which every replica has confirmed.

    `tensors` is always read to its end, also after a failure: gathering them is a collective, and the peers would wait.

    Args:
        largest: bytes of the largest tensor, the least size of the buffer.

    Raises:
        WeightSyncError: a replica holds other weights than were sent.
        Exception: what a replica raised; it serves nothing until a later sync succeeds.
    """
    stream = iter(tensors)
    sent: list[TensorRecord] = []
    try:
        with closing(SharedBuffer(max(bucket_bytes, largest))) as buffer:
            target.start_sync()
            for bucket in fill_buckets(stream, buffer):
                target.receive_bucket({"path": buffer.path, "size": buffer.size, "records": record_fields(bucket)})
                sent += bucket
            confirmed = target.finish_sync(version)
    finally:
        for _ in stream:
            pass
    mine = fingerprint(sent)
    if any(theirs != mine for theirs in confirmed):
        raise WeightSyncError(f"version {version}: replicas hold {sorted(set(confirmed))}, the learner sent {mine}")
    return mine
