"""How weights travel from the learner's ranks to the replicas: shared memory, CUDA IPC or NCCL.

Every rank holds a `WeightSender` and calls it for every sync. Whatever the transport, replicas are told at the end what
was sent, tensor by tensor, and serve it only if it is what arrived and what they compute with.
"""

import pickle
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, ClassVar, Protocol

import torch

from trainer.serving.buckets import Manifest, SharedBuffer, TensorRecord, manifest, type_name
from trainer.serving.checksum import lazy_checksum, to_text
from trainer.serving.config import ServingConfig
from trainer.serving.sender import ReplicaActors, SyncTarget, confirm, send_weights

HANDLES = "ipc_handles"
"""What vLLM's IPC engine calls the handles of a buffer."""


class Source(Protocol):
    """Weights to send, in portions; see `trainer.learner.weights.WeightSource`."""

    @property
    def largest_bytes(self) -> int: ...

    def metadata(self) -> Sequence[Any]: ...

    def __iter__(self) -> Iterator[tuple[str, torch.Tensor]]: ...


class Replicas(SyncTarget, Protocol):
    """All replicas of a run, which can be connected one by one."""

    def init_transfer(self, infos: Sequence[dict[str, Any]]) -> None: ...

    def __len__(self) -> int: ...


class Transport(ABC):
    """One way for weights, on one rank; rank 0 is the one that sends."""

    backend: ClassVar[str]
    """Name of the weight-transfer engine that replicas are started with."""

    def __init__(self, rank: int, config: ServingConfig) -> None:
        self.rank, self.config = rank, config
        self.bucket_bytes = config.bucket_mib * 2**20

    @abstractmethod
    def send(self, source: Source, replicas: Replicas, version: int) -> str | None:
        """Sync the replicas to `version`. A collective over ranks; rank 0 returns the fingerprint they confirmed."""

    @abstractmethod
    def close(self) -> None:
        """Let go of connections."""


TRANSPORTS: dict[str, type[Transport]] = {}


def register_transport(name: str) -> Callable[[type[Transport]], type[Transport]]:
    """Add a transport under the name that `serving.transport` calls it by."""

    def add(cls: type[Transport]) -> type[Transport]:
        TRANSPORTS[name] = cls
        return cls

    return add


def transport_of(config: ServingConfig, gpus: bool) -> str:
    """The transport that is meant: `auto` is shared memory on CPUs, IPC within a shared GPU, NCCL between GPUs."""
    if config.transport != "auto":
        return config.transport
    if not gpus:
        return "shared_memory"
    return "cuda_ipc" if config.colocated else "nccl"


class WeightSender:
    """What a rank keeps between syncs: the transport in use, with its connections."""

    def __init__(self, rank: int) -> None:
        self._rank = rank
        self._transport: Transport | None = None
        self._key: tuple[str, ServingConfig, tuple[Any, ...]] | None = None

    def send(
        self, source: Source, actors: Sequence[Any], version: int, config: ServingConfig, gpus: bool
    ) -> str | None:
        """See `Transport.send`. Connections are made anew when the replicas are others, or after a sync that failed."""
        key = (transport_of(config, gpus), config, tuple(actors))
        if self._transport is None or key != self._key:
            self.close()
            self._transport, self._key = TRANSPORTS[key[0]](self._rank, config), key
        try:
            return self._transport.send(source, ReplicaActors(actors), version)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        if self._transport is not None:
            self._transport.close()
        self._transport = self._key = None


@register_transport("shared_memory")
class SharedMemory(Transport):
    """Through a ring in the memory of the machine that rank 0 and the replicas share.

    The ring is kept from sync to sync: to get its pages anew would take longer than to fill them.
    """

    backend = "testgrad_shm"

    def __init__(self, rank: int, config: ServingConfig) -> None:
        super().__init__(rank, config)
        self._ring: SharedBuffer | None = None

    def send(self, source: Source, replicas: Replicas, version: int) -> str | None:
        if self.rank == 0:
            return send_weights(source, replicas, version, self._ring_for(source.largest_bytes))
        for _ in source:
            pass
        return None

    def _ring_for(self, largest: int) -> SharedBuffer:
        if self._ring is None or self._ring.size < largest:
            self.close()
            self._ring = SharedBuffer(max(self.bucket_bytes, largest))
        return self._ring

    def close(self) -> None:
        if self._ring is not None:
            self._ring.close()
        self._ring = None


class Noted:
    """A source that remembers what it handed out, for the manifest. Checksums are computed where tensors lie."""

    def __init__(self, source: Source) -> None:
        self._source = source
        # to be drained even if nobody begins with it
        self._stream = iter(source)
        self._notes: list[tuple[str, torch.dtype, tuple[int, ...], torch.Tensor]] = []

    @property
    def largest_bytes(self) -> int:
        return self._source.largest_bytes

    def metadata(self) -> Sequence[Any]:
        return self._source.metadata()

    def __iter__(self) -> Iterator[tuple[str, torch.Tensor]]:
        self._notes.clear()
        self._stream = iter(self._source)
        for name, tensor in self._stream:
            self._notes.append((name, tensor.dtype, tuple(tensor.shape), lazy_checksum(tensor)))
            yield name, tensor

    def drain(self) -> None:
        """Read what is left: gathering is a collective, and the other ranks would wait."""
        for _ in self._stream:
            pass

    def manifest(self) -> Manifest:
        """What the last iteration handed out."""
        return manifest(
            TensorRecord(name, type_name(dtype), shape, to_text(lazy)) for name, dtype, shape, lazy in self._notes
        )


class SyncClient:
    """The replicas as vLLM's trainer engines see them: their calls, with our version and manifest at the end."""

    def __init__(self, replicas: Replicas, ranks_per_replica: int) -> None:
        self._replicas, self._ranks = replicas, ranks_per_replica
        self.version = 0
        self.source: Noted | None = None
        self.refusal: Exception | None = None
        """What a replica said to being connected: vLLM tells it after having waited for all, if ever."""
        self.sent: Manifest = {}
        self.confirmed: list[str] = []

    def init_weight_transfer_engine(self, init_info: dict[str, Any]) -> None:
        """Each replica is a cluster of its own that counts its workers from 0: give each its own place in the group."""
        infos = []
        for place in range(len(self._replicas)):
            info = dict(init_info)
            if "rank_offset" in info:
                info["rank_offset"] += place * self._ranks
            infos.append(info)
        try:
            self._replicas.init_transfer(infos)
        except Exception as refusal:
            self.refusal = refusal
            raise

    def start_weight_update(self) -> None:
        self._replicas.start_sync()

    def update_weights(self, update_info: Any) -> None:
        # what vLLM's processes send each other are plain values: handles of CUDA IPC go as bytes, see `VerifiedIpc`
        if HANDLES in update_info:
            update_info = update_info | {HANDLES: pickle.dumps(update_info[HANDLES])}
        self._replicas.receive_bucket(update_info)()

    def finish_weight_update(self, weight_version: str | None = None) -> None:
        """`weight_version` is vLLM's; the one that counts is `version`."""
        assert self.source is not None, "a sync ends that has not begun"
        self.sent = self.source.manifest()
        self.confirmed = self._replicas.finish_sync(self.version, self.sent)


class VllmTransport(Transport):
    """A transport whose learner's end is one of vLLM's own trainer engines."""

    drains: ClassVar[bool] = True
    """Whether all ranks read the weights to their end although rank 0 failed. Where they wait for each other between
    portions, a rank that reads on by itself would wait too, and never tell why.
    """

    def __init__(self, rank: int, config: ServingConfig) -> None:
        super().__init__(rank, config)
        self._engine: Any = None
        self._client: SyncClient | None = None

    @abstractmethod
    def init_info(self, portion: int, replicas: int) -> Any:
        """vLLM's description of the learner's end, for portions of so many bytes."""

    def send(self, source: Source, replicas: Replicas, version: int) -> str | None:
        noted = Noted(source)
        try:
            if self._client is None:
                self._connect(noted, replicas)
            client, self._engine.source = self._client, noted
            assert client is not None
            client.version, client.source = version, noted
            self._engine.send_weights()
        finally:
            if self.drains:
                noted.drain()
        return confirm(version, client.sent, client.confirmed) if self.rank == 0 else None

    def _connect(self, source: Noted, replicas: Replicas) -> None:
        from vllm.distributed.weight_transfer.factory import WeightTransferTrainerFactory

        client = SyncClient(replicas, self.config.tensor_parallel)
        # half a bucket is packed while the other half is under way
        portion = max(self.bucket_bytes // 2, source.largest_bytes)
        info = self.init_info(portion, len(replicas))
        with _same_stream():
            try:
                self._engine = WeightTransferTrainerFactory.trainer_init(info, client=client, source=source)
            except Exception:
                if client.refusal is None:
                    raise
                raise client.refusal from None
        self._client = client

    def close(self) -> None:
        if self._engine is not None:
            self._engine.shutdown()
        self._engine = self._client = None


@register_transport("cuda_ipc")
class CudaIpc(VllmTransport):
    """Within a GPU that a rank and a replica share: the replica opens the rank's buffer."""

    backend = "testgrad_ipc"
    drains = False

    def init_info(self, portion: int, replicas: int) -> Any:
        from vllm.distributed.weight_transfer.ipc_engine import IPCTrainerInitInfo

        return IPCTrainerInitInfo(rank=self.rank, packed=True, packed_buffer_size_bytes=portion)


@register_transport("nccl")
class Nccl(VllmTransport):
    """From rank 0's GPU to those of the replicas, on whatever node, by broadcast."""

    backend = "testgrad_nccl"

    def init_info(self, portion: int, replicas: int) -> Any:
        from vllm.distributed.weight_transfer.nccl_engine import NCCLTrainerInitInfo

        return NCCLTrainerInitInfo(
            rank=self.rank,
            master_address=_own_address(),
            master_port=_free_port() if self.rank == 0 else 0,
            world_size=1 + replicas * self.config.tensor_parallel,
            packed=True,
            packed_buffer_size_bytes=portion,
            packed_num_buffers=1,
        )


@contextmanager
def _same_stream() -> Iterator[None]:
    """Let vLLM's communicator have a CUDA stream of its own, but not leave it to this thread, where training goes on:
    what DeepSpeed orders by the stream that it takes for the usual one would no longer be ordered.
    """
    if not torch.cuda.is_available():
        yield
        return
    import vllm.utils.torch_utils  # noqa: F401, puts its own function in the place of the one that sets streams

    with torch.cuda.stream(torch.cuda.current_stream()):
        yield


def _own_address() -> str:
    import ray

    return str(ray.util.get_node_ip_address())


def _free_port() -> int:
    import socket

    with socket.socket() as listener:
        listener.bind(("", 0))
        return int(listener.getsockname()[1])
