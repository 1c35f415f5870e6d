"""How weights lie in shared memory on their way: named tensors in a bounded ring, with checksums."""

import hashlib
import mmap
import os
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from dataclasses import asdict, dataclass
from typing import Any

import torch

from trainer.serving.checksum import checksum

ALIGNMENT = 64
PORTIONS = 4
"""Parts of the ring that are sent at a time: while one is read and one waits for it, the next is written."""


class WeightSyncError(RuntimeError):
    """A sync after which the replica would not serve the learner's weights."""


@dataclass(frozen=True)
class TensorRecord:
    """One tensor on its way: what it is, and where it lies in the buffer."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    checksum: str
    offset: int = 0

    @classmethod
    def of(cls, name: str, tensor: torch.Tensor, offset: int = 0) -> "TensorRecord":
        """The record of `tensor` when it lies at `offset`."""
        return cls(name, type_name(tensor.dtype), tuple(tensor.shape), checksum(tensor), offset)

    @property
    def nbytes(self) -> int:
        return torch.Size(self.shape).numel() * type_of(self.dtype).itemsize

    def placed(self) -> tuple[int, str]:
        """Place and content: what tied tensors have in common."""
        return self.offset, self.identity()

    def identity(self) -> str:
        """Type, shape and content, but neither name nor place."""
        return f"{self.dtype} {list(self.shape)} {self.checksum}"


Manifest = dict[str, str]
"""All tensors of a sync by name, each as its `TensorRecord.identity`."""


def manifest(records: Iterable[TensorRecord]) -> Manifest:
    """What was sent, or what arrived."""
    return {record.name: record.identity() for record in records}


def digest(tensors: Manifest) -> str:
    """One fingerprint over all tensors of a model, whatever order or buckets they came in."""
    lines = sorted(f"{name} {identity}" for name, identity in tensors.items())
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()


def fingerprint(records: Iterable[TensorRecord]) -> str:
    """See `digest`."""
    return digest(manifest(records))


def type_name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def type_of(name: str) -> torch.dtype:
    dtype: torch.dtype = getattr(torch, name)
    return dtype


class SharedBuffer:
    """Anonymous shared memory that other processes of this machine reach by path, and that dies with its owner."""

    def __init__(self, size: int):
        self.size = size
        self._fd = os.memfd_create("testgrad-weights")
        os.ftruncate(self._fd, size)
        self._bytes: torch.Tensor | None = torch.frombuffer(mmap.mmap(self._fd, size), dtype=torch.uint8)

    @property
    def path(self) -> str:
        return f"/proc/{os.getpid()}/fd/{self._fd}"

    def place(self, offset: int, tensor: torch.Tensor) -> torch.Tensor:
        """Copy `tensor` to `offset`, from whatever device it is on. Returns it as it lies there."""
        assert self._bytes is not None, "the buffer is closed"
        placed = _tensor_at(self._bytes, offset, tensor.dtype, tensor.shape)
        placed.copy_(tensor)
        return placed

    def close(self) -> None:
        # the mapping itself goes with the last tensor that lies in it, which a traceback may still hold
        self._bytes = None
        os.close(self._fd)


class Ring:
    """Which parts of a buffer are free: they are given out in turn, and again when their readers are done."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.next = 0
        self._lent: deque[tuple[int, int, Future[Any]]] = deque()

    def fits(self, nbytes: int) -> bool:
        """Whether `nbytes` lie behind what was taken last, rather than at the beginning again."""
        return self.next + nbytes <= self.size

    def take(self, nbytes: int) -> int:
        """The offset of `nbytes` that nobody reads any more; waits for those who do.

        Raises:
            Exception: what a reader raised.
        """
        start = self.next if self.fits(nbytes) else 0
        end = start + nbytes
        while any(begin < end and start < stop for begin, stop, _ in self._lent):
            self._lent.popleft()[2].result()
        self.next = -(-end // ALIGNMENT) * ALIGNMENT
        return start

    def lend(self, begin: int, end: int, reading: "Future[Any]") -> None:
        """Keep `begin` to `end` as it is until `reading` is done."""
        self._lent.append((begin, end, reading))

    def wait(self) -> None:
        """Until all readers are done; raises what one of them raised."""
        while self._lent:
            self._lent.popleft()[2].result()


def fill_buckets(
    tensors: Iterable[tuple[str, torch.Tensor]],
    buffer: SharedBuffer,
    send: Callable[[list[TensorRecord]], "Future[Any]"],
) -> list[TensorRecord]:
    """Write `tensors` into `buffer` and `send` the records of each portion. Returns all records.

    A part of the buffer is written again when the future of its portion is done. A tensor that comes again at once
    under another name, as a tied one does, is written once.

    Raises:
        WeightSyncError: a tensor larger than the whole buffer.
        Exception: what a future raised.
    """
    ring = Ring(buffer.size)
    sent: list[TensorRecord] = []
    portion: list[TensorRecord] = []
    last: torch.Tensor | None = None

    def flush() -> None:
        if portion:
            ring.lend(portion[0].offset, portion[-1].offset + portion[-1].nbytes, send(list(portion)))
            sent.extend(portion)
            portion.clear()

    for name, tensor in tensors:
        if last is tensor and portion:
            before = portion[-1]
            portion.append(TensorRecord(name, before.dtype, before.shape, before.checksum, before.offset))
            continue
        nbytes = tensor.numel() * tensor.element_size()
        if nbytes > buffer.size:
            raise WeightSyncError(f"{name} has {nbytes} bytes, the sync buffer {buffer.size}; raise serving.bucket_mib")
        if portion and (
            not ring.fits(nbytes) or ring.next + nbytes - portion[0].offset > max(buffer.size // PORTIONS, nbytes)
        ):
            flush()
        offset = ring.take(nbytes)
        portion.append(TensorRecord.of(name, buffer.place(offset, tensor), offset))
        last = tensor
    flush()
    ring.wait()
    return sent


class SharedReader:
    """The buffer of another process, mapped for the time of a sync."""

    def __init__(self, path: str, size: int) -> None:
        """Raises WeightSyncError if the process that owned the buffer is gone."""
        try:
            fd = os.open(path, os.O_RDONLY)
        except FileNotFoundError:
            raise WeightSyncError("the learner's buffer is gone: its process ended in the middle of a sync") from None
        try:
            # private, so that nothing here can change what other replicas read
            mapping = mmap.mmap(fd, size, flags=mmap.MAP_PRIVATE, prot=mmap.PROT_READ | mmap.PROT_WRITE)
        finally:
            os.close(fd)
        self._bytes = torch.frombuffer(mapping, dtype=torch.uint8)

    def read(self, record: TensorRecord) -> torch.Tensor:
        """The tensor as it lies in the buffer: valid until the sender is told that the bucket has been read.

        Raises:
            WeightSyncError: its bytes do not have the checksum that was sent.
        """
        tensor = _tensor_at(self._bytes, record.offset, type_of(record.dtype), record.shape)
        if checksum(tensor) != record.checksum:
            raise WeightSyncError(f"{record.name}: received bytes have another checksum than the learner sent")
        return tensor

    def read_all(self, records: Sequence[TensorRecord]) -> list[tuple[str, torch.Tensor]]:
        """The tensors by name; see `read`. Tied ones are read once."""
        tensors = {place: self.read(record) for place, record in {r.placed(): r for r in records}.items()}
        return [(record.name, tensors[record.placed()]) for record in records]

    def holds(self, tensor: torch.Tensor) -> bool:
        """Whether the tensor lies in the buffer."""
        return tensor.untyped_storage().data_ptr() == self._bytes.untyped_storage().data_ptr()


def record_fields(records: Iterable[TensorRecord]) -> list[dict[str, Any]]:
    """Records as plain dicts, fit for a remote call."""
    return [asdict(record) for record in records]


def parse_records(fields: Iterable[dict[str, Any]]) -> list[TensorRecord]:
    """The inverse of `record_fields`."""
    return [TensorRecord(**{**record, "shape": tuple(record["shape"])}) for record in fields]


def _tensor_at(data: torch.Tensor, offset: int, dtype: torch.dtype, shape: tuple[int, ...]) -> torch.Tensor:
    nbytes = torch.Size(shape).numel() * dtype.itemsize
    return data[offset : offset + nbytes].view(dtype).view(shape)
