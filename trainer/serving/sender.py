"""The learner's end of a sync through shared memory: streams tensors through a bounded ring to every replica."""

from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Protocol

import torch

from trainer.serving.buckets import (
    Manifest,
    SharedBuffer,
    TensorRecord,
    WeightSyncError,
    digest,
    fill_buckets,
    manifest,
    record_fields,
)


class SyncTarget(Protocol):
    """The replicas, all at once. A call returns when every replica has done it, or something that waits for that."""

    def start_sync(self) -> None: ...

    def receive_bucket(self, bucket: dict[str, Any]) -> Callable[[], object]: ...

    def finish_sync(self, version: int, sent: Manifest) -> list[str]: ...


class ReplicaActors:
    """`SyncTarget` over Ray actors."""

    def __init__(self, actors: Sequence[Any]) -> None:
        self._actors = actors

    def start_sync(self) -> None:
        self._asked(lambda actor: actor.start_sync.remote())()

    def receive_bucket(self, bucket: dict[str, Any]) -> Callable[[], object]:
        """Ask for it at once, so that an engine has the next portion when it is done with one."""
        return self._asked(lambda actor: actor.receive_bucket.remote(bucket))

    def finish_sync(self, version: int, sent: Manifest) -> list[str]:
        return self._asked(lambda actor: actor.finish_sync.remote(version, sent))()

    def init_transfer(self, infos: Sequence[dict[str, Any]]) -> None:
        """Connect each replica to the learner as its info says."""
        import ray

        ray.get([actor.init_transfer.remote(info) for actor, info in zip(self._actors, infos, strict=True)])

    def __len__(self) -> int:
        return len(self._actors)

    def _asked(self, call: Callable[[Any], Any]) -> Callable[[], Any]:
        import ray

        calls = [call(actor) for actor in self._actors]
        return lambda: ray.get(calls)


def send_weights(
    tensors: Iterable[tuple[str, torch.Tensor]], target: SyncTarget, version: int, buffer: SharedBuffer
) -> str:
    """Send all `tensors` as weight `version`. Returns their fingerprint, which every replica has confirmed.

    `tensors` is always read to its end, also after a failure: gathering them is a collective, and the peers would wait.
    While the replicas read a portion, the next is gathered and written.

    Args:
        tensors: Each may be lent until the next is asked for; one that comes again at once under another name, as a
            tied one does, is written once.
        buffer: What they go through, with room for the largest of them. Nobody reads it any more when this returns.

    Raises:
        WeightSyncError: a replica holds other weights than were sent.
        Exception: what a replica raised; it serves nothing until a later sync succeeds.
    """
    stream = iter(tensors)
    try:
        with ThreadPoolExecutor(1) as waiter:
            # the first portion is written while the replicas freeze their requests
            started = waiter.submit(target.start_sync)

            def send(portion: list[TensorRecord]) -> Future[object]:
                started.result()
                bucket = {"path": buffer.path, "size": buffer.size, "records": record_fields(portion)}
                return waiter.submit(target.receive_bucket(bucket))

            sent = manifest(fill_buckets(stream, buffer, send))
            started.result()
            confirmed = target.finish_sync(version, sent)
    finally:
        for _ in stream:
            pass
    return confirm(version, sent, confirmed)


def confirm(version: int, sent: Manifest, confirmed: Iterable[str]) -> str:
    """The fingerprint of what was sent.

    Raises:
        WeightSyncError: a replica holds something else.
    """
    mine = digest(sent)
    others = {theirs for theirs in confirmed if theirs != mine}
    if others:
        raise WeightSyncError(f"version {version}: replicas hold {sorted(others)}, the learner sent {mine}")
    return mine
