"""How weights lie in shared memory on their way: named tensors back to back in a bounded buffer, with checksums."""

import hashlib
import mmap
import os
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from typing import Any

import torch

ALIGNMENT = 64


class WeightSyncError(RuntimeError):
    """A sync after which the replica would not serve the learner's weights."""


@dataclass(frozen=True)
class TensorRecord:
    """One tensor in a bucket."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    offset: int
    nbytes: int
    crc32: int

    @classmethod
    def of(cls, name: str, tensor: torch.Tensor, offset: int = 0) -> "TensorRecord":
        """The record of `tensor` when it lies at `offset`."""
        data = as_bytes(tensor)
        dtype = str(tensor.dtype).removeprefix("torch.")
        return cls(name, dtype, tuple(tensor.shape), offset, len(data), zlib.crc32(data))

    def identity(self) -> str:
        """Name, type, shape and content, but not the place in the bucket."""
        return f"{self.name} {self.dtype} {list(self.shape)} {self.crc32:08x}"


def fingerprint(records: Iterable[TensorRecord]) -> str:
    """One digest over all tensors of a model, whatever order or buckets they came in."""
    return hashlib.sha256("\n".join(sorted(r.identity() for r in records)).encode()).hexdigest()


def as_bytes(tensor: torch.Tensor) -> memoryview:
    """The tensor's bytes, without a copy if it is contiguous and on the CPU."""
    return tensor.detach().contiguous().cpu().reshape(-1).view(torch.uint8).numpy().data


class SharedBuffer:
    """Anonymous shared memory that other processes of this machine reach by path, and that dies with its owner."""

    def __init__(self, size: int):
        self.size = size
        self._fd = os.memfd_create("testgrad-weights")
        os.ftruncate(self._fd, size)
        self._map = mmap.mmap(self._fd, size)

    @property
    def path(self) -> str:
        return f"/proc/{os.getpid()}/fd/{self._fd}"

    def write(self, offset: int, data: memoryview) -> None:
        self._map[offset : offset + len(data)] = data

    def close(self) -> None:
        self._map.close()
        os.close(self._fd)


def fill_buckets(tensors: Iterable[tuple[str, torch.Tensor]], buffer: SharedBuffer) -> Iterator[list[TensorRecord]]:
    """Write `tensors` into `buffer`, yielding the records of each bucket; the buffer is reused after each yield.

    Raises:
        WeightSyncError: a tensor larger than the whole buffer.
    """
    bucket: list[TensorRecord] = []
    end = 0
    for name, tensor in tensors:
        data = as_bytes(tensor)
        if len(data) > buffer.size:
            raise WeightSyncError(
                f"{name} has {len(data)} bytes, the sync buffer {buffer.size}; raise serving.bucket_mib"
            )
        if end + len(data) > buffer.size:
            yield bucket
            bucket, end = [], 0
        buffer.write(end, data)
        bucket.append(TensorRecord.of(name, tensor, end))
        end += -(-len(data) // ALIGNMENT) * ALIGNMENT
    if bucket:
        yield bucket


def read_bucket(path: str, size: int, records: Iterable[dict[str, Any]]) -> Iterator[tuple[TensorRecord, torch.Tensor]]:
    """Tensors of the bucket at `path`, each copied out, since the sender reuses the memory, and checked.

    Raises:
        WeightSyncError: a tensor whose bytes do not have the checksum that was sent.
    """
    fd = os.open(path, os.O_RDONLY)
    try:
        with mmap.mmap(fd, size, prot=mmap.PROT_READ) as shared:
            for fields in records:
                record = TensorRecord(**{**fields, "shape": tuple(fields["shape"])})
                data = bytearray(shared[record.offset : record.offset + record.nbytes])
                if zlib.crc32(data) != record.crc32:
                    raise WeightSyncError(f"{record.name}: received bytes have another checksum than the learner sent")
                flat = (
                    torch.frombuffer(data, dtype=getattr(torch, record.dtype))
                    if data
                    else torch.empty(0, dtype=getattr(torch, record.dtype))
                )
                yield record, flat.view(record.shape)
    finally:
        os.close(fd)


def record_fields(records: Iterable[TensorRecord]) -> list[dict[str, Any]]:
    """Records as plain dicts, fit for a remote call."""
    return [asdict(record) for record in records]
